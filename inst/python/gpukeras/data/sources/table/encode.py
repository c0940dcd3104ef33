"""Columns of a block of rows into rows of float32: numbers tile by tile, the others one by one.

A data frame's columns lie apart, a row's features together. Numbers are taken to float64 tiles of
some thousand rows that stay in the processor's cache, standardised there, and written as rows:
three calls a tile, where column by column each value would be written to memory of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.data.arrays import EXACT_FLOAT32, EXACT_FLOAT64, Notes
from gpukeras.data.preprocessing.columns import ColumnRule, kind_of, transform_column
from gpukeras.data.preprocessing.datetimes import read_number

TILE_BYTES = 2**18  # of float64
FLOAT32_MAX = float(np.finfo(np.float32).max)
Columns = Mapping[str, Mapping[str, Any]]


class Encoder:
    """Encodes blocks of rows by the rules of their columns.

    The result is that of `columns.transform_column()` for each column.

    Args:
        rules: In the order of the features.
        arg: The user's name for the rows, for messages.
        notes: Where whole numbers that lose digits are noted, or None.
    """

    def __init__(self, rules: Sequence[ColumnRule], arg: str, notes: Notes | None = None) -> None:
        """Tells numbers from the rest."""
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
        """Writes rows.

        Args:
            columns: By name, each with one value a row of `out`.
            out: Float32, one row a row, one column a feature.

        Raises:
            DataError: as `columns.transform_column()` does; counts are those of this block.
        """
        for run in self._runs:
            if not self._encode_run(run, columns, out):
                self._encode_each(run, columns, out)
        for rule, place in self._others:
            transform_column(rule, columns[rule.name], out[:, place], self._arg, self._notes)

    def _encode_run(self, run: _Run, columns: Columns, out: np.ndarray) -> bool:
        """Whether all values could be encoded, and none needs a note."""
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
    """Numbers whose features are neighbours."""

    def __init__(self, rule: ColumnRule, start: int) -> None:
        self.rules: list[ColumnRule] = []
        self.place = slice(start, start)
        self.append(rule)

    def append(self, rule: ColumnRule) -> None:
        """One more to the right."""
        self.rules.append(rule)
        self.place = slice(self.place.start, self.place.stop + 1)
        self._center = np.array([[rule.center] for rule in self.rules])
        self._scale = np.array([[rule.scale] for rule in self.rules])
        self._scaled = (self._center != 0) | (self._scale != 1)
        self._limit = EXACT_FLOAT64 if self._scaled.all() else EXACT_FLOAT32

    @staticmethod
    def read(column: Mapping[str, Any], rule: ColumnRule) -> np.ndarray:
        """Values in the rule's units, of whatever type of numbers."""
        if column["kind"] == "duration":
            return read_number(column, rule.units)
        return np.asarray(column["values"]).reshape(-1)

    def encode(
        self, values: Sequence[np.ndarray], start: int, tile: np.ndarray, cast: np.ndarray
    ) -> bool:
        """Fills a tile with rows from `start` on, and casts it; whether all are plain numbers."""
        for line, column in zip(tile, values, strict=True):
            line[...] = column[start : start + tile.shape[1]]
        if not max(tile.max(), -tile.min()) < self._limit:  # also where one is NaN
            return False
        if self._scaled.any():
            tile -= self._center
            tile /= self._scale
        cast[...] = tile
        return bool(max(cast.max(), -cast.min()) <= FLOAT32_MAX)
