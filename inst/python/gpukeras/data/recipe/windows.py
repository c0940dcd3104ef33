"""Windows in the rows of time series, with NumPy only.

    rows --order_series()--> runs of rows without a gap --find_windows()--> first rows of windows

Rows become runs of rows one step apart, and lie side by side in the order of group and time. So a
window is a number: its first row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import (
    Spec,
    check_choice,
    check_count,
    check_names,
    check_positive,
    option,
)
from gpukeras.data.arrays import check_some, column_error
from gpukeras.data.recipe.datetimes import DAY_S
from gpukeras.data.recipe.datetimes import MAX_DAYS as FAR_DAYS
from gpukeras.data.recipe.targets import CATEGORIES

# Series -------------------------------------------------------------------------------------------

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
        place, offsets = self.order[row], self.column.get("offsets")
        offset = 0.0 if offsets is None else float(np.asarray(offsets).reshape(-1)[place])
        value = float(np.asarray(self.column["values"]).reshape(-1)[place])
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


GAPS = ("refuse", "drop", "fill")
NUMBERS = ("numeric", "integer", "logical")  # kinds of columns that windows predict
HORIZON = "horizon"  # a column of predictions: which of the rows ahead


def _check_name(arg: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise SpecError(f"`{arg}` must be the name of a column.", arg=arg)
    return name


@dataclass(frozen=True)
class WindowRule(Spec):
    """How the rows of time series become windows; `step` is learned if it is not given.

    Args:
        window: Rows of a window.
        horizon: Rows after the window whose targets are the labels; 0 without targets.
        stride: Rows from the start of one window to the start of the next.
        time: The column of times.
        group: The columns whose values tell the series apart.
        targets: The columns to predict.
        known: The columns whose values over the horizon are known ahead.
        gaps: What to do with a gap in time: "refuse", "drop" (windows across it) or "fill".
        step: Time from row to row, in the units of the times: days of a date, seconds of a time.
    """

    window: int = option(1, check_count)
    horizon: int = option(0, check_count, 0)
    stride: int = option(1, check_count)
    time: str = option("", _check_name)
    group: tuple[str, ...] = option((), check_names, "columns")
    targets: tuple[str, ...] = option((), check_names, "columns", arg="y")
    known: tuple[str, ...] = option((), check_names, "columns")
    gaps: str = option("refuse", check_choice, GAPS)
    step: float | None = option(None, check_positive)

    @property
    def span(self) -> int:
        """Rows of a window and its horizon."""
        return self.window + self.horizon

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of a window's labels: (horizon, targets), without dimensions of 1."""
        return tuple(size for size in (self.horizon, len(self.targets)) if size > 1)

    def check(self, columns: Mapping[str, Column], arg: str) -> None:
        """Checks that the columns are there, and that their kinds suit.

        Raises:
            SpecError: naming the argument and the column.
        """
        self._check_targets()
        named = {"time": (self.time,), "group": self.group, "y": self.targets, "known": self.known}
        for option_name, names in named.items():
            for place, name in enumerate(names):
                if name not in columns:
                    raise _refuse_column(option_name, name, f"is no column of `{arg}`")
                if name in names[:place]:
                    raise _refuse_column(option_name, name, "stands there twice")
        kind = columns[self.time]["kind"]
        if kind in (*CATEGORIES, "logical"):
            raise _refuse_column("time", self.time, f"is a {kind}, not a time")
        for name in self.targets:
            if columns[name]["kind"] not in NUMBERS:
                problem = f"is a {columns[name]['kind']}: windows predict numbers"
                raise _refuse_column("y", name, problem)

    def _check_targets(self) -> None:
        if bool(self.targets) != bool(self.horizon):
            given, lacking = ("y", "horizon") if self.targets else ("horizon", "y")
            raise SpecError(f"`{given}` of windows needs `{lacking}`.", arg=lacking)
        if self.known and not self.targets:
            raise SpecError("`known` needs `y`: the columns to predict.", arg="known")
        others = {self.time, *self.group, *self.known}
        for name in self.targets:
            if name in others:
                raise _refuse_column("y", name, "`time`, `group` or `known` names too")
        if HORIZON in {self.time, *self.group, *self.targets}:
            problem = "is how predictions call the number of the row ahead: rename the column"
            raise SpecError(f"`{HORIZON}` {problem}.", arg="y", column=HORIZON)


def _refuse_column(arg: str, name: str, problem: str) -> SpecError:
    return SpecError(f"`{arg}` names `{name}`, which {problem}.", arg=arg, column=name)


# Windows -----------------------------------------------------------------------------------------


