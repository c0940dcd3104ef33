"""The computer and one process through psutil: processor, memory, bytes read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import psutil

BYTES_S = 0.2  # files of all disks and network cards are read this often at most: 0.25 ms each time
Count = Sequence[float | None]  # of what only grows, such as bytes


class HostReader:
    """Samples the computer and a process.

    Args:
        pid: The process.

    Raises:
        psutil.NoSuchProcess: It has ended; `read()` raises it too.
    """

    def __init__(self, pid: int) -> None:
        """Reads the counters that the first sample starts from."""
        self._process = psutil.Process(pid)
        self._processor = Meter(self._count_processor)
        self._bytes = Meter(count_bytes, BYTES_S)

    def read(self) -> list[float | None]:
        """A value for each of `fields.HOST_UNITS`; rates since the last call."""
        process, busy, total = self._processor.read()
        disk, network = self._bytes.read()
        return [
            None if process is None else 100 * process,
            float(self._process.memory_info().rss),
            None if busy is None or not total else 100 * busy / total,
            float(psutil.virtual_memory().available),
            disk,
            network,
        ]

    def _count_processor(self) -> Count:
        """Seconds of the process, of all processors at work, and of all processors."""
        own, everyone = self._process.cpu_times(), psutil.cpu_times()
        # Linux counts a guest's time in `user` too; `iowait` is idle, as nothing computes.
        spent = {name: getattr(everyone, name) for name in everyone._fields if "guest" not in name}
        total = sum(spent.values())
        return own.user + own.system, total - spent["idle"] - spent.get("iowait", 0.0), total


class Meter:
    """Growth a second of counters.

    Args:
        count: Reads the counters, None for one that is not there.
        shortest_s: What was found last is given again until this long after it.
    """

    def __init__(self, count: Callable[[], Count], shortest_s: float = 0.0) -> None:
        """Reads the counters that the first call starts from."""
        self._count, self._shortest_s = count, shortest_s
        self._time, self._before = time.monotonic(), count()
        self._rates: Count = [None] * len(self._before)

    def read(self) -> Count:
        """A rate for each counter since the last call that read them."""
        now = time.monotonic()
        seconds = now - self._time
        # A little less: the samples of the usual interval come now and then a little early.
        if seconds > 0.9 * self._shortest_s:
            after = self._count()
            self._rates = find_rates(self._before, after, seconds)
            self._time, self._before = now, after
        return self._rates


def find_rates(before: Count, after: Count, seconds: float) -> Count:
    """Growth a second of each counter.

    None where one is missing or went back, as it does when a network card is removed.

    Args:
        before: The counters.
        after: The same, later.
        seconds: How much later.
    """
    return [
        None if old is None or new is None or new < old else (new - old) / seconds
        for old, new in zip(before, after, strict=True)
    ]


def count_bytes() -> Count:
    """Bytes read from all disks, and received from all networks, the computer's own left out."""
    disk, network = psutil.disk_io_counters(), psutil.net_io_counters(pernic=True)
    received = [card.bytes_recv for name, card in network.items() if name not in ("lo", "lo0")]
    return None if disk is None else float(disk.read_bytes), float(sum(received))


def count_cores() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return psutil.cpu_count() or 1
