"""Builds a multilayer perceptron for a dataset."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import find_reason
from gpukeras.core.options import MlpSpec
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.recipe.recipe import Part, Recipe
from gpukeras.data.recipe.targets import LabelRule
from gpukeras.models.families.build import Extras, find_extras, settle_family
from gpukeras.models.families.keras_classes import compile_arguments, output_layer
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import ROWS, Family
from gpukeras.system import host

BYTES_A_WEIGHT = 16  # itself, its gradient, and the two moments of Adam


def build_mlp(data: Dataset, options: Mapping[str, Any]) -> Any:
    """Builds a compiled multilayer perceptron whose input and output fit the dataset.

    For numbers the output is one linear unit per label, with mean squared error. It is rescaled by
    the training labels' mean and standard deviation, so that the model learns standardized labels
    and predicts in the labels' own unit. For two classes or 0/1 it is one sigmoid unit with binary
    cross-entropy, for more classes a softmax. The output is float32 under mixed precision, as Keras
    advises. Each of several inputs has a branch, each of several outputs a head, by their names.
    With a family, the output and the loss are the family's, see `families`. A last input named
    "offset" has no branch: it is added to the family's linear predictor. Nor has one named "strata"
    after it, of the family "cox".

    Args:
        data: A dataset with labels.
        options: Fields of `MlpSpec`.

    Returns:
        A compiled `keras.Sequential`; a functional model for several inputs or outputs.

    Raises:
        SpecError: for a bad option or a name that Keras does not know.
        DataError: if the dataset has no labels, or such as the family does not take.
    """
    spec, recipe = MlpSpec.from_dict(options), data.recipe
    if recipe.label is None:
        raise DataError("`data` has no labels to learn.", hint="Give `y`.", arg="data")
    if recipe.features.has_texts:
        raise SpecError(
            "gpu_mlp() makes models that take numbers, but `data` has texts.",
            hint="Encode them by gpu_dataset(text = ).",
            arg="data",
        )
    _check_size(recipe, spec)
    family, extras = settle_family(data, spec.family), find_extras(recipe)
    keras = runtime.keras()
    try:
        several = recipe.parts or recipe.label.outputs
        if several:
            model = _connect(recipe, recipe.label, spec, family, extras)
        else:
            model = _stack(recipe, recipe.label, spec, family)
        optimizer = keras.optimizers.get(spec.optimizer)
    except (ValueError, TypeError) as error:
        raise SpecError(f"Keras refused the options: {find_reason(error)}.") from error
    if spec.learning_rate is not None:
        optimizer.learning_rate = spec.learning_rate
    loss, metrics = choose_losses(recipe.label, recipe.mixes_classes, family)
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics)
    return model


def _check_size(recipe: Recipe, spec: MlpSpec) -> None:
    """Refuses layers that do not fit into memory: the kernel would silently end the process.

    Raises:
        SpecError: naming the memory they need, with gradients and the optimizer's moments.
    """
    widths = [
        math.prod(recipe.shape),
        *spec.units,
        0 if recipe.label is None else recipe.label.units,
    ]
    weights = sum(width * (other + 1) for other, width in pairwise(widths))
    needed, free = BYTES_A_WEIGHT * weights, host.read_free_memory()
    if free is not None and needed > free:
        raise SpecError(
            f"`units` makes {weights:,} weights: training them takes {needed / 2**30:,.0f} GiB, "
            f"and {free / 2**30:,.1f} GiB are free.",
            hint="Use fewer units.",
            arg="units",
        )


def _stack(recipe: Recipe, label: LabelRule, spec: MlpSpec, family: Family | None) -> Any:
    """Stacks the layers in a Sequential model."""
    keras = runtime.keras()
    layers = [keras.Input(recipe.shape)]
    layers += [keras.layers.Flatten()] if len(recipe.shape) > 1 else []
    layers += _hidden_layers(spec)
    if family is not None:
        return keras.Sequential([*layers, _predictor_layer(family, spec), output_layer(family)])
    last = output_layers(label, spec.seed, recipe.mixes_classes, penalty=spec.last_penalty)
    return keras.Sequential(layers + last)


def _predictor_layer(family: Family, spec: MlpSpec) -> Any:
    """Returns the layer of the linear predictors of a family."""
    kind = likelihood(family)
    units = kind.predictors(family) + (family.dispersion == ROWS)
    first = _initializer(spec.seed, -1)
    return runtime.keras().layers.Dense(
        units,
        kernel_initializer=first,
        use_bias=kind.has_intercept(family),
        dtype="float32",
        **_punish(spec.last_penalty),
    )


def _connect(
    recipe: Recipe, label: LabelRule, spec: MlpSpec, family: Family | None, extras: Extras
) -> Any:
    """Connects a branch for each input, the shared hidden layers, and a head for each output.

    A branch is one dense layer with as many units as the first hidden layer, so that an input with
    many numbers does not dominate one with few. A single input has no branch, nor have inputs
    without hidden layers. An offset and the number of a stratum go to the family's layer.
    """
    keras, parts = runtime.keras(), recipe.parts
    parts = parts or (Part("features", recipe.shape, slice(None)),)
    inputs = [keras.Input(part.shape, name=part.name) for part in parts]
    flat = [
        tensor if len(part.shape) == 1 else keras.layers.Flatten()(tensor)
        for part, tensor in zip(parts, inputs, strict=True)
    ]
    last = flat[len(flat) - extras.count :]
    flat = flat[: len(flat) - extras.count]
    hidden = flat[0]
    if len(flat) > 1:
        joined = (
            [_branch(spec, place, tensor) for place, tensor in enumerate(flat)]
            if spec.units
            else flat
        )
        hidden = keras.layers.Concatenate()(joined)
    for layer in _hidden_layers(spec):
        hidden = layer(hidden)
    if family is not None:
        linear = _predictor_layer(family, spec)(hidden)
        heads = [output_layer(family)([linear, *last] if last else linear)]
    elif not label.outputs:
        heads = [_apply(output_layers(label, spec.seed, penalty=spec.last_penalty), hidden)]
    else:
        heads = [
            _apply(
                output_layers(
                    output.rule, spec.seed + place, name=output.name, penalty=spec.last_penalty
                ),
                hidden,
            )
            for place, output in enumerate(label.outputs)
        ]
    return keras.Model(
        inputs if recipe.parts else inputs[0],
        heads if label.outputs else heads[0],
    )


def _branch(spec: MlpSpec, place: int, tensor: Any) -> Any:
    layers, units = runtime.keras().layers, spec.units[0]
    dense = _dense(units, spec.seed + 31, place, spec.penalty)
    return layers.Activation(spec.activation)(dense(tensor))


def _apply(layers: list[Any], tensor: Any) -> Any:
    for layer in layers:
        tensor = layer(tensor)
    return tensor


def choose_losses(label: LabelRule, mixed: bool, family: Family | None) -> tuple[Any, Any]:
    """Returns loss and metrics of labels, or of a family; for several outputs by their names."""
    if family is not None:
        return compile_arguments(family)
    if not label.outputs:
        return choose_loss(label, mixed)
    chosen = {output.name: choose_loss(output.rule) for output in label.outputs}
    losses = {name: loss for name, (loss, _) in chosen.items()}
    return losses, {name: metrics for name, (_, metrics) in chosen.items()}


def choose_loss(label: LabelRule, mixed: bool = False) -> tuple[str, list[str]]:
    """Returns loss and metrics for a kind of label; mixed labels have one column per class.

    Raises:
        DataError: for survival times, which need a family.
    """
    if mixed:
        return "categorical_crossentropy", ["accuracy"]
    if label.survival:
        raise DataError(
            "Survival times need a model with a family, and a single output.",
            hint='Use gpu_mlp(family = "cox"), or "discrete_time".',
            arg="data",
        )
    if label.kind in ("number", "matrix"):
        return "mean_squared_error", ["mean_absolute_error"]
    if label.kind == "binary" or label.units == 2:
        return "binary_crossentropy", ["accuracy"]
    return "sparse_categorical_crossentropy", ["accuracy"]


def _hidden_layers(spec: MlpSpec) -> list[Any]:
    layers, made = runtime.keras().layers, []
    for position, units in enumerate(spec.units):
        made.append(_dense(units, spec.seed, position, spec.penalty))
        made += [layers.BatchNormalization()] if spec.batch_norm else []
        made.append(layers.Activation(spec.activation))
        if spec.dropout:
            made.append(layers.Dropout(spec.dropout, seed=spec.seed + position))
    return made


def _dense(units: int, seed: int, position: int, penalty: float) -> Any:
    first = _initializer(seed, position)
    return runtime.keras().layers.Dense(units, kernel_initializer=first, **_punish(penalty))


def _punish(penalty: float) -> dict[str, Any]:
    return {"kernel_regularizer": runtime.keras().regularizers.L2(penalty)} if penalty else {}


def output_layers(
    label: LabelRule,
    seed: int,
    mixed: bool = False,
    name: str | None = None,
    penalty: float = 0.0,
) -> list[Any]:
    """Returns the layers of an output; the last one has the output's name if there are several."""
    layers = runtime.keras().layers
    two = label.kind == "binary" or (label.kind == "class" and label.units == 2 and not mixed)
    units = 1 if two else label.units
    activation = {"number": "linear", "matrix": "linear"}.get(
        label.kind, "sigmoid" if two else "softmax"
    )
    last = {"dtype": "float32", **({} if name is None else {"name": name})}
    own = last if label.kind != "number" else {"dtype": "float32"}
    shaped = len(label.row_shape) > 1  # the last layer reshapes its numbers
    own = {"dtype": "float32"} if shaped else own
    own |= _punish(penalty)
    dense = layers.Dense(units, activation, kernel_initializer=_initializer(seed, -1), **own)
    if shaped:
        return [dense, layers.Reshape(label.row_shape, **last)]
    if label.kind != "number":
        return [dense]
    return [dense, layers.Rescaling(label.scale, label.center, **last)]


def _initializer(seed: int, position: int) -> Any:
    return runtime.keras().initializers.GlorotUniform(seed=(seed + 1009 * (position + 2)) % 2**31)
