"""Learns from the training rows how to encode a user's values as numbers, and applies it.

A `Recipe` is plain data: names, levels, means and deviations. It is stored with the model that it
trained, so that prediction encodes a data frame as training did.

Features are `{kind: "array", values, names}` or `{kind: "columns", columns}`; the module `columns`
describes the columns, and `targets` the labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.data.arrays import (
    Notes,
    aligned_empty,
    check_features,
    column_name,
    moments,
    stage_float32,
)
from gpukeras.data.preprocessing.columns import (
    ColumnRule,
    Learning,
    learn_column,
    take_rows,
    transform_column,
)
from gpukeras.data.preprocessing.imputation import learn_fill, observed
from gpukeras.data.preprocessing.targets import LabelRule
from gpukeras.data.preprocessing.text_vectorization import TextSpec

STRINGS = "strings"  # the recipe kind of texts that stay texts
AS_IS = "batches"  # the recipe kind of batches that are passed on unchanged


@dataclass(frozen=True)
class Group:
    """Columns of a data frame that form one of the model's inputs.

    Args:
        name: The model's name for the input.
        columns: The columns' names.
    """

    name: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Input:
    """One of several inputs that were given as a list.

    Args:
        name: The model's name for the input.
        recipe: The input's encoding.
    """

    name: str
    recipe: Recipe


@dataclass(frozen=True)
class Recipe:
    """The encoding of features and labels.

    Args:
        kind: "array", "strings", "columns", "images", "inputs" (several inputs, see `multi_input`)
            or "batches" (passed on unchanged).
        shape: Shape of one row of features as the model takes it.
        columns: One rule per column, for "columns".
        center: Subtracted from an array's last axis, or None.
        scale: Divides an array's or an image's last axis, or None.
        fill: Replaces missing values along an array's last axis, or None if none are imputed.
        marked: Columns of an array's last axis that an indicator of missing values follows.
        label: Rule of the labels, or None.
        formula: R's formula as text, "" without one.
        na: The policy for missing values: "error", "impute" or "drop".
        names: Column names of an array, for messages.
        interpolation: How images were resized, "" for no images.
        crop_to_aspect_ratio: Whether images were first cropped to the aspect ratio of `shape`.
        uncropped: Height and width of rows before their crop to `shape`, or None without a crop.
        mixed: Whether training used mixup, so that classes are one-hot columns.
        mapped: Whether the user's `map` function, which no recipe holds, transforms the rows.
        groups: The columns of each input, in the order of `columns`; none for a single input.
        inputs: The encodings of "inputs", in their order in a row.
        listed: Whether the inputs were given without names: the model gets a list of them.
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
    interpolation: str = ""
    crop_to_aspect_ratio: bool = False
    uncropped: tuple[int, int] | None = None
    mixed: bool = False
    mapped: bool = False
    groups: tuple[Group, ...] = ()
    inputs: tuple[Input, ...] = ()
    listed: bool = False

    @property
    def has_texts(self) -> bool:
        """Whether the model takes texts."""
        return self.kind == STRINGS or any(part.recipe.has_texts for part in self.inputs)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features of a data frame."""
        return tuple(name for rule in self.columns for name in rule.features)

    @property
    def known(self) -> frozenset[str]:
        """Names of the data frame columns that it encodes; `<input>$<column>` for an input."""
        own = frozenset(rule.name for rule in self.columns)
        return own.union(
            f"{part.name}${name}" for part in self.inputs for name in part.recipe.known
        )

    @property
    def staged_shape(self) -> tuple[int, ...]:
        """Shape of one encoded row as stored, before the device crops it."""
        return (*(self.uncropped or self.shape[:-1]), self.shape[-1])

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of one row of an array as given, before indicators and a crop."""
        return (*self.staged_shape[:-1], self.staged_shape[-1] - len(self.marked))

    @property
    def mixes_classes(self) -> bool:
        """Whether the model takes classes as one-hot columns, because training uses mixup."""
        return self.mixed and self.label is not None and self.label.kind == "class"

    @property
    def target(self) -> LabelRule | None:
        """Rule of the labels as the model takes them."""
        if self.label is None or not self.mixes_classes:
            return self.label
        return LabelRule("matrix", units=self.label.units, names=self.label.levels)

    @property
    def indicators(self) -> tuple[str, ...]:
        """Names of the columns with an indicator of missing values."""
        marked = tuple(column_name(self.names, column) for column in self.marked)
        own = (rule.name for rule in self.columns if rule.indicator)
        inputs = (f"{part.name}${name}" for part in self.inputs for name in part.recipe.indicators)
        return (*marked, *own, *inputs)


