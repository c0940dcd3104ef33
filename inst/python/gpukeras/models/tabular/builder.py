"""Builds a compiled network for a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import find_reason
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.models.custom_layers import keras_class
from gpukeras.models.families.build import settle_family
from gpukeras.models.families.keras_classes import output_layer
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import ROWS, Family
from gpukeras.models.mlp import choose_losses, output_layers
from gpukeras.models.tabular import networks
from gpukeras.models.tabular.column_layers import FactorCodes, LevelTable, TableNumbers
from gpukeras.models.tabular.layout import Factor, TableLayout, embedding_size, plan_layout
from gpukeras.models.tabular.members import MeanOfMembers, MembersModel
from gpukeras.models.tabular.networks import Seeds
from gpukeras.models.tabular.number_layers import (
    NumberTokens,
    PeriodicEncoding,
    PiecewiseLinearEncoding,
)
from gpukeras.models.tabular.options import Sizes, TabularSpec, choose_rates, settle
from gpukeras.models.tabular.statistics import CLIP, NumberFacts, read_numbers

# Numbers per embedding in networks without tokens: of the documentation of the package tabm, and
# the default of rtdl_num_embeddings.
NUMBER_SIZE = {"piecewise_linear": 16, "periodic": 24}


def build_tabular(data: Dataset, options: Mapping[str, Any]) -> Any:
    """Builds a compiled network for a table whose input and output fit the dataset.

    Numbers are scaled by the training rows within the model, factors are embedded; a level
    that the recipe does not have takes a row of zeros of its own. Output, loss and metrics are
    those of `mlp.build_mlp()`.

    Args:
        data: A dataset of one table with labels.
        options: Fields of `TabularSpec`.

    Returns:
        A compiled functional Keras model.

    Raises:
        SpecError: for a bad option or a name that Keras does not know.
        DataError: if the dataset is no table, or has no labels or several outputs.
    """
    spec = TabularSpec.from_dict(options)
    rows, recipe = data.count("train"), data.recipe
    sizes = settle(spec, rows)
    layout = plan_layout(recipe)
    if recipe.label is None:
        raise DataError("`data` has no labels to learn.", hint="Give `y`.", arg="data")
    if recipe.label.outputs:
        raise DataError(
            "gpu_tabular() makes models with one output, but `data` has several.",
            hint="Use gpu_mlp(), or a matrix of numbers as labels.",
            arg="data",
        )
    optimizer = _make_optimizer(spec, rows)
    family = _settle_family(data, spec)
    facts = read_numbers(data, layout.numbers, spec.bins)
    model = _connect(recipe, layout, facts, spec, sizes, family)
    loss, metrics = choose_losses(recipe.label, recipe.mixes_classes, family)
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics)
    return model


def _settle_family(data: Dataset, spec: TabularSpec) -> Family | None:
    """Returns the family, see `settle_family()`.

    Raises:
        SpecError: for one whose loss compares rows, with members: each would need its own batch.
    """
    family = settle_family(data, spec.family)
    if family is not None and spec.kind == "tabm" and not likelihood(family).additive:
        raise SpecError(
            f'kind = "tabm" cannot learn the family "{family.name}": its loss compares the rows of '
            "a batch, and those of a batch are repeated for each member.",
            hint='Use another kind, such as gpu_tabular(kind = "mlp"), or the family '
            '"discrete_time".',
            arg="family",
        )
    return family


def _make_optimizer(spec: TabularSpec, rows: int | None) -> Any:
    keras, (rate, decay) = runtime.keras(), choose_rates(spec, rows)
    try:
        config = {"learning_rate": rate, "weight_decay": decay}
        return keras.optimizers.get({"class_name": spec.optimizer, "config": config})
    except (ValueError, TypeError) as error:
        raise SpecError(f"Keras refused the options: {find_reason(error)}.") from error


def _connect(
    recipe: Recipe,
    layout: TableLayout,
    facts: NumberFacts,
    spec: TabularSpec,
    sizes: Sizes,
    family: Family | None,
) -> Any:
    """Connects columns, backbone and output."""
    keras, draw = runtime.keras(), Seeds(spec.seed)
    row = keras.Input(recipe.shape)
    if spec.kind == "ft_transformer":
        tokens = _tokens(row, layout, facts, spec, sizes, draw)
        values = networks.build_transformer(tokens, sizes, draw, spec.heads)
        return _finish(keras.Model, row, values, recipe, draw, family)
    parts, chunks = _flat_parts(row, layout, facts, spec, draw)
    values = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    if spec.kind == "tabm":
        values = networks.build_members(values, sizes, draw, spec, chunks)
        return _finish(keras_class(MembersModel), row, values, recipe, draw, family)
    values = {
        "mlp": lambda: networks.build_mlp(values, sizes, draw),
        "resnet": lambda: networks.build_resnet(values, sizes, draw),
        "dcn": lambda: networks.build_dcn(values, sizes, draw, spec.rank),
    }[spec.kind]()
    return _finish(keras.Model, row, values, recipe, draw, family)


def _finish(
    model: Any, row: Any, values: Any, recipe: Recipe, draw: Seeds, family: Family | None
) -> Any:
    """Returns the model with the output layers; members have one dense layer each."""
    assert recipe.label is not None
    if family is not None:
        return model(row, _apply_family(family, values, draw))
    last, *rest = output_layers(recipe.label, draw(), recipe.mixes_classes)
    several = len(values.shape) == 3
    if several:
        members = values.shape[1]
        values = networks.build_heads(last.units, last.activation, members, draw, values)
        values = keras_class(MeanOfMembers)(dtype="float32")(_apply(rest, values, members))
        return model(row, values)
    return model(row, _apply([last, *rest], values))


def _apply_family(family: Family, values: Any, draw: Seeds) -> Any:
    """Returns the parameters of a family; those of members are averaged for predictions."""
    keras, kin = runtime.keras(), likelihood(family)
    units = kin.predictors(family) + (family.dispersion == ROWS)
    if len(values.shape) == 3:
        heads = networks.build_heads(units, None, values.shape[1], draw, values)
        return keras_class(MeanOfMembers)(dtype="float32")(output_layer(family)(heads))
    first = keras.initializers.GlorotUniform(draw())
    dense = keras.layers.Dense(
        units, kernel_initializer=first, use_bias=kin.has_intercept(family), dtype="float32"
    )
    return output_layer(family)(dense(values))


def _apply(layers: list[Any], values: Any, members: int = 0) -> Any:
    keras = runtime.keras().layers
    for layer in layers:
        if members and isinstance(layer, keras.Reshape):
            layer = keras.Reshape((members, *layer.target_shape), dtype="float32")
        values = layer(values)
    return values


# Columns -----------------------------------------------------------------------------------------


def _numbers(row: Any, layout: TableLayout, facts: NumberFacts) -> Any:
    made = keras_class(TableNumbers)
    return made(layout.numbers, facts.centers, facts.scales, CLIP)(row)


def _tokens(
    row: Any,
    layout: TableLayout,
    facts: NumberFacts,
    spec: TabularSpec,
    sizes: Sizes,
    draw: Seeds,
) -> Any:
    """Returns a token of each number and of each factor, (rows, columns, units)."""
    layers, parts = runtime.keras().layers, []
    if layout.numbers:
        numbers = _numbers(row, layout, facts)
        parts.append(_embed_numbers(numbers, facts, spec, sizes.units, draw))
    if layout.factors:
        parts.append(_embed(row, layout.factors, sizes.units, draw))
    return layers.Concatenate(axis=1)(parts) if len(parts) > 1 else parts[0]


def _flat_parts(
    row: Any, layout: TableLayout, facts: NumberFacts, spec: TabularSpec, draw: Seeds
) -> tuple[list[Any], list[int]]:
    """Returns the columns' values side by side, and how many places each column has."""
    flatten = runtime.keras().layers.Flatten
    parts, chunks = [], []
    if layout.numbers:
        numbers, size = _numbers(row, layout, facts), 1
        if spec.numeric_embeddings != "none":
            size = NUMBER_SIZE[spec.numeric_embeddings]
            numbers = flatten()(_embed_numbers(numbers, facts, spec, size, draw))
        parts.append(numbers)
        chunks += [size] * len(layout.numbers)
    groups: dict[int, list[Factor]] = {}
    for factor in layout.factors:
        groups.setdefault(embedding_size(factor.levels, spec.embeddings), []).append(factor)
    for size, factors in groups.items():
        parts.append(flatten()(_embed(row, factors, size, draw)))
        chunks += [size] * len(factors)
    return parts, chunks


