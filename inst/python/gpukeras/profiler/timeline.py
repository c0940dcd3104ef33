"""Reduces a part of a trace to the bars that a plot can show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpukeras.profiler.attribution import clip
from gpukeras.profiler.trace.activity import Activity, Kind
from gpukeras.profiler.trace.op_scopes import shorten

FINEST = 4000  # parts of the window: shorter gaps are invisible in a plot


@dataclass(frozen=True)
class Bar:
    """A bar of a timeline.

    Args:
        lane: Its row in the plot.
        name: Name of the work; for merged neighbours, the longest of them and "(+ n)".
        kind: "kernel", "transfer" or "host".
        begin_s: Seconds since the window's begin.
        end_s: Its end, likewise.
    """

    lane: str
    name: str
    kind: Kind
    begin_s: float
    end_s: float


def timeline(activity: Activity, begin_s: float, end_s: float, most: int = 1500) -> list[Bar]:
    """Returns the bars of a window by lane and begin, at most `most`: short neighbours are merged.

    Only neighbours of one lane and kind are merged, over gaps that a plot cannot show; if too many
    bars remain, over longer gaps. With more lanes than `most` each lane keeps one bar per kind.

    Args:
        activity: The trace.
        begin_s: The window's begin, in the trace's seconds, such as `activity.steps[2].begin_s`.
        end_s: The window's end.
        most: Number of bars that a plot can show.
    """
    rows: dict[tuple[str, Kind], list[Bar]] = defaultdict(list)
    for work, first, last in clip(activity.works, [(begin_s, end_s)]):
        bar = Bar(
            work.lane, shorten(work.scope) or work.name, work.kind, first - begin_s, last - begin_s
        )
        rows[bar.lane, bar.kind].append(bar)
    for row in rows.values():
        row.sort(key=lambda bar: bar.begin_s)
    merged = _merge_rows(rows.values(), end_s - begin_s, most)
    return sorted(merged, key=lambda bar: (bar.lane, bar.begin_s, bar.kind))


def _merge_rows(rows: Iterable[Sequence[Bar]], length: float, most: int) -> list[Bar]:
    rows = list(rows)
    if sum(map(len, rows)) <= most:
        return [bar for row in rows for bar in row]
    gap = length / FINEST
    while True:
        merged = [bar for row in rows for bar in merge_bars(row, gap)]
        if len(merged) <= most or gap > length:
            return merged
        gap *= 1.5


def merge_bars(bars: Sequence[Bar], gap: float) -> list[Bar]:
    """Returns the bars of one row, sorted, with short neighbours merged.

    Args:
        bars: The bars.
        gap: Neighbours are merged if the gap between them is at most this (seconds) and one of them
            is at most this long.
    """
    merged: list[Bar] = []
    longest, count = 0.0, 0
    for bar in bars:
        length = bar.end_s - bar.begin_s
        if merged and _joins(merged[-1], bar, gap):
            before, count = merged[-1], count + 1
            base = bar.name if length > longest else before.name.rpartition(" (+ ")[0]
            base = base or before.name
            end = max(before.end_s, bar.end_s)
            merged[-1] = replace(before, name=f"{base} (+ {count})", end_s=end)
            longest = max(longest, length)
        else:
            merged.append(bar)
            longest, count = length, 0
    return merged


def _joins(before: Bar, bar: Bar, gap: float) -> bool:
    shorter = min(before.end_s - before.begin_s, bar.end_s - bar.begin_s)
    return bar.begin_s - before.end_s <= gap and shorter <= gap
