"""Tells a listener how far a call has come, at intervals; the listener may end the call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

EVENT_S = 0.2  # seconds between events: smooth for users, without cost for the device

OnEvent = Callable[[dict[str, Any]], Any]


class CallProgress:
    """Counts the steps of a call that is not a training.

    Args:
        on_event: Called at most every 0.2 s with `{step, steps}`, both numbers of steps; returns
            true to end the call. None for no function. Short calls have no event.
        steps: Steps of the whole call, or None if unknown.
    """

    def __init__(self, on_event: OnEvent | None = None, steps: int | None = None) -> None:
        """Starts the interval before the first event."""
        self._on_event = on_event
        self._steps = steps
        self._last = time.perf_counter()

    def reach(self, step: int) -> None:
        """Records that so many steps are done.

        Raises:
            KeyboardInterrupt: if the function ends the call.
        """
        now = time.perf_counter()
        if self._on_event is None or now - self._last < EVENT_S:
            return
        self._last = now
        if self._on_event({"step": step, "steps": self._steps}) is True:
            raise KeyboardInterrupt
