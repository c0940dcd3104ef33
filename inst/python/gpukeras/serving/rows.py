"""Rows out of a request: found by name, checked against the recipe, joined with those of others.

{"rows": [{"a": 1, "b": "x"}, ...]}             a data frame, row by row
{"columns": {"a": [1, ...], "b": ["x", ...]}}   a data frame, column by column
{"x": [[1, 2], ...]}                            a matrix or array
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, ModelError
from gpukeras.core.messages import count_of
from gpukeras.data.arrays import column_error
from gpukeras.data.recipe.columns import ColumnRule
from gpukeras.data.recipe.datetimes import read_zone
from gpukeras.data.recipe.imputation import is_missing
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe, TableEncoding, lacking_column
from gpukeras.serving.columns import json_kind, to_column

ROWS, COLUMNS, ARRAY = "rows", "columns", "x"
MOST_AXES = 5  # of an array: rows, depth, height, width and channels
NUMBERS = {int, float, bool, type(None)}  # what JSON has for one
# What stands in place of a formula where R's package recipes prepared the rows: its steps.
PREPARED = re.compile("recipe [0-9a-f]{32}: .")
Features = dict[str, Any]
Shape = Sequence[int | None] | None


@dataclass(frozen=True)
class GivenRows:
    """The rows of a request.

    Args:
        features: The complete rows as R passes them: `{kind, columns}` or `{kind, values}`.
        complete: Mask of the rows without a missing value, or None for all: training left the
            others out, so they have no prediction.
        count: Number of rows given.
    """

    features: Features
    complete: np.ndarray | None
    count: int

    @property
    def size(self) -> int:
        """Number of rows to predict."""
        return self.count if self.complete is None else int(self.complete.sum())

    @property
    def form(self) -> tuple[Any, ...]:
        """What rows must have in common to be joined."""
        if self.features["kind"] == "columns":
            return ("columns",)
        return ("array", self.features["values"].shape[1:])


def check_servable(recipe: Recipe | None) -> None:
    """Refuses recipes whose rows a request cannot hold.

    Raises:
        ModelError: for images, texts that stay texts, windows, several inputs, mapped rows, and
            rows that R prepares: their columns have the names of those that they are made of.
        DataError: for a time zone that this computer does not know.
    """
    if recipe is None:
        return
    if takes := _name_others(recipe):
        raise ModelError(
            f"`model` takes {takes}, but gpu_serve() serves models of a data frame or a matrix.",
            hint="Serve it by R itself, such as by the package plumber.",
            arg="model",
        )
    for rule in recipe.features.columns:
        if rule.kind == "time":
            read_zone(rule.zone, rule.name)


def _name_others(recipe: Recipe) -> str:
    """Returns what a model takes that a request cannot hold, or ""."""
    if recipe.mapped:
        return "rows after a function of yours"
    if PREPARED.match(recipe.formula):
        return "rows after the steps of a recipe in R"
    if isinstance(recipe.features, (TableEncoding, ArrayEncoding)):
        return ""
    kinds = {"images": "images", "strings": "texts", "windows": "windows of time series"}
    return kinds.get(recipe.features.kind, "several inputs")


def read_rows(recipe: Recipe | None, body: Mapping[str, Any], shape: Shape = None) -> GivenRows:
    """Reads the rows of a request.

    Args:
        recipe: The recipe of the model, or None.
        body: The request, see the module.
        shape: Shape of a row that a model without a recipe takes, with None for an axis of any
            length; None if it is unknown.

    Raises:
        DataError: for rows of another form, missing columns, values of another type and missing
            values; names the column.
    """
    forms = find_form(body)
    frame = recipe is not None and isinstance(recipe.features, TableEncoding)
    wanted = (ROWS, COLUMNS) if frame else (ARRAY,)
    if len(forms) != 1 or forms[0] not in wanted:
        has = f"it has {' and '.join(f'`{name}`' for name in forms) or 'none of them'}"
        expected = " or ".join(f"`{name}`" for name in wanted)
        raise DataError(
            f"A request must have {expected}, but {has}.", arg="body", hint=_example(recipe)
        )
    if recipe is None or not frame:
        return _read_array(recipe, body[ARRAY], shape)
    by_row = forms[0] == ROWS
    find = _find_in_rows if by_row else _find_in_columns
    return _read_frame(recipe, find(recipe, body[forms[0]]), forms[0])


def row_shape(recipe: Recipe | None, shape: Shape) -> Shape:
    """Returns the shape of a row of an array: the recipe's, or else that which the model takes."""
    features = None if recipe is None else recipe.features
    return features.row_shape if isinstance(features, ArrayEncoding) else shape


