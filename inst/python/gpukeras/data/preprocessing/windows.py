"""Finds windows in the rows of time series, with NumPy only.

    rows --order_series()--> runs of rows without a gap --find_windows()--> first rows of windows

A window is a number: its first row. Rows are in the order of group and time, so that the rows of a
window lie side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import Spec, check_choice, check_count, check_positive, option
from gpukeras.data.preprocessing.series import Column, Series, upper
from gpukeras.data.preprocessing.targets import CATEGORIES

GAPS = ("refuse", "drop", "fill")
NUMBERS = ("numeric", "integer", "logical")  # kinds of columns that windows predict
HORIZON = "horizon"  # a column of predictions: which of the rows ahead


def _check_names(arg: str, names: Any) -> tuple[str, ...]:
    names = (names,) if isinstance(names, str) else () if names is None else names
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise SpecError(f"`{arg}` must be the names of columns.", arg=arg)
    return tuple(names)


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
    group: tuple[str, ...] = option((), _check_names)
    targets: tuple[str, ...] = option((), _check_names, arg="y")
    known: tuple[str, ...] = option((), _check_names)
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
