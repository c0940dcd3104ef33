"""Samples the CPU, memory and bytes read of the computer and one process through psutil."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psutil

BYTES_S = 0.2  # shortest interval between reads of disk and network counters: 0.25 ms each
Count = Sequence[float | None]  # values of monotonic counters, such as bytes


class HostReader:
    """A reader of the computer's and one process's use of CPU, memory, disk and network.

    Args:
        pid: Id of the process.

    Raises:
        psutil.NoSuchProcess: if the process has ended; `read()` raises it too.
    """

    def __init__(self, pid: int) -> None:
        """Reads the initial counters."""
        self._process = psutil.Process(pid)
        self._processor = Meter(self._count_processor)
        self._bytes = Meter(count_bytes, BYTES_S)

    def read(self) -> list[float | None]:
        """Returns a value for each of `fields.HOST_UNITS`, with rates since the last call."""
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
        """Returns CPU seconds of the process, and busy and total CPU seconds of the computer."""
        own, everyone = self._process.cpu_times(), psutil.cpu_times()
        # Linux includes guest time in `user`; `iowait` is idle time, because nothing computes.
        spent = {name: getattr(everyone, name) for name in everyone._fields if "guest" not in name}
        total = sum(spent.values())
        return own.user + own.system, total - spent["idle"] - spent.get("iowait", 0.0), total


class Meter:
    """A meter of the growth per second of counters.

    Args:
        count: Reads the counters; None for a missing one.
        shortest_s: Shortest interval in seconds between two reads; an earlier call returns the last
            rates again.
    """

    def __init__(self, count: Callable[[], Count], shortest_s: float = 0.0) -> None:
        """Reads the initial counters."""
        self._count, self._shortest_s = count, shortest_s
        self._time, self._before = time.monotonic(), count()
        self._rates: Count = [None] * len(self._before)

    def read(self) -> Count:
        """Returns a rate for each counter since the last call that read the counters."""
        now = time.monotonic()
        seconds = now - self._time
        # 0.9, because samples at the default interval sometimes come slightly early.
        if seconds > 0.9 * self._shortest_s:
            after = self._count()
            self._rates = find_rates(self._before, after, seconds)
            self._time, self._before = now, after
        return self._rates


def find_rates(before: Count, after: Count, seconds: float) -> Count:
    """Returns the growth per second of each counter.

    A rate is None if a counter is missing or decreased, as when a network card is removed.

    Args:
        before: The earlier counters.
        after: The later counters.
        seconds: Time between them.
    """
    return [
        None if old is None or new is None or new < old else (new - old) / seconds
        for old, new in zip(before, after, strict=True)
    ]


def count_bytes() -> Count:
    """Returns bytes read from all disks and bytes received from all networks except loopback."""
    disk, network = psutil.disk_io_counters(), psutil.net_io_counters(pernic=True)
    received = [card.bytes_recv for name, card in network.items() if name not in ("lo", "lo0")]
    return None if disk is None else float(disk.read_bytes), float(sum(received))
