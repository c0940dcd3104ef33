"""Learns the rules of a table's columns from blocks of its rows, and encodes blocks by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.data.arrays import (
    EXACT_FLOAT32,
    EXACT_FLOAT64,
    FLOAT32_MAX,
    Notes,
    column_fault,
    side_by_side,
)
from gpukeras.data.recipe.columns import (
    ColumnRule,
    Learning,
    NumberSummary,
    is_odd_logical,
    kind_of,
    learn_column,
    transform_column,
)
from gpukeras.data.recipe.datetimes import read_number
from gpukeras.data.recipe.targets import spread_codes

# Statistics ---------------------------------------------------------------------------------------

MAX_TEXTS = 100_000  # bounds memory; a one-hot column can have 1,000 levels
DIGIT_BITS = 16  # fixed per pass, of a value's 64


class Median:
    """Exact median of values that are read in several passes.

    Args:
        count: Number of values.
    """

    def __init__(self, count: int) -> None:
        """Starts the search for the two middle values."""
        self._ranks = [(count - 1) // 2, count // 2]
        self._prefixes = [0, 0]
        self._known = 0  # bits
        self._counts = np.zeros((2, 2**DIGIT_BITS), dtype=np.int64)

    @property
    def found(self) -> bool:
        """Whether all bits are known."""
        return self._known == 64

    @property
    def value(self) -> float:
        """The median."""
        return float(np.mean(from_keys(np.array(self._prefixes, dtype=np.uint64))))

    def add(self, values: np.ndarray) -> None:
        """Adds some of the values (float64) in a pass."""
        keys = to_keys(values)
        shift = np.uint64(64 - self._known - DIGIT_BITS)
        for place, prefix in enumerate(self._prefixes):
            if place and prefix == self._prefixes[0]:
                self._counts[1] = self._counts[0]
                return
            near = keys
            if self._known:
                near = keys[(keys >> np.uint64(64 - self._known)) == np.uint64(prefix)]
            digits = (near >> shift).astype(np.int64) & (2**DIGIT_BITS - 1)
            self._counts[place] += np.bincount(digits, minlength=2**DIGIT_BITS)

    def next_digit(self) -> None:
        """Ends a pass over all values."""
        for place in (0, 1):
            below = np.cumsum(self._counts[place])
            digit = int(np.searchsorted(below, self._ranks[place], side="right"))
            self._ranks[place] -= int(below[digit - 1]) if digit else 0
            self._prefixes[place] = (self._prefixes[place] << DIGIT_BITS) | digit
        self._known += DIGIT_BITS
        self._counts[...] = 0


def to_keys(values: np.ndarray) -> np.ndarray:
    """Maps values without NaN to integers (uint64) in the same order."""
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    top = np.uint64(2**63)
    return np.where(bits & top, ~bits, bits | top)


def from_keys(keys: np.ndarray) -> np.ndarray:
    """Maps integers of `to_keys()` back to values."""
    top = np.uint64(2**63)
    return np.where(keys & top, keys ^ top, ~keys).view(np.float64)


class LevelUnion:
    """The union of a category's levels, which each block lists in another order.

    Args:
        column: A block of the column, or an empty one.
        arg: Name of the user's argument, for error messages.
        codes: Whether to store each row's code (1 byte up to 255 levels).
        levels: Whether to store levels; otherwise only rows are counted.
        onehot: Whether each level becomes a feature, which limits their number.
    """

    def __init__(
        self,
        column: Mapping[str, Any],
        arg: str,
        *,
        codes: bool = False,
        levels: bool = True,
        onehot: bool = False,
    ) -> None:
        """Starts without rows."""
        self.name = column["name"]
        self.kind = column["kind"]
        self.rows = 0
        self._arg, self._onehot = arg, onehot
        self._codes: list[np.ndarray] | None = [] if codes else None
        self._positions: dict[str, int] | None = {} if levels else None
        self._last: list[str] | None = None

    def add(self, column: Mapping[str, Any]) -> None:
        """Adds a block of rows."""
        self.rows += len(column["values"])
        if column["kind"] != self.kind:
            self.kind = "factor"
        if self._positions is None:
            return
        levels = list(column["levels"])
        if levels != self._last:
            for level in levels:
                self._positions.setdefault(level, len(self._positions) + 1)
            self._last = levels
            self._check_levels(levels, len(self._positions))
        if self._codes is not None:
            mapping = np.array([*map(self._positions.get, levels), 0], dtype=np.int32)
            size = np.min_scalar_type(len(self._positions))
            self._codes.append(spread_codes(column, mapping).astype(size))

    def _check_levels(self, levels: Sequence[str], count: int) -> None:
        if any("\0" in level for level in levels):
            problem = "has a text with a NUL character, which R's texts cannot hold."
            hint = 'Take it out of the texts, drop the column, or use `encode = "hash"`.'
            raise column_fault(self.name, self._arg, problem, hint)
        if self._onehot and count > MAX_TEXTS:
            problem = f"has more than {MAX_TEXTS:,} levels, too many for one-hot columns."
            hint = 'Drop the column, or use `encode = "codes"` or `encode = "hash"`.'
            raise column_fault(self.name, self._arg, problem, hint)

    def column(self) -> dict[str, Any]:
        """Returns the whole column; levels of strings are sorted.

        If no codes were stored, all rows have the first level, and `coded` is there and false.
        """
        levels, kept = list(self._positions or ()), self._codes
        if kept is None:
            codes = np.broadcast_to(np.uint8(1), self.rows)
        else:
            size = np.min_scalar_type(len(levels))
            codes = np.concatenate([np.zeros(0, size), *kept]).astype(size, copy=False)
        if self.kind == "character":
            levels = sorted(levels)
            if kept is not None and self._positions is not None:
                places = {level: place for place, level in enumerate(levels, 1)}
                order = [0, *(places[level] for level in self._positions)]
                codes = np.array(order, codes.dtype)[codes]
        told = {} if kept is not None else {"coded": False}
        return {"name": self.name, "kind": self.kind, "values": codes, "levels": levels, **told}


class WholeColumn:
    """A column that is put together from blocks of rows.

    Args:
        column: The first block of the column, or one without rows.

    Attributes:
        held: Bytes of the values, about.
    """

    def __init__(self, column: Mapping[str, Any]) -> None:
        """Starts without rows."""
        self.name, self.held = column["name"], 0
        self._first = column
        self._union = LevelUnion(column, "y", codes=True) if kind_of(column) == "category" else None
        self._kinds: set[str] = set()
        self._parts: dict[str, list[np.ndarray]] = {"values": []}

    def add(self, column: Mapping[str, Any]) -> None:
        """Adds a block of rows; numbers may come as other numbers, and durations in other units."""
        self._kinds.add(column["kind"])
        if self._union is not None:
            self._union.add(column)
            self.held += 4 * len(column["values"])
            return
        if column["kind"] == "duration":
            column = {**column, "values": read_number(column, self._first["units"])}
        self._keep("values", column["values"])
        if column.get("offsets") is not None:
            self._keep("offsets", column["offsets"])

    def _keep(self, part: str, values: Any) -> None:
        # Copies, so that the file's other columns can leave memory, and R can use its own again.
        kept = np.array(values).reshape(-1)
        self._parts.setdefault(part, []).append(kept)
        self.held += kept.nbytes

    def take(self) -> dict[str, Any]:
        """Returns the whole column and drops it from this object."""
        if self._union is not None:
            return {**self._first, **self._union.column()}
        kind = self._first["kind"] if len(self._kinds) < 2 else "numeric"
        joined = {part: _join(blocks, self._first[part]) for part, blocks in self._parts.items()}
        return {**self._first, **joined, "kind": kind}


def _join(blocks: list[np.ndarray], like: Any) -> np.ndarray:
    """Joins blocks, and frees each one's memory after its copy."""
    types = [np.asarray(like).dtype, *(block.dtype for block in blocks)]
    values, start = np.empty(sum(map(len, blocks)), np.result_type(*types)), 0
    while blocks:
        block = blocks.pop(0)
        values[start : start + len(block)] = block
        start += len(block)
    return values


