"""Reads a GPU's kernels and copies, with the op of each kernel and each copy's direction."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from gpukeras.profiler.trace.events import Entry, Plane
from gpukeras.profiler.trace.hlo import Program
from gpukeras.profiler.trace.host import OP, find_instruction

GPU_PLANE = re.compile(r"/device:(GPU:\d+)")
STREAM = re.compile(r"^Stream #(\d+)")
# Stats with an op's name: today, and before TensorFlow 2.4 ("#" is followed by shapes and the
# like).
OP_STATS = ("tf_op", "level 0", "annotation")
COPY = re.compile(r"mem(cpy|set)", re.IGNORECASE)  # CUPTI's names of copies and fills
COPIED = re.compile(r"\bsize:(\d+)")
DIRECTIONS = {"MemcpyH2D": "to_device", "MemcpyD2H": "to_host"}


def read_stream_entries(plane: Plane) -> Iterator[tuple[str, Entry]]:
    """Yields every kernel, copy and fill with the number of its stream.

    The profiler derives the plane's other lines ("TensorFlow Ops", "Steps") from these.
    """
    for line in plane.lines:
        match = STREAM.match(line.name)
        if match:
            yield from ((match[1], entry) for entry in line.entries)


def is_copy(name: str) -> bool:
    """Whether the event of this name on a stream is a copy or a fill, not a kernel."""
    return COPY.match(name) is not None


def read_scope(plane: Plane, entry: Entry, programs: Mapping[str, Program]) -> tuple[str, str]:
    """Returns name and type of the op that launched a kernel; "" if the trace does not record it.

    Args:
        plane: The GPU's plane.
        entry: The kernel's event.
        programs: XLA's programs by number and by name.
    """
    stats = plane.stats(entry)
    if "hlo_op" in stats:
        named = (stats.get(name) for name in ("program_id", "hlo_module"))
        instruction = find_instruction(programs, str(stats["hlo_op"]), *named)
        return instruction.scope, instruction.type
    for name in OP_STATS:
        match = OP.match(str(stats.get(name, "")).partition("#")[0])
        if match:
            return match[1], match[2]
    return "", ""


def read_copied(plane: Plane, entry: Entry) -> int | None:
    """Returns the bytes that an event of a stream copied, or None if not recorded."""
    match = COPIED.search(str(plane.stat(entry, "memcpy_details") or ""))
    return int(match[1]) if match else None


def sum_bytes(copies: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    """Returns the bytes by direction, from copies by name; fills copy nothing."""
    total = {"to_device": 0, "to_host": 0, "on_device": 0}
    for name, copied in copies:
        if name.lower().startswith("memcpy"):
            total[DIRECTIONS.get(name, "on_device")] += copied or 0
    return total