def _embed(row: Any, factors: Sequence[Factor], size: int, draw: Seeds) -> Any:
    """Returns embeddings of one size, (rows, factors, size), out of one table.

    One layer for many factors: a table with 40 of them takes half as long to trace. Unknown levels
    have zeros.
    """
    keras = runtime.keras()
    coding = keras_class(FactorCodes)(
        [factor.start for factor in factors],
        [factor.levels for factor in factors],
        [factor.onehot for factor in factors],
    )
    unknown = coding.unknown.tolist()
    # The limit is that of rtdl_revisiting_models.
    first = keras_class(LevelTable)(size**-0.5, unknown, draw())
    embedding = keras.layers.Embedding(unknown[-1] + 1, size, embeddings_initializer=first)
    return embedding(coding(row))


def _embed_numbers(
    numbers: Any, facts: NumberFacts, spec: TabularSpec, size: int, draw: Seeds
) -> Any:
    """Returns the embeddings of numbers, (rows, numbers, size)."""
    layers = runtime.keras().layers
    linear = keras_class(NumberTokens)
    if spec.numeric_embeddings == "none":
        return linear(size, draw())(numbers)
    if spec.numeric_embeddings == "periodic":
        embedded = keras_class(PeriodicEncoding)(seed=draw())(numbers)
        return _matrices(embedded, size, draw, activation="relu", bias_axes="fd")
    # Version "B" of the package rtdl_num_embeddings, for TabM: at first linear alone.
    embedded = keras_class(PiecewiseLinearEncoding)(facts.edges)(numbers)
    bent = _matrices(embedded, size, draw, kernel_initializer="zeros")
    return layers.Add()([linear(size, draw())(numbers), bent])


def _matrices(values: Any, size: int, draw: Seeds, **options: Any) -> Any:
    """Returns each number's encoding times a matrix of its own."""
    keras, limit = runtime.keras(), values.shape[-1] ** -0.5
    first = keras.initializers.RandomUniform(-limit, limit, draw())
    shape = (values.shape[1], size)
    options = {"kernel_initializer": first, **options}
    return keras.layers.EinsumDense("bfi,fid->bfd", shape, **options)(values)
