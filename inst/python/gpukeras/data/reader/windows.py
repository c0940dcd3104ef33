"""Windows of the rows of a data frame, gathered by row number.

Rows are encoded and stored once, in the order of group and time. A window is the number of its
first row: its rows are gathered with those of the other windows of a block, on the device if it
holds the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.errors import SpecError
from gpukeras.core.memory import aligned_empty
from gpukeras.data.arrays import ALL_ROWS, EncodeOptions, Notes
from gpukeras.data.reader.rows import (
    FeatureRequest,
    Features,
    Gatherer,
    MemoryRows,
    Rows,
    RowSource,
)
from gpukeras.data.recipe.columns import Learning, take_rows, transform_column
from gpukeras.data.recipe.datetimes import utc_offsets
from gpukeras.data.recipe.encoding import learn_columns
from gpukeras.data.recipe.recipe import (
    ColumnsEncoding,
    Encoding,
    SeriesEncoding,
    check_columns,
    check_kind,
)
from gpukeras.data.recipe.recipe import check_names as check_unique
from gpukeras.data.recipe.windows import (
    Column,
    WindowRule,
    describe_forecasts,
    last_windows,
    order_series,
)


@dataclass(frozen=True)
class Span:
    """The part of a window that one input or the labels take.

    Args:
        offsets: Offsets from the window's first row (int64), one for each row; a single number
            for one row without an axis of its own.
        columns: The first column to take.
    """

    offsets: np.ndarray
    columns: int = 0


class WindowRows(RowSource):
    """Windows of rows that are stored once.

    Args:
        rows: The rows, in the order of group and time.
        starts: The first row of each window (int32).
        spans: What to take of a window; several spans are flattened side by side.
        forecasts: Describes what the windows predict, or None.
    """

    def __init__(
        self,
        rows: MemoryRows,
        starts: np.ndarray,
        spans: Sequence[Span],
        forecasts: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        """Gathers nothing."""
        self._rows = rows
        self._starts = starts
        self._spans = tuple(spans)
        self.forecasts = forecasts
        shape = self.gather(slice(0)).shape[1:]
        super().__init__((len(starts), *shape), rows.dtype)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the rows, which overlapping windows share."""
        return self.resident_bytes

    @property
    def resident_bytes(self) -> int:
        """Size of the rows in bytes."""
        return self._rows.resident_bytes

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given windows in host memory."""
        array, starts = self._rows.array, self._starts[rows]
        parts = [
            np.take(array, np.add.outer(starts, span.offsets), axis=0, mode="clip")
            for span in self._spans
        ]
        return self._join(parts, np.reshape, np.concatenate)

    def gatherer(self, place: str) -> Gatherer:
        """Returns a function that gathers windows as tensors on a device, by rows stored there."""
        return self._gather_by([self._rows.gatherer(place) for _ in self._spans], place)

    def reusing_gatherer(self) -> Gatherer:
        """Returns a gatherer for the CPU, which uses the memory of freed windows again."""
        return self._gather_by([self._rows.reusing_gatherer() for _ in self._spans], "CPU:0")

    def _gather_by(self, gatherers: Sequence[Gatherer], place: str) -> Gatherer:
        ops, on_host = runtime.keras().ops, place == "CPU:0"

        def gather(rows: np.ndarray) -> Any:
            parts = []
            for span, take in zip(self._spans, gatherers, strict=True):
                starts = self._starts[rows].astype(np.int64)
                starts = starts.reshape(-1, *(1 for _ in span.offsets.shape))
                index = starts + span.offsets
                if not on_host:  # only the first rows cross to the device
                    index = ops.add(ops.convert_to_tensor(starts), span.offsets)
                parts.append(take(index))
            return self._join(parts, ops.reshape, ops.concatenate)

        return gather

    def _join(self, parts: list[Any], reshape: Any, concatenate: Any) -> Any:
        if len(parts) == 1:
            return parts[0]
        taken = [part[..., span.columns :] for part, span in zip(parts, self._spans, strict=True)]
        flat = [reshape(part, (len(part), int(np.prod(part.shape[1:])))) for part in taken]
        return concatenate(flat, axis=1)


class WindowFeatures(Features):
    """The columns of a data frame of time series.

    Args:
        asked: With features `{kind: "windows", columns, ...}`, with the fields of `WindowRule`; a
            learned encoding has the rule of the windows.

    Attributes:
        rule: How rows become windows, with the step in time.
        series: The rows in the order of group and time.

    Raises:
        SpecError: if the rule names a column that is not there or does not suit.
        DataError: for times that are missing, repeated or have gaps, see `order_series()`.
    """

    row_shape = None

    def __init__(self, asked: FeatureRequest) -> None:
        """Orders the rows; encodes none."""
        features, arg, encoding = asked.features, asked.arg, asked.encoding
        self.arg, self._text = arg, asked.text
        options = {name: value for name, value in features.items() if name not in NOT_OPTIONS}
        check_unique([column["name"] for column in features["columns"]], arg)
        self.columns: dict[str, Column] = {column["name"]: column for column in features["columns"]}
        rule = _choose_rule(options, encoding, arg)
        if isinstance(encoding, ColumnsEncoding):
            check_columns(encoding, self.columns, arg)
        rule.check(self.columns, arg)
        group = [self.columns[name] for name in rule.group]
        self.series = order_series(self.columns[rule.time], group, rule.gaps, rule.step, arg)
        self.rule = replace(rule, step=self.series.step)

    @property
    def rows(self) -> int:
        """Number of rows as given."""
        return len(self.columns[self.rule.time]["values"])

    def texts(self) -> Collection[str]:
        """Names of the text columns."""
        return [column["name"] for column in self._used() if column["kind"] == "character"]

    def check_policy(self, na: str) -> None:
        """Checks that the policy for missing values leaves the rows in sequence.

        Raises:
            SpecError: if rows would be dropped.
        """
        if na == "drop":
            raise SpecError(
                '`na` = "drop" would tear gaps into the time series.',
                hint='Use `na = "impute"`, or remove the rows and use `gaps`.',
                arg="na",
            )

    def learn(self, how: Learning) -> SeriesEncoding:
        """Learns the encoding; the training rows are among those given."""
        how = replace(how, arg=self.arg, text=self._text)
        learned = learn_columns(self._used(), how)
        return SeriesEncoding(learned.columns, windows=self.rule)

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> RowSource:
        """Returns the last window of each group, which predicts what follows.

        If columns are known ahead, the last rows of each group are those of the horizon: other
        columns may have missing values there, which are not read.
        """
        encoding = check_kind(encoding, SeriesEncoding, self.arg)
        span = self.rule.span if self.rule.known else self.rule.window
        starts = last_windows(self.series, span)
        rows = np.add.outer(starts, np.arange(span)).reshape(-1)
        past = np.add.outer(starts, np.minimum(np.arange(span), self.rule.window - 1)).reshape(-1)
        array = self.encode_rows(encoding, how.notes, rows, past)
        places = span * np.arange(len(starts), dtype=np.int32)
        return self._window_rows(encoding, array, places, starts)

    def windows(
        self, encoding: Encoding, starts: np.ndarray, notes: Notes | None = None
    ) -> WindowRows:
        """Returns the windows that begin at some rows of the series."""
        encoding = check_kind(encoding, SeriesEncoding, self.arg)
        return self._window_rows(encoding, self.encode_rows(encoding, notes), starts, starts)

    def encode_rows(
        self,
        encoding: SeriesEncoding,
        notes: Notes | None = None,
        rows: np.ndarray | None = None,
        past: np.ndarray | None = None,
    ) -> np.ndarray:
        """Returns encoded rows of the series.

        Args:
            encoding: The encoding to apply.
            rows: The rows of the series, or None for all.
            past: The rows from which columns that are not known ahead come, or None for `rows`.
            notes: Collects notes on integers that lose digits, or None.
        """
        count = self.series.rows if rows is None else len(rows)
        array = aligned_empty((count, len(encoding.feature_names)))
        for rule, place in encoding.places:
            ahead = past is None or rule.name in self.rule.known
            column = self.take(rule.name, rows if ahead else past)
            transform_column(rule, column, array[:, place], self.arg, notes)
        return array

    def take(self, name: str, rows: np.ndarray | None = None) -> Column:
        """Returns a column with the values of rows of the series; None for all rows."""
        take, series = self.series.take, self.series
        if rows is not None:
            take = rows if take is None else take[rows]
        column = take_rows(self.columns[name], take)
        if name != self.rule.time or self.rule.gaps != "fill":
            return column
        times = series.times(np.arange(series.rows) if rows is None else rows)
        return _retime(column, times)

    def _used(self) -> list[Column]:
        """Returns the feature columns; those that are known ahead come last."""
        rule = self.rule
        known = [self.columns[name] for name in rule.known]
        apart = {rule.time, *rule.group, *rule.known}
        return [column for name, column in self.columns.items() if name not in apart] + known

    def _window_rows(
        self, encoding: SeriesEncoding, array: np.ndarray, places: np.ndarray, starts: np.ndarray
    ) -> WindowRows:
        rule, parts = self.rule, encoding.parts
        spans = [Span(np.arange(rule.window))]
        if parts:
            first = array.shape[1] - parts[-1].shape[-1]
            spans.append(Span(np.arange(rule.window, rule.span), first))
        series = self.series
        about = (lambda: describe_forecasts(series, rule, starts)) if rule.horizon else None
        return WindowRows(MemoryRows(array), places, spans, about)


NOT_OPTIONS = ("kind", "columns", "groups")


def _choose_rule(options: Mapping[str, Any], encoding: Encoding | None, arg: str) -> WindowRule:
    """Returns the rule of the windows: the encoding's, if there is one."""
    if encoding is None and "window" not in options:
        name = "y" if "targets" in options else next(iter(options))
        raise SpecError(f"`{name}` needs `window`: the rows of a window.", arg="window")
    if encoding is None:
        ahead = {"horizon": 1} if options.get("targets") else {}
        return WindowRule.from_dict({**ahead, **options})
    windows = check_kind(encoding, SeriesEncoding, arg).windows
    if options:
        name = "y" if "targets" in options else next(iter(options))
        raise SpecError(
            f"`{name}` is given beside a `recipe` of windows, which has it.",
            hint="Leave it out: windows are made as in training.",
            arg=name,
        )
    return windows


def _retime(column: Column, times: np.ndarray) -> Column:
    """Returns a column of times where rows that were filled in have their own."""
    if "offsets" not in column:
        return {**column, "values": times}
    filled = times != np.asarray(column["values"]).reshape(-1)
    offsets = np.array(column["offsets"], np.float64).reshape(-1)
    offsets[filled] = utc_offsets(times[filled], column["zone"], column["name"])
    return {**column, "values": times, "offsets": offsets}
