"""Coefficients of a model without hidden layers, on the scale of the data.

A layer below gives w'z + b, where z = (x - center) / scale is an encoded number; the family's
linear predictor is start + unit (w'z + b). On the data's scale a coefficient is therefore
unit w / scale, and the intercept start + unit b less the sum of coefficients times centers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.backend.tensor_ops import as_float64
from gpukeras.core.keras_types import Model
from gpukeras.data.arrays import column_name, divisors
from gpukeras.data.recipe.columns import ColumnRule
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    Encoding,
    InputsEncoding,
    Recipe,
    TableEncoding,
)
from gpukeras.models.families.counts import ZEROS
from gpukeras.models.families.keras_classes import family_layer
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import NONE, ROWS, Family
from gpukeras.models.targets import reads_logits

INTERCEPT = "(Intercept)"
JOINS = ("Flatten", "Concatenate")  # what may stand between the inputs and the dense layer
LINEAR = "linear"
# What makes probabilities of the predictors of a family that a loss implies.
ACTIVATIONS = {"binomial": "sigmoid", "multi_label": "sigmoid", "multinomial": "softmax"}


@dataclass(frozen=True)
class Term:
    """One coefficient.

    Args:
        term: Name of the encoded column, "(Intercept)", or "low|mid" for a threshold.
        estimate: Its value.
        predictor: Name of its linear predictor; "" if the model has one.
    """

    term: str
    estimate: float
    predictor: str = ""


@dataclass(frozen=True)
class Encoded:
    """An encoded column: its name, what was subtracted from it and divided by, and if it was seen.

    The column of a level without a training row has no coefficient: as `glm()` drops such levels.
    That of a number which is `constant` has one that is not known, NaN, as in `glm()`.
    """

    name: str
    center: float = 0.0
    scale: float = 1.0
    seen: bool = True
    constant: float | None = None


@dataclass(frozen=True)
class Linear:
    """The dense layer of a model whose linear predictors have no other weights.

    Args:
        dense: The layer.
        inputs: Names of the model's inputs, in the order in which the layer takes their columns.
    """

    dense: Any
    inputs: tuple[str, ...]


def find_linear(model: Model, family: Family | None) -> Linear | None:
    """Returns the dense layer of a model whose graph has nothing else that changes predictors.

    Args:
        model: The model.
        family: Its family, or the one that its loss implies; None for a model without one.
    """
    graph = keras_private.functional_of(model) or model
    tensors: Sequence[Any] = getattr(graph, "outputs", None) or ()
    if len(tensors) != 1 or not keras_private.has_nodes(graph):
        return None
    given = graph.input if isinstance(graph.input, Mapping) else {}
    keys = {id(tensor): str(key) for key, tensor in given.items()}
    layer, args = keras_private.origin_of(tensors[0])
    expected = _activation(model, family)
    while type(layer).__name__ == "FamilyOutput" or _is_rescaling(layer) and expected == LINEAR:
        layer, args = keras_private.origin_of(runtime.tree().flatten(args)[0])
    if type(layer).__name__ != "Dense" or getattr(layer.activation, "__name__", "") != expected:
        return None
    inputs = tuple(name for tensor in args for name in _follow(tensor, keys))
    return Linear(layer, inputs) if all(inputs) else None


def _activation(model: Model, family: Family | None) -> str:
    """Returns the activation of the layer whose weights are the coefficients of a family."""
    logits = reads_logits(getattr(model, "loss", None))
    if family is None or logits or family_layer(model) is not None:
        return LINEAR
    return ACTIVATIONS.get(family.name, LINEAR)


def _is_rescaling(layer: Any) -> bool:
    return type(layer).__name__ == "Rescaling"


def _follow(tensor: Any, keys: Mapping[int, str]) -> Iterator[str]:
    """Yields the inputs whose columns lie side by side in a tensor; "" for anything else."""
    operation, args = keras_private.origin_of(tensor)
    kind = type(operation).__name__
    if kind not in JOINS:
        yield keys.get(id(tensor), operation.name) if kind == "InputLayer" else ""
        return
    for each in runtime.tree().flatten(args):
        yield from _follow(each, keys)


def list_encoded(recipe: Recipe, inputs: Sequence[str] = ()) -> list[Encoded]:
    """Returns the columns of an encoded row; none for images and windows.

    Args:
        recipe: The encoding.
        inputs: Names of several inputs, in the order in which a layer takes them.
    """
    columns = list(_walk(recipe.features))
    places = {part.name: part.columns for part in recipe.parts}
    if not places:
        return columns
    if len(columns) != math.prod(recipe.shape) or not places.keys() >= set(inputs):
        return []
    return [column for name in inputs for column in columns[places[name]]]


def _walk(encoding: Encoding) -> Iterator[Encoded]:
    match encoding:
        case InputsEncoding():
            for part in encoding.inputs:
                for column in _walk(part.encoding):
                    yield replace(column, name=f"{part.name}${column.name}")
        case TableEncoding():
            for rule in encoding.columns:
                yield from _walk_column(rule)
        case ArrayEncoding() if len(encoding.shape) == 1:
            yield from _walk_array(encoding)


def _walk_column(rule: ColumnRule) -> Iterator[Encoded]:
    absent = {f"{rule.name}={level}" for level in rule.absent} if rule.onehot else ()
    # Only a number is standardised; weekdays and indicators beside it are not.
    first, *others = rule.features
    constant = rule.center if rule.scale == 0 else rule.constant
    yield Encoded(first, rule.center, rule.scale, first not in absent, constant)
    yield from (
        Encoded(name, seen=name not in absent or place >= len(rule.levels))
        for place, name in enumerate(others, start=1)
    )


def _walk_array(encoding: ArrayEncoding) -> Iterator[Encoded]:
    for place in range(encoding.row_shape[-1]):
        name = column_name(encoding.names, place)
        center = 0.0 if encoding.center is None else encoding.center[place]
        scale = 1.0 if encoding.scale is None else encoding.scale[place]
        yield Encoded(name, center, scale, constant=center if scale == 0 else None)
        if place in encoding.marked:
            yield Encoded(f"{name}=NA")


def read_coefficients(model: Model, recipe: Recipe, family: Family) -> tuple[Term, ...]:
    """Returns the coefficients on the scale of the data; NaN for those that rows do not tell.

    What a constant column adds to a predictor is part of the intercept. There are none for a model
    with hidden layers, or of several quantiles: only the lowest is linear.

    Args:
        model: The model.
        recipe: Its encoding.
        family: Its family, or the one that its loss implies.
    """
    linear = find_linear(model, family)
    if linear is None or len(family.quantiles) > 1:
        return ()
    dense, columns = linear.dense, list_encoded(recipe, linear.inputs)
    if len(columns) != dense.kernel.shape[0]:
        return ()
    kernel, bias = as_float64(dense.kernel), np.zeros(dense.kernel.shape[1])
    bias = as_float64(dense.bias) if dense.use_bias else bias
    starts, units = _predictor_scales(model, family, kernel.shape[1])
    slopes = kernel / divisors([[column.scale] for column in columns]) * units
    aliased = dense.use_bias or family.proportional or family.name in ("cox", "ordinal")
    unknown = [
        column.constant is not None and (aliased or column.constant == column.center)
        for column in columns
    ]
    shifts = np.array(list(map(_find_shift, columns, unknown))) @ slopes
    slopes[unknown] = np.nan
    names = _name_predictors(family, kernel.shape[1])
    terms = []
    for place, predictor in enumerate(names):
        if dense.use_bias:
            constant = starts[place] + units[place] * bias[place] - shifts[place]
            terms.append(Term(INTERCEPT, float(constant), predictor))
        terms += [
            Term(column.name, float(slope), predictor)
            for column, slope in zip(columns, slopes[:, place], strict=True)
            if column.seen
        ]
    own = _read_intercepts(model, family, float(starts[0] - shifts[0]))
    return (*own, *terms, *_read_thresholds(model, family, float(shifts[0])))


def _find_shift(column: Encoded, unknown: bool) -> float:
    """Returns where a column is 0 for the intercept, which takes an unknown coefficient's part."""
    constant = column.constant if unknown else None
    return column.center - (constant or 0.0)


