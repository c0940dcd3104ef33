"""Reorders columns of matrices by name into the order of training, with NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError


def order_names(expected: Sequence[str], given: Sequence[str], arg: str) -> tuple[int, ...] | None:
    """Returns the positions of the expected columns among those given.

    Args:
        expected: The names in training, or none.
        given: The names of the new rows' columns, or none.
        arg: The user's name for the rows, for messages.

    Returns:
        Their positions, or None to take the columns as they are: the names are equal, or one side
        has no names, or names that are not unique.

    Raises:
        DataError: if an expected name is missing or occurs twice.
    """
    expected, given = tuple(expected), tuple(given)
    if not given or expected == given or not _tell_apart(expected):
        return None
    for name in expected:
        if given.count(name) != 1:
            found = "has more than one" if name in given else "lacks the"
            trained = "" if name in given else " that the model was trained on"
            raise DataError(
                f"`{arg}` {found} column `{name}`{trained}.",
                hint="A matrix without column names is taken by position.",
                arg=arg,
                column=name,
            )
    return tuple(given.index(name) for name in expected)


def order_columns(
    features: Mapping[str, Any], expected: Sequence[str], arg: str
) -> Mapping[str, Any]:
    """Returns an array, or labels, with the expected columns of its last axis only, in order.

    Args:
        features: Features or labels with `values` and perhaps `names`.
        expected: See `order_names()`.
        arg: See `order_names()`.
    """
    order = order_names(expected, features.get("names") or (), arg)
    values = features["values"]
    if order is None or not isinstance(values, np.ndarray) or values.ndim < 2:
        return features
    leading = order == tuple(range(len(order)))  # a view is enough
    columns = slice(len(order)) if leading else list(order)
    return {**features, "values": values[..., columns], "names": list(expected)}


def check_same_names(expected: Sequence[str], given: Sequence[str], arg: str) -> None:
    """Checks that encoded rows, which cannot be reordered, have the columns of training.

    Args:
        expected: The names in training, or none.
        given: The names of the encoded rows' columns, or none.
        arg: The user's name for the rows, for messages.

    Raises:
        DataError: if both sides have names, and these differ.
    """
    if given and _tell_apart(expected) and tuple(expected) != tuple(given):
        pairs = zip(expected, given, strict=False)
        one, other = next((pair for pair in pairs if pair[0] != pair[1]), (expected[-1], given[-1]))
        raise DataError(
            f"`{arg}` has the column `{other}` where training had `{one}`.",
            hint="Pass the matrix itself, or use gpu_dataset(recipe = ): columns are then found "
            "by their names.",
            arg=arg,
            column=one,
        )


def _tell_apart(names: Sequence[str]) -> bool:
    return bool(names) and all(names) and len(set(names)) == len(names)
