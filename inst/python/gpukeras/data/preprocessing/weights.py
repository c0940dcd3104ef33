"""Computes the weight of each row from the user's weights and class weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.options import check_number
from gpukeras.data.arrays import aligned_empty, check_lengths
from gpukeras.data.plan import balanced_weights
from gpukeras.data.preprocessing.targets import LabelRule


def take_weights(
    weights: np.ndarray | None, rows: int, complete: np.ndarray | None
) -> np.ndarray | None:
    """Checks the user's weights and returns those of the rows taken.

    Args:
        weights: The weights of all rows, or None.
        rows: The number of rows.
        complete: Mask of the rows to take, or None for all.

    Raises:
        DataError: if a weight is negative or not finite, or their number differs from `rows`.
    """
    if weights is None:
        return None
    checked = _check_weights(weights, rows)
    return checked if complete is None else checked[complete]


def row_weights(
    weights: np.ndarray | None,
    class_weight: str | Mapping[str, float] | None,
    label: LabelRule,
    codes: np.ndarray,
    keep: np.ndarray,
) -> np.ndarray | None:
    """Returns one weight, or an array of weights, per row; None if all rows weigh the same.

    Args:
        weights: The user's weights, or None.
        class_weight: "balanced" or a weight for each level, for training rows only; or None.
        label: The labels' rule.
        codes: The encoded labels.
        keep: Mask of the training rows.

    Raises:
        SpecError: if `class_weight` does not fit the labels.
    """
    if weights is None and class_weight is None:
        return None
    out = aligned_empty((len(codes),) if weights is None else weights.shape)
    out[...] = 1.0 if weights is None else weights
    if class_weight is not None:
        codes = codes.reshape(len(codes), -1)[:, 0]
        by_class = _class_weights(class_weight, label, codes[keep])
        own = by_class[codes[keep].astype(np.int64)]
        out[keep] *= own.reshape(-1, *[1] * (out.ndim - 1))
    return out


def _check_weights(weights: np.ndarray, rows: int) -> np.ndarray:
    values = np.asarray(weights, dtype=np.float64)
    check_lengths(rows, len(values), "weights")
    if not np.isfinite(values).all() or values.min() < 0:
        raise DataError(
            "`weights` must be finite and at least 0.",
            hint="Remove rows with missing or negative weights.",
            arg="weights",
        )
    return values


def _class_weights(
    requested: str | Mapping[str, float], label: LabelRule, codes: np.ndarray
) -> np.ndarray:
    if label.outputs:
        raise SpecError(
            "`class_weight` cannot tell whose classes to weigh: `y` has several outputs.",
            hint="Give `weights`, one a row.",
            arg="class_weight",
        )
    if label.kind not in ("class", "binary") and not label.counts:
        raise SpecError(
            f"`class_weight` needs labels that are classes, not a {label.kind}.",
            arg="class_weight",
        )
    if not (label.levels or label.logical):
        return _number_weights(requested, int(label.maximum), codes)
    levels = label.levels or ("FALSE", "TRUE")
    if requested == "balanced":
        return balanced_weights(np.bincount(codes.astype(np.int64), minlength=len(levels)))
    if not isinstance(requested, Mapping) or set(requested) != set(levels):
        raise SpecError(
            '`class_weight` must be "balanced" or one number named after each level.',
            hint=f"Levels are {', '.join(levels[:10])}.",
            arg="class_weight",
        )
    return np.array([check_number("class_weight", requested[level], 0.0) for level in levels])


def _number_weights(
    requested: str | Mapping[str, float], highest: int, codes: np.ndarray
) -> np.ndarray:
    """Returns the weight of each class from 0 to the highest; one that is not named weighs 1."""
    if requested == "balanced":
        return balanced_weights(np.bincount(codes.astype(np.int64), minlength=highest + 1))
    named = requested if isinstance(requested, Mapping) else {"": 0.0}
    if not all(str(name).isdecimal() for name in named):
        raise SpecError(
            '`class_weight` must be "balanced" or numbers named after classes.',
            hint=f"Classes are whole numbers, here from 0 to {highest}.",
            arg="class_weight",
        )
    given = {int(name): check_number("class_weight", named[name], 0.0) for name in named}
    return np.array([given.get(number, 1.0) for number in range(highest + 1)])
