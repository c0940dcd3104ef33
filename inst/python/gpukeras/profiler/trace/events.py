"""Reads a trace's planes, lines and events as plain values, without interpreting them."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gpukeras.backend import tracing
from gpukeras.core.errors import DataError

PS_A_SECOND = 1e12


class Entry(NamedTuple):
    """An event of a line; a named tuple, because a trace may hold a million of them.

    Args:
        name: Its name.
        begin: Its begin, in picoseconds on the trace's clock.
        end: Its end, likewise.
        raw: The event itself, for `Plane.stats()`.
    """

    name: str
    begin: int
    end: int
    raw: Any = None


@dataclass(frozen=True)
class Line:
    """A line of a plane: a thread of the host, or a stream of a GPU.

    Args:
        name: Its name, such as "python", "tf_Compute/17" or "Stream #63(MemcpyH2D)".
        entries: Its events by their begin, the longer first, so that an outer event precedes its
            inner ones.
    """

    name: str
    entries: tuple[Entry, ...]


class Plane:
    """A plane of a trace: the host, or one GPU.

    Args:
        message: The plane of an XSpace.
    """

    def __init__(self, message: Any) -> None:
        """Reads the names of events and of their stats, which are stored once per plane."""
        self.name: str = message.name
        self._message = message
        self._names = {number: entry.name for number, entry in message.event_metadata.items()}
        self._stats = {number: entry.name for number, entry in message.stat_metadata.items()}
        self._numbers = {name: number for number, name in self._stats.items()}

    @functools.cached_property
    def lines(self) -> list[Line]:
        """Returns the lines with events, in the trace's order."""
        return [self._read_line(line) for line in self._message.lines if line.events]

    def has_stat(self, name: str) -> bool:
        """Whether any event may have a stat of this name."""
        return name in self._numbers

    def stat(self, entry: Entry, name: str) -> Any:
        """Returns one stat of an event, or None."""
        number = self._numbers.get(name)
        matching = (stat for stat in entry.raw.stats if stat.metadata_id == number)
        return next((self._read_value(stat) for stat in matching), None)

    def stats(self, entry: Entry) -> Mapping[str, Any]:
        """Returns all stats of an event by their names."""
        return {
            self._stats.get(stat.metadata_id, ""): self._read_value(stat)
            for stat in entry.raw.stats
        }

    def _read_value(self, stat: Any) -> Any:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind) if kind else None
        # A string that occurs often is stored once, as the name of another stat.
        return self._stats.get(value, "") if kind == "ref_value" else value

    def _read_line(self, line: Any) -> Line:
        origin, names, entries = line.timestamp_ns * 1000, self._names, []
        for event in line.events:
            begin = origin + event.offset_ps
            name = names.get(event.metadata_id, "")
            entries.append(Entry(name, begin, begin + event.duration_ps, event))
        entries.sort(key=lambda entry: (entry[1], -entry[2]))
        return Line(line.name, tuple(entries))


def read_space(path: str | Path) -> Any:
    """Returns the message (an XSpace) of an xplane file, or of the newest one in a folder.

    Raises:
        DataError: if there is none, or it is unreadable, empty, truncated, or in another format.
    """
    file = _find_file(Path(path))
    space = tracing.trace_message()
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file.name} cannot be read: {error.strerror}.", path=str(file)) from error
    try:
        space.ParseFromString(content)
    except Exception as error:  # protobuf's own class; naming it would import protobuf here
        raise DataError(
            f"{file.name} is not a profiler trace, or is damaged: {type(error).__name__}.",
            hint="Record it again.",
            path=str(file),
        ) from error
    if not space.planes:  # even without a GPU a trace has planes of the host
        raise DataError(
            f"{file.name} holds no planes, so it is not a whole profiler trace.",
            hint="Record it again; a trace is written when the profiler stops.",
            path=str(file),
        )
    return space


def _find_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = sorted(path.rglob("*.xplane.pb"), key=lambda file: file.stat().st_mtime)
    if not files:
        raise DataError("The folder holds no profiler trace (*.xplane.pb).")
    return files[-1]


def find_outermost(entries: list[Entry]) -> list[Entry]:
    """Returns the entries of a sorted line that do not lie in an earlier entry."""
    outer: list[Entry] = []
    for entry in entries:
        if not outer or entry.begin >= outer[-1].end:
            outer.append(entry)
    return outer


def measure_union(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns the length of a union of intervals: the sum over concurrent ones is too large."""
    total: float = 0
    reached = float("-inf")
    for begin, end in sorted(intervals):
        start = max(begin, reached)
        if end > start:
            total += end - start
            reached = end
    return total