def find_medians(
    summaries: Sequence[NumberSummary],
    read: Callable[[Sequence[str]], Iterable[tuple[Mapping[str, Any], np.ndarray | None]]],
) -> None:
    """Passes over the rows until all medians are found.

    Args:
        summaries: Summaries of columns whose rows were all added.
        read: Function from column names to blocks: columns by name, with the mask of the training
            rows or None for all.
    """
    waiting = [each for each in summaries if each.needs_median]
    medians = {each.name: Median(each.count) for each in waiting}
    while not all(median.found for median in medians.values()):
        for columns, keep in read([*medians]):
            for each in waiting:
                medians[each.name].add(each.take(columns[each.name], keep))
        for median in medians.values():
            median.next_digit()
    for each in waiting:
        each.median = medians[each.name].value


# Learning -----------------------------------------------------------------------------------------

Blocks = Callable[[Sequence[str]], Iterator[tuple[Mapping[str, Any], np.ndarray | None]]]


def learn_table(
    columns: Sequence[Mapping[str, Any]],
    how: Learning,
    *,
    category: Callable[[str], Mapping[str, Any]],
    early: Mapping[str, NumberSummary],
    read: Blocks,
) -> list[ColumnRule]:
    """Learns the rules of a table's columns; reads the rows needed for all of them once.

    Args:
        columns: The columns without rows.
        how: The options and rows to learn from.
        category: Returns a whole category column by its name.
        early: The statistics of numeric columns that are known already.
        read: Yields blocks of columns, each with a mask of its training rows, None for all.

    Raises:
        DataError: as `recipe.columns.learn_column()` raises.
    """
    numbers = {
        column["name"]: early.get(column["name"]) or NumberSummary(column, how)
        for column in columns
        if kind_of(column) != "category"
    }
    late = [each for each in numbers.values() if each.needed and each.name not in early]
    for block, keep in read([each.name for each in late]) if late else ():
        for summary in late:
            summary.add(block[summary.name], keep)
    find_medians([each for each in numbers.values() if each.needed], read)
    rules: list[ColumnRule] = []
    for column in columns:
        name = column["name"]
        if name not in numbers:
            rules.append(learn_column(category(name), how))
            continue
        rules.append(numbers[name].rule())
    return rules


# Encoding -----------------------------------------------------------------------------------------

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
        places = side_by_side(len(rule.features) for rule in rules)
        for rule, place in zip(rules, places, strict=True):
            plain = rule.kind in ("number", "duration") and rule.fill is None and rule.scale > 0
            if not plain or rule.constant is not None:
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
        asked = [columns[rule.name] for rule in run.rules]
        if any(
            kind_of(each) != rule.kind or is_odd_logical(rule, each)
            for each, rule in zip(asked, run.rules, strict=True)
        ):
            return False
        values = [run.read(column, rule) for column, rule in zip(asked, run.rules, strict=True)]
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