def _predictor_scales(model: Model, family: Family, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns where each linear predictor starts, and the size of one unit of the layer below."""
    starts = np.zeros(count)
    units = np.ones(count)
    kin = likelihood(family)
    if family_layer(model) is None:
        for layer in keras_private.list_layers(model, include_self=False):
            if _is_rescaling(layer):
                starts, units = starts * layer.scale + layer.offset, units * layer.scale
        return starts, units
    if family.name in ("multinomial", "multi_label", "cox", "ordinal"):
        return starts - family.shift, units
    means = kin.predictors(family)
    starts[:means], units[:means] = kin.start(family) - family.shift, kin.unit(family)
    if family.name == "zero_inflated_poisson":
        starts[1] = ZEROS
    if family.dispersion == ROWS:
        zeros = runtime.keras().ops.zeros((1, 1))
        starts[-1] = math.log(float(as_float64(kin.dispersion(family, zeros, {})).item()))
    return starts, units


def _name_predictors(family: Family, count: int) -> list[str]:
    if count == 1:
        return [""]
    names = likelihood(family).names(family)
    if family.name == "zero_inflated_poisson":
        return ["log(rate)", "logit(zero)"]
    if family.dispersion == ROWS:
        second = likelihood(family).second or "precision"
        return [f"{family.link}(mean)" if family.link != "identity" else "mean", f"log({second})"]
    return names if len(names) == count else [str(place) for place in range(1, count + 1)]


def _read_intercepts(model: Model, family: Family, start: float) -> tuple[Term, ...]:
    """Returns the intercept of each interval of proportional effects."""
    layer = family_layer(model)
    if not family.proportional or layer is None:
        return ()
    names = likelihood(family).names(family)
    values = as_float64(layer.own["intercepts"])
    return tuple(
        Term(INTERCEPT, start + float(value), name)
        for name, value in zip(names, values, strict=True)
    )


def _read_thresholds(model: Model, family: Family, shift: float) -> tuple[Term, ...]:
    """Returns the thresholds of ordered classes, `zeta` of `MASS::polr()`."""
    layer = family_layer(model)
    if family.name != "ordinal" or layer is None:
        return ()
    values = as_float64(likelihood(family).thresholds(family, layer.own["thresholds"]))  # type: ignore[attr-defined]
    names = likelihood(family).names(family)
    return tuple(
        Term(f"{names[place]}|{names[place + 1]}", float(value) + shift)
        for place, value in enumerate(values.reshape(-1))
    )


def count_parameters(family: Family, rank: int, absent: int = 0) -> int:
    """Returns the number of estimated parameters of a model without hidden layers.

    That of `logLik()` in R: a one-hot factor has as many as levels but one, and so have classes.

    Args:
        family: The family.
        rank: Of the encoded rows with a column of ones.
        absent: How many classes have no training row.
    """
    if family.name in ("cox", "ordinal"):
        return rank - 1 + (family.columns - 1 if family.name == "ordinal" else 0)
    if family.proportional:
        return rank - 1 + len(family.breaks)
    kin = likelihood(family)
    predictors = kin.predictors(family)
    if family.name == "multinomial":
        predictors -= 1 + absent
    second = {NONE: 0, ROWS: rank}.get(family.dispersion, 1)
    variance = family.name == "gaussian" and family.dispersion == NONE
    return predictors * rank + second + variance