# Features ----------------------------------------------------------------------------------------


def learn_array(
    x: np.ndarray,
    keep: np.ndarray,
    scale: bool,
    names: Sequence[str],
    *,
    na: str = "error",
    arg: str = "x",
) -> Recipe:
    """Learns the recipe of an array.

    Args:
        x: The array.
        keep: Mask of the training rows, from which statistics come.
        scale: Standardise numbers.
        names: Column names, or none.
        na: The policy for missing values.
        arg: The user's name for the array, for messages.

    Raises:
        DataError: for a column without a value to impute from.
    """
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
    """Learns column by column, which needs extra memory for one column only."""
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
    encode: str | Mapping[str, str],
    *,
    arg: str = "x",
    na: str = "error",
    complete: np.ndarray | None = None,
    hash_bins: int = 64,
    text: TextSpec | Mapping[str, Any] | None = None,
) -> Recipe:
    """Learns the recipe of a data frame.

    Args:
        columns: The columns, see `columns`.
        keep: Mask of the training rows among the rows taken, from which statistics come.
        scale: Standardise numbers.
        encode: "onehot", "codes" or "hash", or a mapping of category names to these; other
            categories are "onehot".
        arg: The user's name for the data, for messages.
        na: The policy for missing values.
        complete: Mask of the rows to take, or None for all.
        hash_bins: Bins of a hashed category.
        text: The text columns and their encoding, or None.

    Raises:
        SpecError: if `encode` or `text` does not fit the columns; names the column.
        DataError: for a column that cannot be a feature; names the column.
    """
    text = TextSpec.from_dict(text) if isinstance(text, Mapping) else text
    how = Learning(keep, scale, encode, na == "impute", complete, arg, hash_bins, text)
    return learn_rules(columns, how, na)


def learn_rules(
    columns: Sequence[Mapping[str, Any]],
    how: Learning,
    na: str,
    learn: Callable[[Mapping[str, Any], Learning], ColumnRule] = learn_column,
) -> Recipe:
    """Learns the recipe of columns by `learn`; see `learn_columns()`.

    Args:
        columns: The columns.
        how: The options and rows to learn from.
        na: The policy for missing values.
        learn: Learns the rule of one column.

    Raises:
        SpecError: if an option does not fit the columns; names the column.
        DataError: if there are no columns, if two share a name, or for a column that cannot be a
            feature.
    """
    if not columns:
        raise DataError(f"`{how.arg}` has no feature columns.", arg=how.arg)
    check_names([column["name"] for column in columns], how.arg)
    how.check(columns)
    rules = tuple(learn(column, how) for column in columns)
    shape = (sum(len(rule.features) for rule in rules),)
    return Recipe("columns", shape, columns=rules, na=na)


def transform(
    recipe: Recipe,
    features: Mapping[str, Any],
    arg: str = "x",
    complete: np.ndarray | None = None,
    notes: Notes | None = None,
) -> np.ndarray:
    """Encodes features by a recipe into aligned float32, rows first.

    Args:
        recipe: The learned encoding.
        features: The rows.
        arg: The user's name for the rows, for messages.
        complete: Mask of the rows to take, or None for all.
        notes: Collects whole numbers that lose digits, or None.

    Raises:
        DataError: for a missing column, a new level, a changed type or shape, or values that are
            missing or infinite; names the column.
    """
    if recipe.kind == features["kind"] == "array":
        return _transform_array(recipe, features["values"], arg, complete, notes)
    check_form(recipe, features["kind"], recipe.raw_shape, arg)
    return _transform_columns(recipe, features["columns"], arg, complete, notes)


