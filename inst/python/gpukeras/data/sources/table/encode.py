"""Encodes the columns of a block into rows of float32: numbers in tiles, others one by one.

A data frame stores columns contiguously; a row of features needs them interleaved. Numbers are
copied to float64 tiles of some thousand rows that stay in the processor's cache, standardised
there, and written as rows: three calls per tile. Encoding column by column would write each value
to memory separately.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.data.arrays import EXACT_FLOAT32, EXACT_FLOAT64, FLOAT32_MAX, Notes
from gpukeras.data.preprocessing.columns import ColumnRule, kind_of, transform_column
from gpukeras.data.preprocessing.datetimes import read_number

TILE_BYTES = 2**18  # of float64
Columns = Mapping[str, Mapping[str, Any]]


class Encoder:
    """Encodes blocks of rows by the rules of their columns.

    The result equals that of `columns.transform_column()` for each column.

    Args:
        rules: The rules in the order of the features.
        arg: Name of the user's argument, for error messages.
        notes: Collects notes on integers that lose digits in float32, or None.
    """

    def __init__(self, rules: Sequence[ColumnRule], arg: str, notes: Notes | None = None) -> None:
        """Separates columns of numbers from other columns."""
        self._arg, self._notes = arg, notes
        self._runs: list[_Run] = []
        self._others: list[tuple[ColumnRule, slice]] = []
        start = 0
        for rule in rules:
            place = slice(start, start + len(rule.features))
            start = place.stop
            if rule.kind not in ("number", "duration") or rule.fill is not None:
                self._others.append((rule, place))
            elif self._runs and self._runs[-1].place.stop == place.start:
                self._runs[-1].append(rule)
            else:
                self._runs.append(_Run(rule, place.start))

    def encode(self, columns: Columns, out: np.ndarray) -> None:
        """Encodes a block into `out`.

        Args:
            columns: Columns by name, each with one value per row of `out`.
            out: Array of float32, shape `(rows, features)`.

        Raises:
            DataError: as `columns.transform_column()` raises; counts are those of this block.
        """
        for run in self._runs:
            if not self._encode_run(run, columns, out):
                self._encode_each(run, columns, out)
        for rule, place in self._others:
            transform_column(rule, columns[rule.name], out[:, place], self._arg, self._notes)

    def _encode_run(self, run: _Run, columns: Columns, out: np.ndarray) -> bool:
        """Whether all values could be encoded and need no note."""
        given = [columns[rule.name] for rule in run.rules]
        if any(kind_of(each) != rule.kind for each, rule in zip(given, run.rules, strict=True)):
            return False
        values = [run.read(column, rule) for column, rule in zip(given, run.rules, strict=True)]
        rows = max(1, TILE_BYTES // (8 * len(values)))
        tile, cast = (np.empty((len(values), rows), dtype) for dtype in (np.float64, np.float32))
        with np.errstate(invalid="ignore", over="ignore"):
            for start in range(0, len(out), rows):
                count = min(rows, len(out) - start)
                if not run.encode(values, start, tile[:, :count], cast[:, :count]):
                    return False
                out[start : start + count, run.place] = cast[:, :count].T
        return True

    def _encode_each(self, run: _Run, columns: Columns, out: np.ndarray) -> None:
        for place, rule in enumerate(run.rules, run.place.start):
            column = columns[rule.name]
            transform_column(rule, column, out[:, place : place + 1], self._arg, self._notes)


class _Run:
    """Adjacent columns of numbers."""

    def __init__(self, rule: ColumnRule, start: int) -> None:
        self.rules: list[ColumnRule] = []
        self.place = slice(start, start)
        self.append(rule)

    def append(self, rule: ColumnRule) -> None:
        """Adds a column on the right."""
        self.rules.append(rule)
        self.place = slice(self.place.start, self.place.stop + 1)
        self._center = np.array([[rule.center] for rule in self.rules])
        self._scale = np.array([[rule.scale] for rule in self.rules])
        self._scaled = (self._center != 0) | (self._scale != 1)
        self._limit = EXACT_FLOAT64 if self._scaled.all() else EXACT_FLOAT32

    @staticmethod
    def read(column: Mapping[str, Any], rule: ColumnRule) -> np.ndarray:
        """Returns the values in the rule's units, of any numeric dtype."""
        if column["kind"] == "duration":
            return read_number(column, rule.units)
        return np.asarray(column["values"]).reshape(-1)

    def encode(
        self, values: Sequence[np.ndarray], start: int, tile: np.ndarray, cast: np.ndarray
    ) -> bool:
        """Encodes the rows from `start` on into `cast`; returns whether all are plain numbers."""
        for line, column in zip(tile, values, strict=True):
            line[...] = column[start : start + tile.shape[1]]
        if not max(tile.max(), -tile.min()) < self._limit:  # also true if one is NaN
            return False
        if self._scaled.any():
            tile -= self._center
            tile /= self._scale
        cast[...] = tile
        return bool(max(cast.max(), -cast.min()) <= FLOAT32_MAX)
