"""Orders the rows of time series by group and time, and finds the gaps in them, with NumPy only.

Rows become runs of rows one step apart, and lie side by side in the order of group and time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.arrays import check_some, column_error
from gpukeras.data.preprocessing.datetimes import DAY_S
from gpukeras.data.preprocessing.datetimes import MAX_DAYS as FAR_DAYS
from gpukeras.data.preprocessing.targets import CATEGORIES

Column = Mapping[str, Any]
EVEN = 1e-3  # the share of a step by which a difference in time may deviate from whole steps
MOST_FILLED = 10  # rows after filling, for each row given; more are a mistake in a time
UNITS = {"date": "day", "time": "second"}


@dataclass(frozen=True)
class Series:
    """Rows in the order of group and time, as runs without a gap.

    Args:
        take: The given row that each row takes its values from; None if all are in order.
        first: The first row of each run.
        length: The rows of each run.
        start: The time of each run's first row.
        group: The number of each run's group, ascending.
        groups: The columns of groups, with one value for each group.
        time: The column of times without its values.
        step: Time from row to row.
        arg: The user's name for the data, for messages.
    """

    take: np.ndarray | None
    first: np.ndarray
    length: np.ndarray
    start: np.ndarray
    group: np.ndarray
    groups: tuple[Column, ...]
    time: Column
    step: float
    arg: str

    @property
    def rows(self) -> int:
        """Number of rows, with those that were filled in."""
        return int(self.length.sum())

    def times(self, rows: np.ndarray) -> np.ndarray:
        """Returns the times of rows; of a row behind a run's end, if the run went on."""
        run = self.run_of(rows)
        return self.start[run] + (rows - self.first[run]) * self.step

    def run_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the numbers of the runs that hold some rows."""
        return np.searchsorted(self.first, rows, side="right") - 1

    def borders(self, share: float) -> np.ndarray:
        """Returns, for each run, the first row of the last `share` of its group's rows."""
        groups, number = np.unique(self.group, return_inverse=True)
        sizes = np.bincount(number, self.length, len(groups)).astype(np.int64)
        return (np.cumsum(sizes) - np.round(sizes * share).astype(np.int64))[number]

    def name(self, group: int) -> str:
        """Returns a group in words: "group `B`", or the data if there are no groups."""
        return name_group(self.groups, group, self.arg)


# Order -------------------------------------------------------------------------------------------


def order_series(
    column: Column, group: Sequence[Column], gaps: str, step: float | None, arg: str
) -> Series:
    """Orders rows by group and time, and divides them into runs without a gap.

    Args:
        column: The column of times.
        group: The columns whose values tell the series apart.
        gaps: What to do with a gap in time: "refuse", "drop" (a new run) or "fill" (rows that
            repeat the one before).
        step: Time from row to row, or None for the most common difference.
        arg: The user's name for the data, for messages.

    Raises:
        DataError: for missing times or groups, for two rows of a group at one time, and for a gap
            that is neither dropped nor filled; names the group.
    """
    time = np.asarray(column["values"], np.float64).reshape(-1)
    check_some(len(time), arg)
    missing, infinite = int(np.isnan(time).sum()), int(np.isinf(time).sum())
    if missing or infinite:
        hint = "Each row needs a time: remove the others."
        raise column_error(column["name"], arg, hint, missing=missing, infinite=infinite)
    codes, groups = _number_groups(group, len(time), arg)
    order = np.lexsort((time, codes))
    where = _Where(column, order, codes[order], groups, arg)
    joined, repeats, step = _compare(time[order], codes[order], gaps, step, where)
    own = np.flatnonzero(np.append(True, ~joined))
    ends = np.cumsum(repeats)
    take = None if bool((np.diff(order) == 1).all()) else order
    if len(time) < ends[-1]:
        take = np.repeat(order, repeats)
    first = ends[own] - repeats[own]
    return Series(
        take=take,
        first=first,
        length=np.diff(np.append(first, ends[-1])),
        start=time[order[own]],
        group=codes[order[own]],
        groups=groups,
        time={**column, "values": None, "offsets": None},
        step=step,
        arg=arg,
    )


@dataclass(frozen=True)
class _Where:
    """Names rows, which are in the order of group and time, in messages.

    Args:
        column: The column of times, in the order given.
        order: The given row of each row.
        codes: The number of each row's group.
        groups: The columns of groups, with one value for each group.
        arg: The user's name for the data.
    """

    column: Column
    order: np.ndarray
    codes: np.ndarray
    groups: tuple[Column, ...]
    arg: str

    def name(self, row: int) -> str:
        """Returns the group of a row in words."""
        return name_group(self.groups, int(self.codes[row]), self.arg)

    def between(self, row: int) -> str:
        """Returns the times of a row and the next one in words."""
        return f"{self.at(row)} and {self.at(row + 1)}"

    def at(self, row: int) -> str:
        """Returns the time of a row in words."""
        given, offsets = self.order[row], self.column.get("offsets")
        offset = 0.0 if offsets is None else float(np.asarray(offsets).reshape(-1)[given])
        value = float(np.asarray(self.column["values"]).reshape(-1)[given])
        return _spell_value(self.column, value, offset)

    def fault(self, row: int, problem: str, hint: str) -> DataError:
        """Returns an error about the group of a row."""
        message = f"{upper(self.name(row))} {problem}."
        return DataError(message, hint=hint, arg="time", column=self.column["name"])


