"""What is learned from the training rows to turn a user's values into numbers, and applied again.

A `Recipe` is plain data: names, levels, means and deviations. It is tied to the model it trained,
so that prediction encodes a data frame as training did.

Columns come as dicts `{name, kind, values, levels}`: `kind` is "numeric", "integer", "logical",
"factor" or "character"; the last two hold R's 1-based codes in `values` and their `levels`.
Labels come as one such dict, or with kind "matrix".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arrays import (
    aligned_empty,
    check_features,
    check_lengths,
    column_error,
    moments,
    row_blocks,
    stage_float32,
)
from .errors import DataError
from .labels import CATEGORIES, LabelRule, recode

MAX_ONEHOT = 1000  # levels; beyond this, one-hot columns are a mistake more often than a wish
MAX_IDENTIFIERS = 50  # a text column may have this many different values even if all differ


@dataclass(frozen=True)
class ColumnRule:
    """How one column of a data frame becomes numbers.

    Args:
        name: The column's name.
        kind: "number" or "category".
        levels: Levels of a category, in order.
        onehot: A category becomes one 0/1 column a level, otherwise one column of codes from 0.
        center: Subtracted from a number.
        scale: Divides a number after centring.
    """

    name: str
    kind: str
    levels: tuple[str, ...] = ()
    onehot: bool = True
    center: float = 0.0
    scale: float = 1.0

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the feature columns it makes."""
        if self.kind == "category" and self.onehot:
            return tuple(f"{self.name}={level}" for level in self.levels)
        return (self.name,)


