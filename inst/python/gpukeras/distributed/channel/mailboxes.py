"""Passes results and faults from the channel's thread to the calling thread, under one lock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from gpukeras.distributed.channel.errors import Fault

POLL_S = 0.2  # longest delay of an interrupt where waiting for a lock cannot be interrupted


class ResultQueue:
    """Results, the fault if there is one, and whether the collective work is over."""

    def __init__(self) -> None:
        """Starts empty."""
        self._changed = threading.Condition()
        self._results: dict[int, list[memoryview]] = {}
        self._fault: Fault | None = None
        self._over = self._dead = False

    @property
    def fault(self) -> Fault | None:
        """The first fault; it is permanent."""
        with self._changed:
            return self._fault

    @property
    def working(self) -> bool:
        """Whether there is neither a fault nor an end yet."""
        with self._changed:
            return self._fault is None and not self._over

    def put_result(self, number: int, parts: list[memoryview]) -> None:
        """Stores the parts of all workers in call `number`."""
        with self._changed:
            self._results[number] = parts
            self._changed.notify_all()

    def put_fault(self, fault: Fault) -> bool:
        """Stores a fault; returns False if there already is one, which is kept."""
        with self._changed:
            if self._fault is not None or self._over:
                return False
            self._fault = fault
            self._changed.notify_all()
            return True

    def put_over(self) -> None:
        """Stores that all workers have finished."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def put_dead(self) -> None:
        """Stores that the channel's thread has ended."""
        with self._changed:
            self._dead = True
            self._changed.notify_all()

    def wait_result(self, number: int) -> list[memoryview] | None:
        """Returns the result of call `number`, or None if none will arrive."""
        with self._changed:
            # Older results belong to calls that were interrupted.
            self._results = {key: old for key, old in self._results.items() if key >= number}
            while number not in self._results and not self._ended():
                self._changed.wait(POLL_S)
            return self._results.pop(number, None)

    def wait_fault(self, limit_s: float) -> Fault | None:
        """Returns the fault, waiting up to `limit_s` seconds for one."""
        self._wait(self._ended, limit_s)
        return self.fault

    def wait_end(self, limit_s: float) -> None:
        """Waits up to `limit_s` seconds until there is nothing left to wait for."""
        self._wait(self._ended, limit_s)

    def _ended(self) -> bool:
        return self._fault is not None or self._over or self._dead

    def _wait(self, done: Callable[[], bool], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not done() and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(min(left, POLL_S))
