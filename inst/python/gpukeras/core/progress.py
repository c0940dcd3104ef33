"""Tells a listener how far a call has come, at intervals; the listener may end the call.

A call with one loop hands its listener to that loop. A call that passes over rows several times, in
readers and encoders that know nothing of it, installs the listener with `heard_by()`, and the
passes report by `count_pass()`. A context variable passes it on, in the thread of the call alone:
R's functions run on its main thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

EVENT_S = 0.2  # seconds between events: smooth for users, without cost for the device

OnEvent = Callable[[dict[str, Any]], Any]
Item = TypeVar("Item")
_listener: ContextVar[OnEvent | None] = ContextVar("gpukeras_listener", default=None)


class CallProgress:
    """Counts the steps of a call that is not a training.

    Args:
        on_event: Called at most every 0.2 s with `{step, steps}`, both numbers of steps, and
            `said`; returns true to end the call. None for no function. Short calls have no event.
        steps: Steps of the whole call, or None if unknown.
        said: What else each event says, see `count_pass()`.
    """

    def __init__(
        self, on_event: OnEvent | None = None, steps: float | None = None, **said: str
    ) -> None:
        """Starts the interval before the first event."""
        self._on_event = on_event
        self._steps = steps
        self._said = said
        self._last = time.perf_counter()

    def reach(self, step: float) -> None:
        """Records that so many steps are done.

        Raises:
            KeyboardInterrupt: if the function ends the call.
        """
        now = time.perf_counter()
        if self._on_event is None or now - self._last < EVENT_S:
            return
        self._last = now
        if self._on_event({"step": step, "steps": self._steps, **self._said}) is True:
            raise KeyboardInterrupt


def count_rows(rows: slice) -> int:
    """Returns the number of rows of a block."""
    return int(rows.stop - rows.start)


@contextmanager
def heard_by(on_event: OnEvent | None) -> Iterator[None]:
    """Makes the passes of a call report to its listener."""
    token = _listener.set(on_event)
    try:
        yield
    finally:
        _listener.reset(token)


def count_pass(
    items: Iterable[Item],
    verb: str,
    steps: float | None,
    count: Callable[[Item], float],
    units: str = "rows",
) -> Iterator[Item]:
    """Yields the items of a pass over rows, and tells the call's listener how far it has come.

    Args:
        items: The items.
        verb: What the pass does, such as "reading".
        steps: Steps of the whole pass, or None if unknown.
        count: Returns the steps of an item that is done.
        units: What steps are: "rows", "bytes", "images" or "batches".

    Raises:
        KeyboardInterrupt: if the listener ends the call.
    """
    progress, done = CallProgress(_listener.get(), steps, verb=verb, units=units), 0.0
    for item in items:
        yield item
        done += count(item)
        progress.reach(done)
