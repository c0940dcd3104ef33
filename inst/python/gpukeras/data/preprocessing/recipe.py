"""Defines recipes: how a user's values are encoded as numbers, as learned from the training rows.

A `Recipe` is plain data: names, levels, means and deviations. It is stored with the model that it
trained, so that prediction encodes a data frame as training did.

Features are `{kind: "array", values, names}` or `{kind: "columns", columns}`; the module `columns`
describes the columns, and `targets` the labels.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from gpukeras.core.errors import DataError
from gpukeras.data.arrays import column_name
from gpukeras.data.preprocessing.columns import ColumnRule
from gpukeras.data.preprocessing.targets import LabelRule
from gpukeras.data.preprocessing.windows import WindowRule

STRINGS = "strings"  # the recipe kind of texts that stay texts
WINDOWS = "windows"  # the recipe kind of windows of time series
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
        kind: "array", "strings", "columns", "images", "inputs" (several inputs, see `multi_input`),
            "windows" (of the rows of a data frame) or "batches" (passed on unchanged).
        shape: Shape of one row of features as the model takes it.
        columns: One rule per column, for "columns" and "windows".
        center: Subtracted from an array's last axis, or None.
        scale: Divides an array's or an image's last axis, or None.
        fill: Replaces missing values along an array's last axis, or None if none are imputed.
        marked: Columns of an array's last axis that an indicator of missing values follows.
        label: Rule of the labels, or None.
        formula: R's formula as text, "" without one.
        na: The policy for missing values: "error", "impute" or "drop".
        names: Column names of an array, for messages.
        interpolation: How images were resized, "" for no images.
        path_column: The column of a data frame that holds the paths of images, or "".
        crop_to_aspect_ratio: Whether images were first cropped to the aspect ratio of `shape`.
        uncropped: Height and width of rows before their crop to `shape`, or None without a crop.
        mixed: Whether training used mixup, so that classes are one-hot columns.
        mapped: Whether the user's `map` function, which no recipe holds, transforms the rows.
        groups: The columns of each input, in the order of `columns`; none for a single input.
        inputs: The encodings of "inputs", in their order in a row.
        listed: Whether the inputs were given without names: the model gets a list of them.
        windows: How rows become windows, or None.
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
    path_column: str = ""
    crop_to_aspect_ratio: bool = False
    uncropped: tuple[int, int] | None = None
    mixed: bool = False
    mapped: bool = False
    groups: tuple[Group, ...] = ()
    inputs: tuple[Input, ...] = ()
    listed: bool = False
    windows: WindowRule | None = None

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
        if self.inputs:
            return (sum(math.prod(part.recipe.staged_shape) for part in self.inputs),)
        return (*(self.uncropped or self.shape[:-1]), self.shape[-1])

    @property
    def raw_shape(self) -> tuple[int, ...]:
        """Shape of one row of an array as given, before indicators and a crop."""
        return (*self.staged_shape[:-1], self.staged_shape[-1] - len(self.marked))

    @property
    def images(self) -> Input | None:
        """The input of image files that stands beside others; None if there is none."""
        found = (part for part in self.inputs if part.recipe.kind == "images")
        return next(found, None)

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


IMAGE_TABLE = "image table"  # no kind of its own: "inputs", of which one is images
KINDS = {
    "columns": "a data frame",
    "images": "image files",
    STRINGS: "texts",
    WINDOWS: "a data frame of time series",
    "inputs": "a named list of inputs",
    IMAGE_TABLE: "a data frame with a column of images",
}


def _compare_kinds(expected: str, found: str) -> str:
    array = "numbers" if STRINGS in (expected, found) else "a matrix or array"
    known, given = KINDS.get(expected, array), KINDS.get(found, array)
    return f"{known}, as in training, not {given.replace('named ', '')}"


def check_form(
    recipe: Recipe, kind: str, shape: tuple[int, ...], arg: str, rows: int | None = None
) -> None:
    """Checks that features have the kind and the row shape of the recipe's training rows.

    Args:
        recipe: The learned encoding.
        kind: The features' kind.
        shape: Shape of one row of the features.
        arg: The user's name for the features, for messages.
        rows: Rows of an array in memory, of which R may have dropped dimensions.

    Raises:
        DataError: if either differs.
    """
    if kind != recipe.kind:
        expected = IMAGE_TABLE if recipe.images is not None else recipe.kind
        column = recipe.kind == "columns" and kind == "array" and shape == (1,)
        hint = 'One column stays a data frame by data[, "column", drop = FALSE].' if column else ""
        raise DataError(f"`{arg}` must be {_compare_kinds(expected, kind)}.", hint=hint, arg=arg)
    if tuple(shape) != recipe.raw_shape:
        raise DataError(
            f"Each row of `{arg}` must have shape {recipe.raw_shape}, not {tuple(shape)}.",
            hint=_explain_dropped(recipe.raw_shape, tuple(shape), rows),
            arg=arg,
        )


def _explain_dropped(expected: tuple[int, ...], found: tuple[int, ...], rows: int | None) -> str:
    """Says how R keeps dimensions of 1, if an array has lost some."""
    size = math.prod(expected)
    if rows is None or size not in (math.prod(found), rows * math.prod(found)):
        return ""
    commas = ", " * len(expected)
    one = size == rows * math.prod(found)
    if not one and len(found) >= len(expected):
        return ""
    what, which = ("One row stays an array", "1") if one else ("Rows keep their shape", "rows")
    return f"{what} by x[{which}, {commas}drop = FALSE]."


def check_unmarked(recipe: Recipe, arg: str) -> None:
    """Refuses rows of a file, pipeline or sparse matrix for a recipe with missing indicators."""
    if recipe.marked:
        raise DataError(
            f"`{arg}` must be a matrix or array: training imputed missing values and marked them.",
            arg=arg,
        )


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
        raise lacking_column(missing[0], arg)


def lacking_column(name: str, arg: str) -> DataError:
    """Returns the error of data that lack a column of the training rows."""
    message = f"`{arg}` lacks the column `{name}` that the model was trained on."
    return DataError(message, arg=arg, column=name)


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
