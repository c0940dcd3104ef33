"""Finds out why rows of files cannot be encoded, with counts over all rows.

Encoding stops at the first faulty block. That block knows neither the total count nor whether a
column further left is faulty too. So the rows are read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, GpuKerasError
from gpukeras.data.arrays import FLOAT32_MAX, column_error
from gpukeras.data.files.remote_file import AnyFile
from gpukeras.data.files.table import open_table
from gpukeras.data.preprocessing.columns import ColumnRule, kind_of, transform_column
from gpukeras.data.preprocessing.datetimes import read_number
from gpukeras.data.preprocessing.imputation import is_missing
from gpukeras.data.preprocessing.recipe import ColumnsEncoding
from gpukeras.data.preprocessing.targets import count_codes, recode
from gpukeras.data.sources.table.summaries import LevelUnion

Columns = Mapping[str, Mapping[str, Any]]


def explain_fault(
    encoding: ColumnsEncoding, blocks: Iterable[tuple[Columns, int]], arg: str
) -> DataError | None:
    """Returns the error for the first column that cannot be encoded, with counts over all rows.

    Args:
        encoding: The encoding to apply.
        blocks: Columns by name, and the number of rows, of each block.
        arg: Name of the user's argument, for error messages.

    Returns:
        The error, with the `row` (from 1) of the first faulty value if it is known; or None if no
        fault is found.
    """
    faults = [_Fault(rule, arg) for rule in encoding.columns]
    start = 0
    for columns, rows in blocks:
        for fault in faults:
            fault.add(columns[fault.rule.name], start)
        start += rows
    return next((error for error in (fault.error() for fault in faults) if error), None)


class _Fault:
    """Faults of one column."""

    def __init__(self, rule: ColumnRule, arg: str) -> None:
        self.rule, self._arg = rule, arg
        self._counts = {"missing": 0, "infinite": 0, "large": 0}
        self._row: int | None = None
        self._union: LevelUnion | None = None
        self._first: DataError | None = None

    def add(self, column: Mapping[str, Any], start: int) -> None:
        if self.rule.fill is None:
            self._mark("missing", is_missing(column), start)
        if kind_of(column) == "category":
            self._union = self._union or LevelUnion(column, self._arg, codes=True)
            self._union.add(column)
        elif self.rule.kind not in ("category", "text"):
            self._add_numbers(column, start)
        if self._first is None:
            self._first = self._transform(column)

    def _add_numbers(self, column: Mapping[str, Any], start: int) -> None:
        values = read_number(column, self.rule.units)
        infinite = np.isinf(values)
        self._mark("infinite", infinite, start)
        with np.errstate(over="ignore", invalid="ignore"):
            encoded = np.abs((values - self.rule.center) / self.rule.scale)
            self._mark("large", (encoded > FLOAT32_MAX) & ~infinite, start)

    def _mark(self, what: str, bad: np.ndarray, start: int) -> None:
        self._counts[what] += int(bad.sum())
        if self._row is None and bad.any():
            self._row = start + int(bad.argmax()) + 1

    def _transform(self, column: Mapping[str, Any]) -> DataError | None:
        """Returns the error of a single block: another type, or an invalid date."""
        out = np.empty((len(column["values"]), len(self.rule.features)), np.float32)
        try:
            transform_column(self.rule, column, out, self._arg)
        except DataError as error:
            return error
        return None

    def error(self) -> DataError | None:
        """Returns the error, or None if the column has no fault."""
        if self._first is None:
            return None
        kind_changed = (self._union is None) == (self.rule.kind in ("category", "text"))
        if kind_changed:
            return self._first
        if self._union is not None:
            return self._category_error(self._union, self._first)
        counts = dict(self._counts)
        if counts["missing"] or counts["infinite"]:
            counts["large"] = 0
        if not any(counts.values()):
            return self._first
        return self._located(column_error(self.rule.name, self._arg, "", **counts))

    def _category_error(self, union: LevelUnion, first: DataError) -> DataError:
        column = union.column()
        fill = None if self.rule.fill is None else str(self.rule.fill)
        try:
            count_codes(column, self._arg, imputed=fill is not None)
            if self.rule.text is None and not self.rule.bins:
                new = self.rule.new_levels
                recode(column, self.rule.levels, self._arg, fill, new_levels=new)
        except DataError as error:
            return self._located(error)
        return first

    def _located(self, error: DataError) -> DataError:
        if self._row is None:
            return error
        return DataError(error.message, hint=error.hint, **{**error.details, "row": self._row})


def find_row(files: Sequence[AnyFile], row: int, table: Any) -> tuple[AnyFile, int] | None:
    """Returns the file that contains a row, and the row's number in that file, from 1.

    Args:
        files: The files in order.
        row: Row number over all files, from 1.
        table: Their reader, see `files.table.open_table()`.

    Returns:
        The path and the row number, or None if the rows cannot be counted.
    """
    try:
        for path in files:
            reader = open_table([path], table.arg, format=table.format, columns=table.names)
            known = reader.known_rows
            rows = sum(map(len, reader.batches())) if known is None else known
            if row <= rows:
                return path, row
            row -= rows
    except GpuKerasError:  # the caller reports another error already
        return None
    return None


def name_row(error: DataError, path: AnyFile | None, row: int) -> DataError:
    """Returns a copy of an error that names the first faulty row and its file.

    Args:
        error: The error.
        path: The file, or None for rows of a stream.
        row: Number of the row in the file, from 1.
    """
    of, file = ("", {}) if path is None else (f" of {path.name}", {"path": str(path)})
    message = f"{error.message.removesuffix('.')}; the first is in row {row:,}{of}."
    return DataError(message, hint=error.hint, **{**error.details, "row": row, **file})
