"""Reports the stages of a dataset's pipeline to a clock, for profiling.

    loader: with heard_by(clock) --> sources, the device transform: end_stage("read"), ...

Row sources and row transforms call `end_stage()` at the end of each stage. A profiler installs a
recording clock in the loader, and a context variable passes it on: a source can serve many loaders
on many threads, and no signature needs a clock. Without a profiler the call is a no-op of 0.2 us.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Clock:
    """The receiver of stage reports; this base class ignores them.

    Attributes:
        looks: Whether the clock records; sources may then split stages that usually run as one.
    """

    looks = False

    def start(self) -> None:
        """Marks the start of a block."""

    def stop(self, stage: str, arrays: Sequence[Any]) -> None:
        """Marks the end of a stage; a GPU may still be working on its arrays."""


_BLIND = Clock()
_clock: ContextVar[Clock] = ContextVar("gpukeras_clock", default=_BLIND)


@contextmanager
def heard_by(clock: Clock) -> Iterator[None]:
    """Makes the stages of one block on this thread report to a clock."""
    token = _clock.set(clock)
    try:
        clock.start()
        yield
    finally:
        _clock.reset(token)


def end_stage(stage: str, arrays: Sequence[Any] = ()) -> None:
    """Reports the end of a stage, which began at the previous stage's end or the block's start.

    Args:
        stage: One of `loader.profile.WHAT`; a block may report it several times.
        arrays: Tensors that a device may still be working on; none if the host made all.
    """
    _clock.get().stop(stage, arrays)


def is_watched() -> bool:
    """Whether a recording clock is installed, so that fused stages should be split."""
    return _clock.get().looks
