"""Statistics of columns that are seen a block at a time: what `columns` learns from whole ones.

The rules are those of `columns.learn_column()`; a property test holds the two together. Medians
are exact: each pass over the values fixes 16 bits of them (a radix selection), with 0.5 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.data.arrays import column_error
from gpukeras.data.preprocessing.columns import ColumnRule, Learning, kind_of
from gpukeras.data.preprocessing.datetimes import CYCLES, read_number
from gpukeras.data.preprocessing.imputation import nothing_observed
from gpukeras.data.preprocessing.running_stats import RunningStats
from gpukeras.data.preprocessing.targets import spread_codes

FLOAT32_MAX = float(np.finfo(np.float32).max)
MAX_TEXTS = 100_000  # kept of a column that can have 1,000 levels, so that memory is bounded
DIGIT_BITS = 16  # of a value's 64, fixed by one pass


class NumberSummary:
    """What is learned of a column of numbers, dates, times or durations.

    Args:
        column: One of its blocks, or an empty one: its name, kind, zone and units.
        how: How columns are learned from; its rows are not looked at.
    """

    def __init__(self, column: Mapping[str, Any], how: Learning) -> None:
        """Nothing seen yet."""
        self.name, self.how = column["name"], how
        self._column = {key: column.get(key) or "" for key in ("kind", "zone", "units")}
        self.median: Median | None = None
        self._moments = RunningStats()
        self._bad = {"missing": 0, "infinite": 0, "large": 0}
        self._gaps = 0  # values that training rows lack
        self._rows = 0
        self._first: int | None = None  # row that has something wrong, from 1

    @property
    def scaled(self) -> bool:
        """Whether it is standardised: days since 1970 always are."""
        kind = self._column["kind"]
        return (self.how.scale and kind != "logical") or kind in CYCLES

    @property
    def needed(self) -> bool:
        """Whether anything is to be learned of it."""
        return self.scaled or self.how.impute

    def add(self, column: Mapping[str, Any], keep: np.ndarray | None) -> None:
        """A block of rows that are taken; `keep` marks the training rows, None for all."""
        values = read_number(column, self._column["units"])
        if len(values) == 0:
            return
        with np.errstate(invalid="ignore"):
            largest = max(values.max(), -values.min())  # NaN where there is one
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
        """Refuses what `columns` refuses in whole columns.

        Raises:
            DataError: with the counts; names the column.
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
        """What finds the median, if one is needed: a logical's mode comes from its mean."""
        if self.how.impute and self._column["kind"] != "logical" and self._moments.count:
            self.median = Median(self._moments.count)
        return self.median

    def add_to_median(self, column: Mapping[str, Any], keep: np.ndarray | None) -> None:
        """A block of one of the passes that find the median."""
        assert self.median is not None  # begun
        values = read_number(column, self._column["units"])
        kept = values if keep is None else values[keep]
        self.median.add(kept[~np.isnan(kept)])

    def rule(self) -> ColumnRule:
        """The column's rule."""
        kind, zone, units = (self._column[key] for key in ("kind", "zone", "units"))
        same: dict[str, Any] = {"zone": zone, "units": units}
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
    """The median of values that are seen several times.

    Args:
        count: How many there are.
    """

    def __init__(self, count: int) -> None:
        """Looks for the two in the middle."""
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
        """Some of the values (float64)."""
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
        """All values were seen once more."""
        for place in (0, 1):
            below = np.cumsum(self._counts[place])
            digit = int(np.searchsorted(below, self._ranks[place], side="right"))
            self._ranks[place] -= int(below[digit - 1]) if digit else 0
            self._prefixes[place] = (self._prefixes[place] << DIGIT_BITS) | digit
        self._known += DIGIT_BITS
        self._counts[...] = 0


def to_keys(values: np.ndarray) -> np.ndarray:
    """Whole numbers (uint64) in the order of the values, none of which is NaN."""
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    top = np.uint64(2**63)
    return np.where(bits & top, ~bits, bits | top)


def from_keys(keys: np.ndarray) -> np.ndarray:
    """The values of keys."""
    top = np.uint64(2**63)
    return np.where(keys & top, keys ^ top, ~keys).view(np.float64)


class LevelUnion:
    """The levels of a category, which each block has in its own order.

    Args:
        column: One of its blocks, or an empty one.
        arg: The user's name for the data, for messages.
        codes: Whether to keep each row's code (1 byte up to 255 levels).
        levels: Whether to keep levels; otherwise only the rows are counted.
        onehot: Whether each level shall become a feature: then there is a limit.
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
        """Nothing seen yet."""
        self.name, self.kind, self.rows = column["name"], column["kind"], 0
        self._arg, self._onehot = arg, onehot
        self._codes: list[np.ndarray] | None = [] if codes else None
        self._positions: dict[str, int] | None = {} if levels else None
        self._last: list[str] | None = None

    def add(self, column: Mapping[str, Any]) -> None:
        """A block of all rows."""
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
            raise DataError(
                f"Column `{self.name}` of `{self._arg}` has more than {MAX_TEXTS:,} levels, "
                "too many for one-hot columns.",
                hint='Drop the column, or use `encode = "codes"` or `encode = "hash"`.',
                arg=self._arg,
                column=self.name,
            )

    def column(self) -> dict[str, Any]:
        """The whole column: texts have their levels in the order of their characters.

        Where no codes were kept, all rows have the first level.
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
        summaries: Of columns whose rows were all added.
        read: Gives some columns' blocks of rows: by name, with marks of the training rows, None
            for all.
    """
    waiting = [each for each in summaries if each.start_median() is not None]
    medians = [each.median for each in waiting if each.median is not None]
    while medians and not medians[0].found:
        for columns, keep in read([each.name for each in waiting]):
            for summary in waiting:
                summary.add_to_median(columns[summary.name], keep)
        for median in medians:
            median.next_digit()