def _compare(
    time: np.ndarray, codes: np.ndarray, gaps: str, step: float | None, where: _Where
) -> tuple[np.ndarray, np.ndarray, float]:
    """Compares each row with the next one.

    Returns:
        Whether the next row continues the run; how many steps each row stands for; the step.
    """
    same, apart = codes[1:] == codes[:-1], np.diff(time)
    twice = same & (apart == 0)
    if twice.any():
        row = int(twice.argmax())
        hint = "Keep one row for each time, or name the columns that tell them apart in `group`."
        raise where.fault(row, f"has more than one row at {where.at(row)}", hint)
    step = step or _common_step(apart[same])
    steps = apart / step
    whole = np.rint(steps)
    most = np.inf if gaps == "fill" else 1
    joined = same & (np.abs(steps - whole) <= EVEN) & (whole >= 1) & (whole <= most)
    odd = same & ~joined
    if gaps != "drop" and odd.any():
        row = int(odd.argmax())
        raise _refuse_gap(row, steps[row] > 1, gaps, step, where)
    repeats = np.append(np.where(joined, whole, 1), 1).astype(np.int64)
    if repeats.sum() > MOST_FILLED * len(repeats):
        row = int(repeats.argmax())
        raise DataError(
            f'`gaps` = "fill" would make {count_of(int(repeats.sum()), "row")} of '
            f"{len(repeats):,}: {where.name(row)} has none between {where.between(row)}.",
            hint="Check the times of these rows, or give `step`.",
            arg="gaps",
        )
    return joined, repeats, step


def _refuse_gap(row: int, long: bool, gaps: str, step: float, where: _Where) -> DataError:
    ways = {
        "refuse": 'Use `gaps = "drop"` or `gaps = "fill"`, or give `step`.',
        "fill": "Only whole steps are filled: round the times, or give `step`.",
    }
    unit = UNITS.get(where.column["kind"], "")
    spelled = f"{step:g} {unit}{'' if step == 1 else 's'}" if unit else f"{step:g}"
    what = "a gap" if long else "rows too close"
    problem = f"has {what} in time between {where.between(row)}: the step is {spelled}"
    return where.fault(row, problem, ways[gaps])


def _common_step(apart: np.ndarray) -> float:
    """Returns the most common difference, by seven digits; the smallest of several."""
    if not len(apart):
        return 1.0
    digits = 6 - int(np.floor(np.log10(np.median(apart))))
    values, counts = np.unique(np.round(apart, digits), return_counts=True)
    return float(values[counts.argmax()])


def _number_groups(
    columns: Sequence[Column], rows: int, arg: str
) -> tuple[np.ndarray, tuple[Column, ...]]:
    """Returns each row's group, from 0, and the columns with one value for each group."""
    codes = np.zeros(rows, np.int64)
    for column in columns:
        values = np.asarray(column["values"]).reshape(-1)
        absent = values == 0 if column["kind"] in CATEGORIES else values != values
        if absent.any():
            hint = "Each row needs a group: remove the others."
            raise column_error(column["name"], arg, hint, missing=int(absent.sum()))
        own, number = np.unique(values, return_inverse=True)
        codes = np.unique(codes * len(own) + number, return_inverse=True)[1]
    row = np.unique(codes, return_index=True)[1]
    return codes, tuple(
        {**column, "values": np.asarray(column["values"]).reshape(-1)[row], "offsets": None}
        for column in columns
    )


def name_group(groups: Sequence[Column], group: int, arg: str) -> str:
    """Returns a group in words: "group `B`", or the data if there are no groups."""
    values = [_spell_value(column, column["values"][group]) for column in groups]
    return f"group `{', '.join(values)}`" if values else f"`{arg}`"


def upper(text: str) -> str:
    """Returns a sentence that begins with a capital letter."""
    return text[0].upper() + text[1:]


def _spell_value(column: Column, value: float, offset: float = 0.0) -> str:
    """Returns a time or the value of a group in words; `offset` is the time's from UTC."""
    kind = column["kind"]
    if kind in CATEGORIES:
        return str(column["levels"][int(value) - 1])
    if kind == "date" and abs(value) < FAR_DAYS:
        return str(np.datetime64(int(np.floor(value)), "D"))
    if kind == "time" and abs(value) < FAR_DAYS * DAY_S:
        return str(np.datetime64(int(np.floor(value + offset)), "s")).replace("T", " ")
    return f"{value:.15g}"