def find_form(body: Mapping[str, Any]) -> list[str]:
    """Returns the fields of a request that hold rows: one, if it is right."""
    return [name for name in (ROWS, COLUMNS, ARRAY) if name in body]


def _example(recipe: Recipe | None) -> str:
    if recipe is None or not isinstance(recipe.features, TableEncoding):
        return 'Such as {"x": [[1, 2], [3, 4]]}, a row each.'
    return f'Such as {{"rows": [{{"{recipe.features.columns[0].name}": ...}}]}}.'


# Data frames --------------------------------------------------------------------------------------


def _find_in_rows(recipe: Recipe, rows: Any) -> list[list[Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError("`rows` must be an array of objects, one for each row.", arg=ROWS)
    table = []
    for rule in recipe.features.columns:
        try:
            table.append([row[rule.name] for row in rows])
        except KeyError:
            raise lacking_column(rule.name, ROWS) from None
    return table


def _find_in_columns(recipe: Recipe, columns: Any) -> list[list[Any]]:
    if not isinstance(columns, dict):
        raise DataError("`columns` must be an object with an array for each column.", arg=COLUMNS)
    table: list[list[Any]] = []
    for rule in recipe.features.columns:
        if rule.name not in columns:
            raise lacking_column(rule.name, COLUMNS)
        values = columns[rule.name]
        if not isinstance(values, list) or (table and len(values) != len(table[0])):
            message = f"Column `{rule.name}` of `columns` must be an array with a value a row."
            raise DataError(message, arg=COLUMNS, column=rule.name)
        table.append(values)
    return table


def _read_frame(recipe: Recipe, values: Sequence[list[Any]], arg: str) -> GivenRows:
    pairs = zip(recipe.features.columns, values, strict=True)
    columns = [to_column(rule, values, arg) for rule, values in pairs]
    complete = np.ones(len(values[0]), bool)
    for rule, column in zip(recipe.features.columns, columns, strict=True):
        missing = is_missing(column)
        if recipe.na == "error" or rule.offset:
            _refuse_missing(rule, missing, arg)
        elif recipe.na == "drop":
            complete &= ~missing
    features: Features = {"kind": "columns", "columns": columns}
    return _keep_complete(features, complete)


def _refuse_missing(rule: ColumnRule, missing: np.ndarray, arg: str) -> None:
    if missing.any():
        raise column_error(rule.name, arg, missing=int(missing.sum()))


def _keep_complete(features: Features, complete: np.ndarray) -> GivenRows:
    if complete.all():
        return GivenRows(features, None, len(complete))
    return GivenRows(take(features, complete), complete, len(complete))


# Arrays -------------------------------------------------------------------------------------------


def _read_array(recipe: Recipe | None, x: Any, shape: Shape = None) -> GivenRows:
    values = _to_numbers(x)
    _check_shape(values, row_shape(recipe, shape))
    missing = ~np.isfinite(values)
    infinite = int(np.isinf(values).sum())
    if infinite:
        raise DataError(f"`x` holds {count_of(infinite, 'infinite number')}.", arg="x")
    rowwise = missing.any(axis=tuple(range(1, missing.ndim)))
    policy = "error" if recipe is None else recipe.na
    if policy == "error" and rowwise.any():
        raise DataError(f"`x` has {count_of(int(missing.sum()), 'missing value')}.", arg="x")
    features: Features = {"kind": "array", "values": values, "names": []}
    return _keep_complete(features, ~rowwise if policy == "drop" else np.ones(len(values), bool))


def _check_shape(values: np.ndarray, shape: Shape) -> None:
    """Refuses rows of another shape, before they wait for the model beside those of others."""
    row_shape = values.shape[1:]
    if not len(values) or not shape:
        return
    same = len(row_shape) == len(shape) and all(
        size in (None, own) for size, own in zip(shape, row_shape, strict=True)
    )
    if not same:
        raise DataError(f"Each row of `x` must have shape {shape}, not {row_shape}.", arg="x")


def _to_numbers(x: Any) -> np.ndarray:
    """Returns nested lists of numbers as an array of rows; null is NaN.

    NumPy would make an array of a list of texts too, each as long as the longest: 400 kB of JSON
    took 1.4 GB.
    """
    problem = DataError("`x` must be an array of rows of numbers, all of the same length.", arg="x")
    leaves, shape = x if isinstance(x, list) else [x], [len(x)] if isinstance(x, list) else []
    while shape and (kinds := set(map(type, leaves))) == {list}:
        lengths = set(map(len, leaves))
        shape.append(lengths.pop())
        if lengths or len(shape) > MOST_AXES:
            raise problem
        leaves = list(itertools.chain.from_iterable(leaves))
    if not shape or not kinds <= NUMBERS:
        raise problem
    try:
        values = np.array(leaves, np.float64).reshape(shape)
    except OverflowError:  # a whole number that no float64 holds
        raise problem from None
    return values.reshape(-1, 1) if values.ndim == 1 else values


# Joining ------------------------------------------------------------------------------------------


def take(features: Features, rows: Any) -> Features:
    """Returns some rows: a slice, a mask or an array of numbers."""
    if features["kind"] == "array":
        return {**features, "values": features["values"][rows]}
    return {**features, "columns": [_take_column(column, rows) for column in features["columns"]]}


def _take_column(column: Mapping[str, Any], rows: Any) -> dict[str, Any]:
    parts = [part for part in ("values", "offsets") if part in column]
    return {**column, **{part: column[part][rows] for part in parts}}


def join(parts: Sequence[Features]) -> Features:
    """Returns the rows of several requests of the same form, one below the other."""
    if len(parts) == 1:
        return parts[0]
    if parts[0]["kind"] == "array":
        return {**parts[0], "values": np.concatenate([part["values"] for part in parts])}
    columns = zip(*(part["columns"] for part in parts), strict=True)
    return {**parts[0], "columns": [_join_columns(each) for each in columns]}


def _join_columns(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    joined = {
        part: np.concatenate([column[part] for column in parts])
        for part in ("values", "offsets")
        if part in parts[0]
    }
    levels = parts[0].get("levels")
    if levels is None or all(column["levels"] == levels for column in parts):
        return {**parts[0], **joined}
    # Texts differ by request: each keeps its own levels, one after the other.
    shifts = np.cumsum([0, *(len(column["levels"]) for column in parts)])
    codes = [
        np.where(column["values"] > 0, column["values"] + shift, 0)
        for column, shift in zip(parts, shifts, strict=False)
    ]
    every = [level for column in parts for level in column["levels"]]
    return {**parts[0], "values": np.concatenate(codes).astype(np.int32), "levels": every}


def pad(features: Features, rows: int, size: int) -> Features:
    """Returns rows with the last one repeated up to `size`, so that few sizes are compiled."""
    return take(features, np.minimum(np.arange(size), rows - 1)) if size > rows else features


def choose_size(rows: int, most: int) -> int:
    """Returns the padded number of rows: 1, 4, 16, 64, ..., or `most`."""
    size = 1
    while size < rows:
        size *= 4
    return min(size, most)


def list_sizes(most: int) -> list[int]:
    """Returns all numbers of rows that `choose_size()` gives, smallest first."""
    return sorted({choose_size(rows, most) for rows in (*(4**k for k in range(9)), most)} - {0})


def blank_rows(recipe: Recipe | None, shape: Shape) -> GivenRows | None:
    """Returns a row to compile the model with; None if its shape is unknown.

    Args:
        recipe: The recipe of the model, or None.
        shape: Shape of a row that a model without a recipe takes, or None.
    """
    if recipe is None or isinstance(recipe.features, ArrayEncoding):
        known = row_shape(recipe, shape) or (None,)
        sizes = [size for size in known if size is not None]
        if len(sizes) < len(known):
            return None
        return GivenRows({"kind": "array", "values": np.zeros((1, *sizes)), "names": []}, None, 1)
    values = [[_blank(rule)] for rule in recipe.features.columns]
    return replace(_read_frame(recipe, values, ROWS), complete=None)


def _blank(rule: ColumnRule) -> Any:
    if rule.kind in ("category", "text"):
        return rule.levels[0] if rule.levels else "a"
    blanks = {"date": "2000-01-01", "time": "2000-01-01T00:00:00Z", "logical": False}
    return blanks.get(json_kind(rule), rule.center)
