"""Statistics of columns read in blocks, equal to those that `columns` computes on whole columns.

The rules are those of `columns.learn_column()`; a property test compares the two. Medians are
exact: each pass over the values fixes 16 bits of them (a radix selection), with 0.5 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.data.arrays import FLOAT32_MAX, column_error, column_fault
from gpukeras.data.preprocessing.columns import ColumnRule, Learning, kind_of
from gpukeras.data.preprocessing.datetimes import CYCLES, read_number
from gpukeras.data.preprocessing.imputation import nothing_observed
from gpukeras.data.preprocessing.running_stats import RunningStats
from gpukeras.data.preprocessing.targets import spread_codes

MAX_TEXTS = 100_000  # bounds memory; a one-hot column can have 1,000 levels
DIGIT_BITS = 16  # fixed per pass, of a value's 64


class NumberSummary:
    """Statistics of a column of numbers, dates, times or durations.

    Args:
        column: A block of the column, or an empty one: its name, kind, zone and units.
        how: Options for learning columns; its masks of rows are unused.
    """

    def __init__(self, column: Mapping[str, Any], how: Learning) -> None:
        """Starts without values."""
        self.name, self.how = column["name"], how
        self._column = {key: column.get(key) or "" for key in ("kind", "zone", "units")}
        self.median: Median | None = None
        self._moments = RunningStats()
        self._bad = {"missing": 0, "infinite": 0, "large": 0}
        self._gaps = 0  # missing values in training rows
        self._rows = 0
        self._first: int | None = None  # first faulty row, from 1

    @property
    def scaled(self) -> bool:
        """Whether the column is standardised; days since 1970 always are."""
        kind = self._column["kind"]
        return (self.how.scale and kind != "logical") or kind in CYCLES

    @property
    def needed(self) -> bool:
        """Whether the column needs any statistics."""
        return self.scaled or self.how.impute

    def add(self, column: Mapping[str, Any], keep: np.ndarray | None) -> None:
        """Adds a block of rows; `keep` marks the training rows, None for all."""
        values = read_number(column, self._column["units"])
        if len(values) == 0:
            return
        with np.errstate(invalid="ignore"):
            largest = max(values.max(), -values.min())  # NaN if any value is NaN
        if not largest <= FLOAT32_MAX:
            self._count_bad(values)
        kept = values if keep is None else values[keep]
        if np.isnan(largest):
            there = kept[~np.isnan(kept)]
            self._gaps += len(kept) - len(there)
            kept = there
        self._moments.add(kept)
        self._rows += len(values)

    def _count_bad(self, values: np.ndarray) -> None:
        missing, infinite = int(np.isnan(values).sum()), int(np.isinf(values).sum())
        with np.errstate(invalid="ignore"):
            large = int((np.abs(values) > FLOAT32_MAX).sum()) - infinite
        for what, count in (("missing", missing), ("infinite", infinite), ("large", large)):
            self._bad[what] += count
        with np.errstate(invalid="ignore"):
            wrong = np.abs(values) > FLOAT32_MAX
        wrong = wrong if self.how.impute else wrong | np.isnan(values)
        if self._first is None and wrong.any():
            self._first = self._rows + int(wrong.argmax()) + 1

    def check(self) -> None:
        """Checks the column as `columns` checks whole columns.

        Raises:
            DataError: if values are missing, infinite or too large; names the column, with counts.
        """
        bad = dict(self._bad)
        if self.how.impute:
            bad["missing"] = 0
        if bad["missing"] or bad["infinite"]:
            bad["large"] = 0
        if any(bad.values()):
            error = column_error(self.name, self.how.arg, "", **bad)
            error.details["row"] = self._first
            raise error
        if not self._moments.count:
            raise nothing_observed(self.name, self.how.arg)

    def start_median(self) -> Median | None:
        """Returns a new median search, or None if none is needed.

        A logical column's mode follows from its mean.
        """
        if self.how.impute and self._column["kind"] != "logical" and self._moments.count:
            self.median = Median(self._moments.count)
        return self.median

    def add_to_median(self, column: Mapping[str, Any], keep: np.ndarray | None) -> None:
        """Adds a block of rows in one of the passes that find the median."""
        assert self.median is not None  # start_median() was called
        values = read_number(column, self._column["units"])
        kept = values if keep is None else values[keep]
        self.median.add(kept[~np.isnan(kept)])

    def rule(self) -> ColumnRule:
        """Returns the column's rule."""
        kind, zone, units = (self._column[key] for key in ("kind", "zone", "units"))
        logical = self._column["kind"] == "logical"
        same: dict[str, Any] = {"zone": zone, "units": units, "logical": logical}
        if not self.needed:
            return ColumnRule(self.name, kind_of(self._column), **same)
        fill = None
        if self.how.impute:
            mean = float(self._moments.mean)
            fill = float(mean > 0.5) if self.median is None else self.median.value
        return ColumnRule(
            self.name,
            kind_of(self._column),
            center=float(self._moments.mean) if self.scaled else 0.0,
            scale=float(self._moments.deviation) if self.scaled else 1.0,
            fill=fill,
            indicator=self.how.impute and self._gaps > 0,
            **same,
        )


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
        self.name, self.kind, self.rows = column["name"], column["kind"], 0
        self._arg, self._onehot = arg, onehot
        self._codes: list[np.ndarray] | None = [] if codes else None
        self._positions: dict[str, int] | None = {} if levels else None
        self._last: list[str] | None = None

    def add(self, column: Mapping[str, Any]) -> None:
        """Adds a block of rows."""
        self.rows += len(column["values"])
        if self._positions is None:
            return
        levels = list(column["levels"])
        if levels != self._last:
            for level in levels:
                self._positions.setdefault(level, len(self._positions) + 1)
            self._last = levels
            self._check_levels(len(self._positions))
        if self._codes is not None:
            mapping = np.array([*map(self._positions.get, levels), 0], dtype=np.int32)
            size = np.min_scalar_type(len(self._positions))
            self._codes.append(spread_codes(column, mapping).astype(size))

    def _check_levels(self, count: int) -> None:
        if self._onehot and count > MAX_TEXTS:
            problem = f"has more than {MAX_TEXTS:,} levels, too many for one-hot columns."
            hint = 'Drop the column, or use `encode = "codes"` or `encode = "hash"`.'
            raise column_fault(self.name, self._arg, problem, hint)

    def column(self) -> dict[str, Any]:
        """Returns the whole column; levels of strings are sorted.

        If no codes were stored, all rows have the first level.
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
        return {"name": self.name, "kind": self.kind, "values": codes, "levels": levels}


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
    waiting = [each for each in summaries if each.start_median() is not None]
    medians = [each.median for each in waiting if each.median is not None]
    while medians and not medians[0].found:
        for columns, keep in read([each.name for each in waiting]):
            for summary in waiting:
                summary.add_to_median(columns[summary.name], keep)
        for median in medians:
            median.next_digit()
