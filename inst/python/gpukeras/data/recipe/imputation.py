"""Handles missing values: finds complete rows, and learns the replacements.

A missing number is NaN; a missing category is R's code 0. Uses NumPy only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.arrays import check_features, column_fault, column_name
from gpukeras.data.recipe.targets import CATEGORIES, MASKS, count_levels, each_label


def is_missing(column: Mapping[str, Any]) -> np.ndarray:
    """Returns a mask of the missing values of a column or of a vector of labels."""
    values = np.asarray(column["values"]).reshape(-1)
    return values == 0 if column["kind"] in CATEGORIES else np.isnan(values)


def count_missing(
    features: Mapping[str, Any], rows: int, known: Collection[str] | None, arg: str
) -> tuple[np.ndarray, dict[str, int]]:
    """Returns a mask of complete rows of features in memory, and missing counts by column.

    Args:
        features: The features as they come from R.
        rows: Their number of rows.
        known: The columns of a data frame to check, or None for all.
        arg: The features' name, for messages.
    """
    complete, counts = np.ones(rows, dtype=bool), {}
    for name, missing in _each_missing(features, known, arg):
        complete &= ~missing
        counts[f"Column `{name}` of `{arg}`"] = int(missing.sum())
    return complete, counts


def choose_complete(
    complete: np.ndarray, counts: dict[str, int], labels: Mapping[str, Any] | None, arg: str
) -> np.ndarray:
    """Returns a mask of the rows without a missing feature or label.

    Args:
        complete: Mask of the rows without a missing feature.
        counts: Rows with a missing value, by the column's name in a sentence.
        labels: The labels as they come from R, or None.
        arg: The features' name, for messages.

    Raises:
        DataError: if no row is complete; names the column that most rows lack.
    """
    for own, part in () if labels is None else each_label(labels):
        missing = _miss_label(part)
        complete = complete & ~missing
        counts[f"`{own}`"] = int(missing.sum())
    if not complete.any():
        worst = max(counts, key=counts.__getitem__)
        raise DataError(
            f'`na = "drop"` leaves no row: each of {len(complete)} lacks a value.',
            hint=f"{worst} lacks the most: {counts[worst]}.",
            arg=arg,
        )
    return complete


def _each_missing(
    features: Mapping[str, Any], known: Collection[str] | None, arg: str
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields each column's name and a mask of the rows that lack it."""
    if features["kind"] != "array":
        columns = features["columns"]
        yield from (
            (c["name"], is_missing(c)) for c in columns if known is None or c["name"] in known
        )
        return
    x, names = check_features(features["values"], arg), features.get("names") or ()
    within = tuple(range(1, x.ndim - 1))
    for column in range(x.shape[-1]):  # R's columns are contiguous
        yield column_name(names, column), np.isnan(x[..., column]).any(axis=within)


def check_labels(labels: Mapping[str, Any]) -> None:
    """Refuses missing labels if features are imputed, as an imputed label carries no information.

    Raises:
        DataError: if a label is missing; gives the count of rows.
    """
    for arg, part in each_label(labels):
        missing = _miss_label(part)
        count = int(missing.sum())
        if count:
            raise DataError(
                f"`{arg}` is missing in {count} of {count_of(len(missing), 'row')}: "
                f"labels are never imputed.",
                hint='Use `na = "drop"`, or remove those rows first.',
                arg=arg,
                column=arg,
                missing=count,
            )


def miss_labels(labels: Mapping[str, Any]) -> np.ndarray:
    """Returns a mask of the rows that lack a label, or one of several."""
    parts = [_miss_label(part) for _, part in each_label(labels)]
    return np.logical_or.reduce(parts)


def _miss_label(labels: Mapping[str, Any]) -> np.ndarray:
    if labels["kind"] == MASKS:
        return np.asarray(labels["values"].missing)
    if labels["kind"] == "matrix":
        return np.isnan(labels["values"]).reshape(len(labels["values"]), -1).any(axis=1)
    return is_missing(labels)


def observed(values: np.ndarray, keep: np.ndarray, name: str, arg: str) -> np.ndarray:
    """Returns the non-missing values of the training rows, in float64.

    Args:
        values: The values of all rows.
        keep: Mask of the training rows.
        name: The column's name, for messages.
        arg: The user's name for the data, for messages.

    Raises:
        DataError: if there are none; names the column.
    """
    kept = values[keep].reshape(-1).astype(np.float64, copy=False)
    there = kept[~np.isnan(kept)]
    if not len(there):
        raise nothing_observed(name, arg)
    return there


def nothing_observed(name: str, arg: str) -> DataError:
    """Returns the error for a column without a value to learn from."""
    problem = "is missing in all training rows: nothing can be imputed."
    return column_fault(name, arg, problem, "Drop the column.")


def learn_fill(column: Mapping[str, Any], there: np.ndarray) -> float:
    """Returns the fill for a missing number: the median, or a logical's mode (FALSE on ties)."""
    if column["kind"] == "logical":
        return float(there.mean() > 0.5)
    return float(np.median(there))


def learn_fill_level(column: Mapping[str, Any], keep: np.ndarray, arg: str) -> str:
    """Returns the fill for a missing category: the most frequent level, the first one on ties.

    Args:
        column: The category.
        keep: Mask of the training rows.
        arg: The user's name for the data, for messages.

    Raises:
        DataError: if all training rows lack a value; names the column.
    """
    counts = count_levels(column, keep)
    if not counts.sum():
        raise nothing_observed(column["name"], arg)
    return str(column["levels"][int(counts.argmax())])
