"""Checks whether labels and weights fit an output and its loss, by shape and value.

Keras lets shapes differ by a last dimension of 1, and broadcasts a dimension of 1. It also lets
arrays of other ranks broadcast, which would compare each label with the outputs of all rows: this
is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import keras_private
from gpukeras.core.errors import DataError, ModelError, RefusedRowsError
from gpukeras.core.messages import count_of
from gpukeras.data.recipe.decoding import HALF, HIGHEST, ZERO
from gpukeras.data.recipe.targets import LabelRule, describe_label

Shape = tuple[int | None, ...]

SPARSE, CATEGORICAL = "sparsecategoricalcrossentropy", "categoricalcrossentropy"
BINARY = ("binarycrossentropy", "binaryfocalcrossentropy")
HINGE = ("hinge", "squaredhinge")  # 0 lies between their classes -1 and 1
# Losses that take a label for each unit. Custom losses, and some of Keras', take others.
ELEMENTWISE = frozenset(
    ("meansquarederror", "mse", "meanabsoluteerror", "mae", "meanabsolutepercentageerror", "mape")
    + ("meansquaredlogarithmicerror", "msle", "huber", "logcosh", "poisson", "kldivergence", "kld")
    + ("categoricalhinge", "cosinesimilarity", "binarycrossentropy", *HINGE)
    + ("binaryfocalcrossentropy", "categoricalfocalcrossentropy", CATEGORICAL)
)
# The least and the largest label that a loss is made for; others take any number.
SUPPORTS: Mapping[str, tuple[float, float]] = {
    "poisson": (0.0, math.inf),
    "meansquaredlogarithmicerror": (0.0, math.inf),
    "msle": (0.0, math.inf),
    "binarycrossentropy": (0.0, 1.0),
    "binaryfocalcrossentropy": (0.0, 1.0),
}
OVERLAPS = frozenset(("dice", "tversky"))  # they take a label for each unit, and return one number
ROUNDING = 1e-3  # of probabilities


def check_target(
    label: LabelRule,
    output: Shape,
    loss: str,
    arg: str,
    layer: str = "The output layer",
) -> None:
    """Checks that labels fit an output and its loss.

    Args:
        label: The labels' rule.
        output: Shape of one row of the output, with at least one dimension if it is to be checked.
        loss: Its name, see `loss_name()`.
        arg: The user's name for the labels, for messages.
        layer: The output's name in messages.

    Raises:
        ModelError: if shapes differ, or labels are not columns.
        DataError: if labels lie outside of what the loss and the output can take.
    """
    if loss in ELEMENTWISE | OVERLAPS | {SPARSE}:
        _check_meaning(label, loss, arg)
    if loss == SPARSE and output and output[-1] is not None:
        _check_sparse(label, output, arg, layer)
    elif loss == CATEGORICAL and len(output) == 1 and label.kind != "matrix":
        raise ModelError(
            "The loss categorical_crossentropy needs one column a class, "
            f"but `{arg}` holds {describe_label(label)}.",
            hint='Compile with "sparse_categorical_crossentropy".',
            arg="model",
        )
    elif loss == "binarycrossentropy" and _beyond_one(label):
        raise _range_error(label, "0 to 1", "binary_crossentropy", arg)
    elif loss in ELEMENTWISE | OVERLAPS:
        _check_elements(label, output, arg, layer)


def _check_meaning(label: LabelRule, loss: str, arg: str) -> None:
    """Refuses labels that a loss takes as numbers, though they are none."""
    if label.survival:
        raise DataError(
            f"`{arg}` holds survival times, but the loss of `model` would take time and status as "
            "numbers.",
            hint='Use gpu_mlp(family = "cox") or "discrete_time", or a loss of your own.',
            arg=arg,
        )
    classes = label.kind == "class" and label.units > 2
    if classes and loss not in (SPARSE, CATEGORICAL, *BINARY, "categoricalfocalcrossentropy"):
        raise DataError(
            f"`{arg}` has {count_of(label.units, 'class')} without numbers, but the loss of "
            "`model` takes numbers.",
            hint='Compile with "sparse_categorical_crossentropy" and an output unit a class; '
            "as.integer() makes numbers of levels.",
            arg=arg,
        )


def _check_sparse(label: LabelRule, output: Shape, arg: str, layer: str) -> None:
    if len(output) > 1 and not agree(label.row_shape, output[:-1]):
        raise _shape_error(layer, output, output[:-1], label, arg)
    _check_class_range(label, output, arg)


def _check_elements(label: LabelRule, output: Shape, arg: str, layer: str) -> None:
    if len(output) == 1 and output[0] not in (None, label.columns):
        raise ModelError(
            f"{layer} has {count_of(output[0], 'unit')}, but `{arg}` has {label.columns} a row.",
            hint=f"Change the units, or the loss if `{arg}` holds classes.",
            arg="model",
        )
    if output and not agree(label.row_shape, output):
        raise _shape_error(layer, output, output, label, arg)


def agree(shape: Shape, other: Shape) -> bool:
    """Whether Keras treats two shapes of a row as the same."""
    if abs(len(shape) - len(other)) == 1:
        longer, shorter = sorted((shape, other), key=len, reverse=True)
        return longer[-1] in (None, 1) and agree(longer[:-1], shorter)
    return len(shape) == len(other) and all(
        left == right or None in (left, right) or 1 in (left, right)
        for left, right in zip(shape, other, strict=True)
    )


def check_weights(shape: tuple[int, ...], output: Shape, loss: str, arg: str = "weights") -> None:
    """Checks that weights fit the losses of an output: one per row, step or pixel, like the loss.

    Args:
        shape: Shape of a row's weights.
        output: Shape of a row of the output.
        loss: The loss's name, see `loss_name()`.
        arg: The user's name for the weights, for messages.

    Raises:
        DataError: if not.
    """
    if loss not in ELEMENTWISE | {SPARSE} or not output or agree(shape, output[:-1]):
        return
    raise DataError(
        f"`{arg}` has {_say(shape)} a row, but a row has {_say(output[:-1])} losses.",
        hint="Give an array of that shape, rows first; a dimension of 1 holds for all: "
        f"array(weights, c(length(weights), {', '.join('1' * (len(output) - 1))})) weighs rows."
        if len(output) > 1
        else "Give one weight a row.",
        arg=arg,
    )


def _shape_error(
    layer: str, output: Shape, expected: Shape, label: LabelRule, arg: str
) -> ModelError:
    return ModelError(
        f"{layer} gives {_say(output)} numbers a row, so its loss takes {_say(expected)} labels, "
        f"but `{arg}` has {_say(label.row_shape)}.",
        hint="Change the layer, the loss, or the shape of the labels.",
        arg="model",
    )


def _say(shape: Shape) -> str:
    return " x ".join("any" if size is None else str(size) for size in shape) or "1"


def loss_name(loss: Any) -> str:
    """Returns the name of a loss of Keras' own, see `keras_name()`.

    A loss that ignores a class takes labels beyond the output's, so it is treated as unknown: "".
    """
    loss = _only(loss)
    return "" if getattr(loss, "ignore_class", None) is not None else keras_name(loss)


def keras_name(loss: Any) -> str:
    """Returns the name of a loss of Keras' own without underscores, "" for any other.

    It is that of what the loss computes: users may give a loss any name, and their own functions
    those of Keras'.
    """
    loss = _only(loss)
    if not isinstance(loss, str):
        function = loss.func if isinstance(loss, partial) else getattr(loss, "fn", loss)
        code = loss.func if isinstance(loss, partial) else getattr(type(loss), "call", loss)
        own = all(_is_keras(each) for each in (function, code))
        loss = getattr(function, "__name__", "") if own else ""
    name = loss.lower().replace("_", "")
    return BINARY[0] if name == "bce" else name


def _is_keras(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("keras.")


def reads_logits(loss: Any) -> bool:
    """Whether a loss takes logits, outputs before their softmax or sigmoid."""
    loss = _only(loss)
    given = loss.keywords if isinstance(loss, partial) else keras_private.loss_options(loss)
    return bool(getattr(loss, "from_logits", given.get("from_logits", False)))


def _only(loss: Any) -> Any:
    """Returns the loss of a list or dict of one."""
    if isinstance(loss, (list, tuple, Mapping)) and len(loss) == 1:
        (loss,) = loss.values() if isinstance(loss, Mapping) else loss
    return loss


def choose_reading(label: LabelRule | None, loss: Any, units: int) -> str:
    """Chooses how classes are read from an output, see `decoding`.

    Args:
        label: The rule of its labels, or None if they are unknown.
        loss: The loss of the output, as it was compiled.
        units: Length of the output's last axis.

    Returns:
        `HIGHEST`, `HALF` or `ZERO`; "" for a regression.
    """
    name = keras_name(loss)
    if name == SPARSE:
        return HIGHEST
    if name in BINARY:
        if label is not None and not (label.whole and 0 <= _lowest(label) <= _highest(label) <= 1):
            return ""
        return ZERO if reads_logits(loss) else HALF
    if label is None:
        return ""
    if label.kind in ("class", "binary"):
        single = ZERO if name in HINGE else HALF
        return single if units == 1 else HIGHEST
    return HIGHEST if label.counts and units > 1 and name not in ELEMENTWISE else ""


def check_probabilities(reading: str, loss: Any, values: np.ndarray) -> None:
    """Refuses to read classes from what may be logits: of a loss that nobody knows.

    Args:
        reading: How classes are read, see `choose_reading()`.
        loss: The loss of the output, as it was compiled.
        values: The output.

    Raises:
        ModelError: if some values are no probabilities.
    """
    if reading == HALF and not keras_name(loss) and not are_probabilities(values):
        raise ModelError(
            "`model` gives numbers outside of 0 to 1, and its loss does not say whether they are "
            "logits of classes.",
            hint="Compile it with BinaryCrossentropy(from_logits = TRUE) of Keras, or use "
            '`type = "response"`.',
            arg="model",
        )


def are_probabilities(values: np.ndarray) -> bool:
    """Whether all values lie between 0 and 1, but for rounding; NaN counts as one that does."""
    return not ((values < -ROUNDING).any() or (values > 1 + ROUNDING).any())


def _check_class_range(label: LabelRule, output: Shape, arg: str) -> None:
    units = output[-1] or 0
    if (label.kind == "matrix" and len(output) == 1) or not label.whole:
        raise DataError(
            f"`{arg}` must hold one class a row for sparse_categorical_crossentropy, "
            f"not {describe_label(label) if label.kind == 'matrix' else 'fractions'}.",
            hint='If each column is a class, compile with "categorical_crossentropy".'
            if label.kind == "matrix"
            else "",
            arg=arg,
        )
    if not 0 <= _lowest(label) <= _highest(label) < units:
        raise _range_error(
            label, f"0 to {units - 1}", f"an output of {count_of(units, 'unit')}", arg
        )


def _beyond_one(label: LabelRule) -> bool:
    """Whether labels lie outside of 0 to 1; with several columns, only if whole, as 0 and 255."""
    inside = 0 <= _lowest(label) <= _highest(label) <= 1
    return not inside and (label.kind != "matrix" or label.whole)


def _range_error(label: LabelRule, expected: str, why: str, arg: str) -> RefusedRowsError:
    low, high = _lowest(label), _highest(label)
    hint = "Check the number of output units."
    if low == 1:
        hint = f"Labels that count from 1 as in R: use `{arg} - 1`, or a factor."
    return RefusedRowsError(
        f"`{arg}` has labels from {low:g} to {high:g}, but {why} needs {expected}.",
        hint=hint,
        arg=arg,
    )


def _lowest(label: LabelRule) -> float:
    return label.minimum if label.measured else 0.0


def _highest(label: LabelRule) -> float:
    return label.maximum if label.measured else {"class": label.units - 1.0}.get(label.kind, 1.0)