@dataclass(frozen=True)
class Recipe:
    """The encoding of features and labels.

    Args:
        kind: "array" or "columns".
        shape: Shape of one row of features.
        columns: One rule a column, for "columns".
        center: Subtracted from an array's last axis, or None.
        scale: Divides an array's last axis, or None.
        label: Rule of the labels, or None.
        formula: R's formula as text, "" without one.
        names: Column names of an array, for messages.
    """

    kind: str
    shape: tuple[int, ...]
    columns: tuple[ColumnRule, ...] = ()
    center: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    label: LabelRule | None = None
    formula: str = ""
    names: tuple[str, ...] = field(default=(), compare=False)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features of a data frame."""
        return tuple(name for rule in self.columns for name in rule.features)


# Features ----------------------------------------------------------------------------------------


def learn_array(x: np.ndarray, keep: np.ndarray, scale: bool, names: Sequence[str]) -> Recipe:
    """The recipe of an array; statistics from the rows where `keep` is true."""
    shape, names = tuple(x.shape[1:]), tuple(names)
    if not scale:
        return Recipe("array", shape, names=names)
    center, deviation = moments(x, keep)
    return Recipe("array", shape, center=tuple(center), scale=tuple(deviation), names=names)


def learn_columns(
    columns: Sequence[Mapping[str, Any]],
    keep: np.ndarray,
    scale: bool,
    encode: str,
    arg: str = "x",
) -> Recipe:
    """The recipe of a data frame; statistics from the rows where `keep` is true.

    Levels are taken from all rows: they are the column's type, not a statistic.
    """
    if not columns:
        raise DataError(f"`{arg}` has no feature columns.", arg=arg)
    _check_names([column["name"] for column in columns], arg)
    rules = tuple(_learn_column(column, keep, scale, encode == "onehot", arg) for column in columns)
    return Recipe("columns", (sum(len(rule.features) for rule in rules),), columns=rules)


def bake(recipe: Recipe, features: Mapping[str, Any], arg: str = "x") -> np.ndarray:
    """Encodes features by a recipe into aligned float32, rows first.

    Raises:
        DataError: for a missing column, a new level, a changed type or shape, values that are
            missing or infinite. The error names the column.
    """
    if features["kind"] != recipe.kind:
        wanted = "a data frame" if recipe.kind == "columns" else "a matrix or array"
        raise DataError(f"`{arg}` must be {wanted}, as in training.", arg=arg)
    if recipe.kind == "array":
        return _bake_array(recipe, features["values"], arg)
    return _bake_columns(recipe, features["columns"], arg)


def count_rows(features: Mapping[str, Any], arg: str = "x") -> int:
    """Rows of checked features; refuses none."""
    if features["kind"] == "array":
        return len(check_features(features["values"], arg))
    rows = len(features["columns"][0]["values"]) if features["columns"] else 0
    if rows == 0:
        raise DataError(f"`{arg}` has no {'rows' if features['columns'] else 'columns'}.", arg=arg)
    return rows


def _bake_array(recipe: Recipe, values: np.ndarray, arg: str) -> np.ndarray:
    x = check_features(values, arg)
    if tuple(x.shape[1:]) != recipe.shape:
        raise DataError(
            f"Each row of `{arg}` must have shape {recipe.shape}, not {tuple(x.shape[1:])}.",
            arg=arg,
        )
    center = None if recipe.center is None else np.array(recipe.center)
    scale = None if recipe.scale is None else np.array(recipe.scale)
    return stage_float32(x, center, scale, recipe.names, arg)


def _bake_columns(recipe: Recipe, columns: Sequence[Mapping[str, Any]], arg: str) -> np.ndarray:
    given = {column["name"]: column for column in columns}
    missing = [rule.name for rule in recipe.columns if rule.name not in given]
    if missing:
        raise DataError(
            f"`{arg}` lacks the column `{missing[0]}` that the model was trained on.",
            arg=arg,
            column=missing[0],
        )
    rows = len(given[recipe.columns[0].name]["values"])
    staged, start = aligned_empty((rows, *recipe.shape)), 0
    for rule in recipe.columns:
        width = len(rule.features)
        _bake_column(rule, given[rule.name], staged[:, start : start + width], arg)
        start += width
    return staged


def _bake_column(rule: ColumnRule, column: Mapping[str, Any], out: np.ndarray, arg: str) -> None:
    found = "category" if column["kind"] in CATEGORIES else "number"
    if found != rule.kind:
        raise DataError(
            f"Column `{rule.name}` of `{arg}` is a {found} where training had a {rule.kind}.",
            arg=arg,
            column=rule.name,
        )
    if rule.kind == "number":
        out[:, 0] = _finite(column, arg, rule.center, rule.scale)
        return
    codes = recode(column, rule.levels, arg)
    if rule.onehot:
        for rows in row_blocks(len(out), out.itemsize * out.shape[1]):
            out[rows] = codes[rows, None] == np.arange(out.shape[1])
    else:
        out[:, 0] = codes


def _learn_column(
    column: Mapping[str, Any], keep: np.ndarray, scale: bool, onehot: bool, arg: str
) -> ColumnRule:
    name, kind = column["name"], column["kind"]
    check_lengths(len(keep), len(column["values"]), f"{arg}${name}", arg)
    if kind in CATEGORIES:
        return ColumnRule(name, "category", _check_levels(column, onehot, arg), onehot)
    if kind == "logical" or not scale:
        return ColumnRule(name, "number")
    values = _finite(column, arg)
    center, deviation = moments(values.reshape(-1, 1), keep)
    return ColumnRule(name, "number", center=float(center[0]), scale=float(deviation[0]))


def _check_names(names: Sequence[str], arg: str) -> None:
    repeated = [name for position, name in enumerate(names) if name in names[:position]]
    if repeated:
        raise DataError(
            f"`{arg}` has more than one column `{repeated[0]}`.",
            hint="Give the columns different names.",
            arg=arg,
            column=repeated[0],
        )


def _check_levels(column: Mapping[str, Any], onehot: bool, arg: str) -> tuple[str, ...]:
    name, levels, rows = column["name"], tuple(column["levels"]), len(column["values"])
    identifiers = column["kind"] == "character" and len(levels) > max(MAX_IDENTIFIERS, rows / 2)
    if not levels or identifiers:
        found = "no levels" if not levels else f"{len(levels)} different texts in {rows} rows"
        raise DataError(
            f"Column `{name}` of `{arg}` has {found}: it cannot be a category.",
            hint="Drop the column, or make it a factor with the levels you mean.",
            arg=arg,
            column=name,
        )
    if onehot and len(levels) > MAX_ONEHOT:
        raise DataError(
            f"Column `{name}` of `{arg}` has {len(levels)} levels, too many for one-hot columns.",
            hint='Use `encode = "codes"`, or merge rare levels.',
            arg=arg,
            column=name,
        )
    return levels


def _finite(
    column: Mapping[str, Any], arg: str, center: float = 0.0, scale: float = 1.0
) -> np.ndarray:
    """A number column in float64, centred and scaled, refused if float32 cannot hold it."""
    values = np.asarray(column["values"], dtype=np.float64).reshape(-1)
    missing, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    if missing or infinite:
        raise column_error(column["name"], arg, missing=missing, infinite=infinite)
    values = (values - center) / scale
    large = int((np.abs(values) > np.finfo(np.float32).max).sum())
    if large:
        raise column_error(column["name"], arg, large=large)
    return values


def same_encoding(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes turn the same values into the same numbers."""

    def essence(recipe: Recipe) -> tuple[Any, ...]:
        label = recipe.label
        labels = None if label is None else (label.kind, label.levels, label.units)
        return (recipe.kind, recipe.shape, recipe.columns, recipe.center, recipe.scale, labels)

    return essence(one) == essence(other)