KINDS = {
    "columns": "a data frame",
    "images": "image files",
    STRINGS: "texts",
    "inputs": "a named list of inputs",
}


def _compare_kinds(requested: str, found: str) -> str:
    array = "numbers" if STRINGS in (requested, found) else "a matrix or array"
    known, given = KINDS.get(requested, array), KINDS.get(found, array)
    return f"{known}, as in training, not {given.replace('named ', '')}"


def check_form(recipe: Recipe, kind: str, shape: tuple[int, ...], arg: str) -> None:
    """Checks that features have the kind and the row shape of the recipe's training rows.

    Args:
        recipe: The learned encoding.
        kind: The features' kind.
        shape: Shape of one row of the features.
        arg: The user's name for the features, for messages.

    Raises:
        DataError: if either differs.
    """
    if kind != recipe.kind:
        raise DataError(f"`{arg}` must be {_compare_kinds(recipe.kind, kind)}.", arg=arg)
    if tuple(shape) != recipe.raw_shape:
        raise DataError(
            f"Each row of `{arg}` must have shape {recipe.raw_shape}, not {tuple(shape)}.", arg=arg
        )


def check_unmarked(recipe: Recipe, arg: str) -> None:
    """Refuses rows of a file, pipeline or sparse matrix for a recipe with missing indicators."""
    if recipe.marked:
        raise DataError(
            f"`{arg}` must be a matrix or array: training imputed missing values and marked them.",
            arg=arg,
        )


def count_rows(features: Mapping[str, Any], arg: str = "x") -> int:
    """Checks features and returns their number of rows; refuses features without columns."""
    if features["kind"] == "array":
        return len(check_features(features["values"], arg))
    if not features["columns"]:
        raise DataError(f"`{arg}` has no columns.", arg=arg)
    return len(features["columns"][0]["values"])


def _transform_array(
    recipe: Recipe,
    values: np.ndarray,
    arg: str,
    complete: np.ndarray | None,
    notes: Notes | None,
) -> np.ndarray:
    x = check_features(values, arg)
    check_form(recipe, "array", x.shape[1:], arg)
    learned = (recipe.center, recipe.scale, recipe.fill)
    center, scale, fill = (None if part is None else np.array(part) for part in learned)
    return stage_float32(
        x,
        center,
        scale,
        recipe.names,
        arg,
        complete=complete,
        fill=fill,
        marked=recipe.marked,
        notes=notes,
    )


def _transform_columns(
    recipe: Recipe,
    columns: Sequence[Mapping[str, Any]],
    arg: str,
    complete: np.ndarray | None,
    notes: Notes | None,
) -> np.ndarray:
    given = {column["name"]: column for column in columns}
    check_columns(recipe, given, arg)
    rows = len(columns[0]["values"]) if complete is None else int(complete.sum())
    staged, start = aligned_empty((rows, *recipe.shape)), 0
    for rule in recipe.columns:
        width = len(rule.features)
        column = take_rows(given[rule.name], complete)
        transform_column(rule, column, staged[:, start : start + width], arg, notes)
        start += width
    return staged


def check_columns(recipe: Recipe, names: Collection[str], arg: str) -> None:
    """Checks that all columns of a recipe are present.

    Args:
        recipe: The learned encoding.
        names: Names of the columns given.
        arg: The user's name for the data, for messages.

    Raises:
        DataError: if a column is missing; names it.
    """
    given = set(names)
    missing = [rule.name for rule in recipe.columns if rule.name not in given]
    if missing:
        raise DataError(
            f"`{arg}` lacks the column `{missing[0]}` that the model was trained on.",
            arg=arg,
            column=missing[0],
        )


def check_names(names: Sequence[str], arg: str) -> None:
    """Raises DataError if two columns share a name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(
            f"`{arg}` has more than one column `{repeated[0]}`.",
            hint="Give the columns different names.",
            arg=arg,
            column=repeated[0],
        )
