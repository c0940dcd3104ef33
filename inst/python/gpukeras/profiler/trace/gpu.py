"""What a GPU did, with the op that each kernel belongs to, and what was copied which way."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from gpukeras.profiler.trace.events import Entry, Plane
from gpukeras.profiler.trace.gpu_summary import COPIED, COPY
from gpukeras.profiler.trace.hlo import Program
from gpukeras.profiler.trace.host import OP, find_instruction

STREAM = re.compile(r"^Stream #(\d+)")
# How an op is named: today, and before TensorFlow 2.4 (after "#" come shapes and the like).
OP_STATS = ("tf_op", "level 0", "annotation")
DIRECTIONS = {"MemcpyH2D": "to_device", "MemcpyD2H": "to_host"}


def read_stream_entries(plane: Plane) -> Iterator[tuple[str, Entry]]:
    """Every kernel, copy and fill with the number of its stream.

    Other lines of the plane ("TensorFlow Ops", "Steps") are made from these.
    """
    for line in plane.lines:
        match = STREAM.match(line.name)
        if match:
            yield from ((match[1], entry) for entry in line.entries)


def is_copy(entry: Entry) -> bool:
    """Whether an event of a stream is a copy or a fill."""
    return COPY.match(entry.name) is not None


def read_scope(plane: Plane, entry: Entry, programs: Mapping[str, Program]) -> tuple[str, str]:
    """Name and type of the op that a kernel belongs to; "" where the trace does not say."""
    stats = plane.stats(entry)
    if "hlo_op" in stats:
        named = (stats.get(name) for name in ("program_id", "hlo_module"))
        found = find_instruction(programs, str(stats["hlo_op"]), *named)
        return found.scope, found.type
    for name in OP_STATS:
        match = OP.match(str(stats.get(name, "")).partition("#")[0])
        if match:
            return match[1], match[2]
    return "", ""


def read_copied(plane: Plane, entry: Entry) -> int | None:
    """Bytes that an event of a stream copied, or None where the trace does not say."""
    found = COPIED.search(str(plane.stat(entry, "memcpy_details") or ""))
    return int(found[1]) if found else None


def sum_bytes(copies: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    """Bytes by direction, of copies by name; fills copy nothing."""
    total = {"to_device": 0, "to_host": 0, "on_device": 0}
    for name, copied in copies:
        if name.lower().startswith("memcpy"):
            total[DIRECTIONS.get(name, "on_device")] += copied or 0
    return total