def find_windows(series: Series, rule: WindowRule) -> np.ndarray:
    """Returns the first row of each window (int32), in the order of group and time.

    Raises:
        DataError: if no run of rows is long enough; says how long the longest is.
    """
    counts = np.maximum((series.length - rule.span) // rule.stride + 1, 0)
    total = int(counts.sum())
    if total == 0:
        longest = int(series.length.argmax())
        needs = f"`window` = {rule.window}"
        if rule.horizon:
            needs += f" with `horizon` = {rule.horizon}"
        raise DataError(
            f"{needs} needs {count_of(rule.span, 'row')} one step apart, but the longest series, "
            f"of {series.name(int(series.group[longest]))}, has {int(series.length[longest]):,}.",
            hint="Use a shorter window.",
            arg="window",
        )
    place = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return (np.repeat(series.first, counts) + rule.stride * place).astype(np.int32)


def note_short(series: Series, rule: WindowRule) -> tuple[str, ...]:
    """Returns a sentence about groups that give no window, if there are any."""
    longest = np.zeros(int(series.group[-1]) + 1, np.int64)
    np.maximum.at(longest, series.group, series.length)
    short = int((longest < rule.span).sum())
    if not short:
        return ()
    rows = count_of(rule.span, "row")
    return (f"{short:,} of {count_of(len(longest), 'group')} have fewer than {rows} in sequence.",)


def split_windows(
    series: Series, rule: WindowRule, starts: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of windows (int32, ascending) for training and for validation.

    Validation is the last share of each group's rows. Windows whose targets lie on both sides of
    that border are in neither part; without targets the whole window counts.

    Args:
        series: The rows.
        rule: The windows' sizes.
        starts: The first row of each window.
        share: The share of the rows for validation.

    Raises:
        DataError: if either part would be empty.
    """
    if share == 0:
        return np.arange(len(starts), dtype=np.int32), np.empty(0, np.int32)
    border = series.borders(share)[series.run_of(starts)]
    begin = starts + (rule.window if rule.horizon else 0)
    parts = [starts + rule.span <= border, begin >= border]
    for part, use in zip(parts, ("train", "validate"), strict=True):
        if not part.any():
            raise DataError(
                f"`validation` = {share:g} leaves no window to {use} on.",
                hint="It is the last share of the rows of each group.",
                arg="validation",
            )
    train, held = (np.flatnonzero(part).astype(np.int32) for part in parts)
    return train, held


def last_windows(series: Series, rows: int) -> np.ndarray:
    """Returns the first of the last `rows` rows of each group.

    Raises:
        DataError: if a group has fewer, or fewer after its last gap; names it.
    """
    last = np.flatnonzero(np.diff(series.group, append=-1))
    short = np.flatnonzero(series.length[last] < rows)
    if len(short):
        run = last[short[0]]
        found = count_of(int(series.length[run]), "row")
        raise DataError(
            f"{upper(series.name(int(series.group[run])))} ends with {found} in sequence "
            f"where a prediction needs {rows:,}.",
            arg=series.arg,
        )
    return series.first[last] + series.length[last] - rows


def training_rows(series: Series, share: float, given: int) -> np.ndarray:
    """Returns the mask of the given rows before the border of validation.

    Args:
        series: The rows.
        share: The share of the rows for validation.
        given: The number of given rows.
    """
    rows = np.arange(series.rows)
    early = rows < np.repeat(series.borders(share), series.length)
    if series.take is None:
        return early
    keep = np.zeros(given, dtype=bool)
    keep[series.take[early]] = True
    return keep


def describe_forecasts(series: Series, rule: WindowRule, starts: np.ndarray) -> dict[str, Any]:
    """Describes what the predictions of windows are about.

    Args:
        series: The rows.
        rule: The windows' sizes.
        starts: The first row of each window.

    Returns:
        `{time, groups, horizon, targets}`: the columns of times, with a value for each window and
        row of its horizon, and of groups, with a value for each window.
    """
    run = series.run_of(starts)
    ahead = starts[:, None] - series.first[run][:, None] + rule.window + np.arange(rule.horizon)
    times = series.start[run][:, None] + ahead * series.step
    time = {**series.time, "values": times.reshape(-1)}
    return {
        "time": _plain(time),
        "groups": [
            _plain({**column, "values": column["values"][series.group[run]]})
            for column in series.groups
        ],
        "horizon": rule.horizon,
        "targets": rule.targets,
    }


def _plain(column: Column) -> dict[str, Any]:
    kept = ("name", "kind", "values", "levels", "zone", "units")
    return {key: column[key] for key in kept if column.get(key) is not None}
