"""What is learned from the training rows to turn a user's values into numbers, and applied again.

A `Recipe` is plain data: names, levels, means and deviations. It is tied to the model it trained,
so that prediction encodes a data frame as training did.

Features come as `{kind: "array", values, names}` or `{kind: "columns", columns}`, whose columns
`columns` describes; labels as `labels` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arrays import aligned_empty, check_features, column_name, moments, stage_float32
from .columns import ColumnRule, Learning, bake_column, learn_column, take_rows
from .errors import DataError
from .labels import LabelRule
from .missing import learn_fill, observed


@dataclass(frozen=True)
class Recipe:
    """The encoding of features and labels.

    Args:
        kind: "array" or "columns".
        shape: Shape of one row of features.
        columns: One rule a column, for "columns".
        center: Subtracted from an array's last axis, or None.
        scale: Divides an array's last axis, or None.
        fill: Replaces missing values along an array's last axis, or None where none are imputed.
        marked: Columns of an array's last axis that an indicator of missing values follows.
        label: Rule of the labels, or None.
        formula: R's formula as text, "" without one.
        na: What happens to missing values: "error", "impute" or "drop".
        names: Column names of an array, for messages.
    """

    kind: str
    shape: tuple[int, ...]
    columns: tuple[ColumnRule, ...] = ()
    center: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    fill: tuple[float, ...] | None = None
    marked: tuple[int, ...] = ()
    label: LabelRule | None = None
    formula: str = ""
    na: str = "error"
    names: tuple[str, ...] = field(default=(), compare=False)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features of a data frame."""
        return tuple(name for rule in self.columns for name in rule.features)

    @property
    def known(self) -> frozenset[str]:
        """Names of a data frame's columns that it takes."""
        return frozenset(rule.name for rule in self.columns)

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of one row of an array as it is given, before indicators."""
        return (*self.shape[:-1], self.shape[-1] - len(self.marked))

    @property
    def indicators(self) -> tuple[str, ...]:
        """Names of the columns with an indicator of missing values."""
        marked = tuple(column_name(self.names, column) for column in self.marked)
        return (*marked, *(rule.name for rule in self.columns if rule.indicator))


# Features ----------------------------------------------------------------------------------------


def learn_array(
    x: np.ndarray,
    keep: np.ndarray,
    scale: bool,
    names: Sequence[str],
    na: str = "error",
    arg: str = "x",
) -> Recipe:
    """The recipe of an array; statistics from the rows where `keep` is true."""
    shape, names = tuple(x.shape[1:]), tuple(names)
    if na == "impute":
        return _learn_imputing(x, keep, scale, names, arg)
    if not scale:
        return Recipe("array", shape, na=na, names=names)
    center, deviation = moments(x, keep)
    return Recipe("array", shape, center=tuple(center), scale=tuple(deviation), na=na, names=names)


def _learn_imputing(
    x: np.ndarray, keep: np.ndarray, scale: bool, names: tuple[str, ...], arg: str
) -> Recipe:
    """Column by column, so that the memory beyond the array is that of one."""
    kind = {"kind": "logical" if x.dtype == bool else "numeric"}
    whole = int(keep.sum()) * (x[0].size // x.shape[-1])
    fill, center, deviation, marked = [], [], [], []
    for column in range(x.shape[-1]):
        there = observed(x[..., column], keep, column_name(names, column), arg)
        fill.append(learn_fill(kind, there))
        marked += [column] if len(there) < whole else []
        if scale:
            middle, spread = moments(there.reshape(-1, 1), np.ones(len(there), dtype=bool))
            center.append(float(middle[0]))
            deviation.append(float(spread[0]))
    return Recipe(
        "array",
        (*x.shape[1:-1], x.shape[-1] + len(marked)),
        center=tuple(center) if scale else None,
        scale=tuple(deviation) if scale else None,
        fill=tuple(fill),
        marked=tuple(marked),
        na="impute",
        names=names,
    )


def learn_columns(
    columns: Sequence[Mapping[str, Any]],
    keep: np.ndarray,
    scale: bool,
    encode: str,
    arg: str = "x",
    na: str = "error",
    complete: np.ndarray | None = None,
) -> Recipe:
    """The recipe of a data frame.

    Args:
        columns: The columns, see `columns`.
        keep: Which of the rows taken are training rows: statistics come from them.
        scale: Standardise numbers.
        encode: "onehot" or "codes".
        arg: The user's name for the data, for messages.
        na: What happens to missing values.
        complete: Which rows are taken, or None for all.
    """
    if not columns:
        raise DataError(f"`{arg}` has no feature columns.", arg=arg)
    _check_names([column["name"] for column in columns], arg)
    how = Learning(keep, scale, encode == "onehot", na == "impute", complete, arg)
    rules = tuple(learn_column(column, how) for column in columns)
    shape = (sum(len(rule.features) for rule in rules),)
    return Recipe("columns", shape, columns=rules, na=na)


def bake(
    recipe: Recipe,
    features: Mapping[str, Any],
    arg: str = "x",
    complete: np.ndarray | None = None,
) -> np.ndarray:
    """Encodes features by a recipe into aligned float32, rows first.

    Args:
        recipe: What was learned.
        features: The rows.
        arg: The user's name for them, for messages.
        complete: Which rows are taken, or None for all.

    Raises:
        DataError: for a missing column, a new level, a changed type or shape, values that are
            missing or infinite. The error names the column.
    """
    if recipe.kind == features["kind"] == "array":
        return _bake_array(recipe, features["values"], arg, complete)
    check_form(recipe, features["kind"], recipe.raw_shape, arg)
    return _bake_columns(recipe, features["columns"], arg, complete)


def check_form(recipe: Recipe, kind: str, shape: tuple[int, ...], arg: str) -> None:
    """Features have the kind and the shape of one row that the recipe was learned from."""
    if kind != recipe.kind:
        wanted = "a data frame" if recipe.kind == "columns" else "a matrix or array"
        raise DataError(f"`{arg}` must be {wanted}, as in training.", arg=arg)
    if tuple(shape) != recipe.raw_shape:
        raise DataError(
            f"Each row of `{arg}` must have shape {recipe.raw_shape}, not {tuple(shape)}.", arg=arg
        )


def check_unmarked(recipe: Recipe, arg: str) -> None:
    """Refuses rows of a file or a sparse matrix for a model that takes indicators beside them."""
    if recipe.marked:
        raise DataError(
            f"`{arg}` must be a matrix or array: training imputed missing values and marked them.",
            arg=arg,
        )


def count_rows(features: Mapping[str, Any], arg: str = "x") -> int:
    """Rows of checked features; refuses none."""
    if features["kind"] == "array":
        return len(check_features(features["values"], arg))
    rows = len(features["columns"][0]["values"]) if features["columns"] else 0
    if rows == 0:
        raise DataError(f"`{arg}` has no {'rows' if features['columns'] else 'columns'}.", arg=arg)
    return rows


def _bake_array(
    recipe: Recipe, values: np.ndarray, arg: str, complete: np.ndarray | None
) -> np.ndarray:
    x = check_features(values, arg)
    check_form(recipe, "array", x.shape[1:], arg)
    learned = (recipe.center, recipe.scale, recipe.fill)
    center, scale, fill = (None if part is None else np.array(part) for part in learned)
    return stage_float32(
        x, center, scale, recipe.names, arg, complete=complete, fill=fill, marked=recipe.marked
    )


def _bake_columns(
    recipe: Recipe,
    columns: Sequence[Mapping[str, Any]],
    arg: str,
    complete: np.ndarray | None,
) -> np.ndarray:
    given = {column["name"]: column for column in columns}
    missing = [rule.name for rule in recipe.columns if rule.name not in given]
    if missing:
        raise DataError(
            f"`{arg}` lacks the column `{missing[0]}` that the model was trained on.",
            arg=arg,
            column=missing[0],
        )
    rows = len(columns[0]["values"]) if complete is None else int(complete.sum())
    staged, start = aligned_empty((rows, *recipe.shape)), 0
    for rule in recipe.columns:
        width = len(rule.features)
        column = take_rows(given[rule.name], complete)
        bake_column(rule, column, staged[:, start : start + width], arg)
        start += width
    return staged


def _check_names(names: Sequence[str], arg: str) -> None:
    repeated = [name for position, name in enumerate(names) if name in names[:position]]
    if repeated:
        raise DataError(
            f"`{arg}` has more than one column `{repeated[0]}`.",
            hint="Give the columns different names.",
            arg=arg,
            column=repeated[0],
        )


def same_encoding(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes turn the same values into the same numbers."""

    def essence(recipe: Recipe) -> tuple[Any, ...]:
        label = recipe.label
        labels = None if label is None else (label.kind, label.levels, label.units)
        numbers = (recipe.center, recipe.scale, recipe.fill, recipe.marked)
        return (recipe.kind, recipe.shape, recipe.columns, numbers, labels)

    return essence(one) == essence(other)
