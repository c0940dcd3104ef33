"""Traces of the profiler: recorded ones, and small ones made by hand."""

import functools
import gzip
import tempfile
from pathlib import Path

from gpukeras.backend import tracing
from gpukeras.profiler.trace.xplane import read_activity

DATA = Path(__file__).parent / "data"
US = 10**6  # picoseconds


def content_of(name):
    return gzip.decompress((DATA / f"{name}.xplane.pb.gz").read_bytes())


@functools.cache
def read_recorded(name, device=None):
    return read(content_of(name), device)


def read(source, device=None):
    """Reads a trace given as its bytes, as a message, or by its name in data/."""
    if isinstance(source, str):
        return read_recorded(source, device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.xplane.pb"
        path.write_bytes(source if isinstance(source, bytes) else source.SerializeToString())
        return read_activity(path, device)


class Builder:
    """A trace made by hand; times in microseconds."""

    def __init__(self, errors=()):
        self.space = tracing.trace_message()
        self.space.errors.extend(errors)

    def plane(self, name):
        self.current = self.space.planes.add(name=name)
        return self

    def line(self, name, *events):
        line = self.current.lines.add(name=name)
        for event, begin, end, *stats in events:
            metadata = self._number(self.current.event_metadata, event)
            offset, length = round(begin * US), round((end - begin) * US)
            made = line.events.add(metadata_id=metadata, offset_ps=offset, duration_ps=length)
            for key, value in dict(*stats).items():
                number = self._number(self.current.stat_metadata, key)
                kind = "int64_value" if isinstance(value, int) else "str_value"
                made.stats.add(metadata_id=number, **{kind: value})
        return self

    @staticmethod
    def _number(table, name):
        known = {entry.name: number for number, entry in table.items()}
        if name not in known:
            table[len(table) + 1].name = name
        return known.get(name, len(table))


def on_host(*events, name="tf_Compute/1"):
    return Builder().plane("/host:CPU").line(name, *events).space


def told(activity, kind="kernel"):
    """Works of a kind as (name, begin, end) in microseconds."""
    chosen = [work for work in activity.works if work.kind == kind]
    return [(w.name, round(w.begin_s * 1e6, 3), round(w.end_s * 1e6, 3)) for w in chosen]
