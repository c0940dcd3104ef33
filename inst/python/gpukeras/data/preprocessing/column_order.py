"""Columns of matrices, put in the order that training had by their names. NumPy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError


def order_names(requested: Sequence[str], given: Sequence[str], arg: str) -> tuple[int, ...] | None:
    """Where the columns wanted are among those given.

    Args:
        requested: The names in training, or none.
        given: The names of new rows' columns, or none.
        arg: The user's name for the rows, for messages.

    Returns:
        Their places, or None where they are taken as they come: both have the same names, or one
        of them has none that tell its columns apart.

    Raises:
        DataError: if a name wanted is not there, or is there twice.
    """
    requested, given = tuple(requested), tuple(given)
    if not given or requested == given or not _tell_apart(requested):
        return None
    for name in requested:
        if given.count(name) != 1:
            found = "has more than one" if name in given else "lacks the"
            trained = "" if name in given else " that the model was trained on"
            raise DataError(
                f"`{arg}` {found} column `{name}`{trained}.",
                hint="A matrix without column names is taken by position.",
                arg=arg,
                column=name,
            )
    return tuple(given.index(name) for name in requested)


def order_columns(
    features: Mapping[str, Any], requested: Sequence[str], arg: str
) -> Mapping[str, Any]:
    """An array, or labels, with the columns of its last axis by name, and no others.

    Args:
        features: With `values` and maybe `names`.
        requested: See `order_names()`.
        arg: See `order_names()`.
    """
    order = order_names(requested, features.get("names") or (), arg)
    values = features["values"]
    if order is None or not isinstance(values, np.ndarray) or values.ndim < 2:
        return features
    leading = order == tuple(range(len(order)))  # of which a view will do
    columns = slice(len(order)) if leading else list(order)
    return {**features, "values": values[..., columns], "names": list(requested)}


def check_same_names(requested: Sequence[str], given: Sequence[str], arg: str) -> None:
    """Encoded rows, which cannot be put in order any more, have the columns of training.

    Raises:
        DataError: if the names of both are known and differ.
    """
    if given and _tell_apart(requested) and tuple(requested) != tuple(given):
        pairs = zip(requested, given, strict=False)
        one, other = next(
            (pair for pair in pairs if pair[0] != pair[1]), (requested[-1], given[-1])
        )
        raise DataError(
            f"`{arg}` has the column `{other}` where training had `{one}`.",
            hint="Pass the matrix itself, or use gpu_dataset(recipe = ): columns are then found "
            "by their names.",
            arg=arg,
            column=one,
        )


def _tell_apart(names: Sequence[str]) -> bool:
    return bool(names) and all(names) and len(set(names)) == len(names)
