"""What the stages of a dataset's pipeline report to, while somebody measures them.

    loader: with heard_by(clock) --> sources, the device transform: end_stage("read"), ...

Sources and functions on rows call `end_stage()` where a stage of theirs ends. A profiler installs a
recording clock in the loader; a context variable carries it, so that a source serves many loaders
on many threads and no signature knows of clocks. Otherwise the call is a no-op of 0.2 us.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Clock:
    """Where stages report to; this one does not look at them.

    Attributes:
        looks: Whether it does: what usually runs as one may then run as several stages.
    """

    looks = False

    def start(self) -> None:
        """A block begins."""

    def stop(self, stage: str, arrays: Sequence[Any]) -> None:
        """A stage has given its arrays, which a GPU may still be working on."""


_BLIND = Clock()
_clock: ContextVar[Clock] = ContextVar("gpukeras_clock", default=_BLIND)


@contextmanager
def heard_by(clock: Clock) -> Iterator[None]:
    """The stages of one block, on this thread, report to a clock."""
    token = _clock.set(clock)
    try:
        clock.start()
        yield
    finally:
        _clock.reset(token)


def end_stage(stage: str, arrays: Sequence[Any] = ()) -> None:
    """What was done since the stage before, or since the block's start, was this stage.

    Args:
        stage: One of `loading.profile.WHAT`; it may come again and again.
        arrays: Tensors that a device may still be working on; none where the host made all.
    """
    _clock.get().stop(stage, arrays)


def is_watched() -> bool:
    """Whether stages that usually run as one are to be told apart."""
    return _clock.get().looks
