"""How Keras counts the batches of a training: a tick is many of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.data.loading.block import AnyFeed
from gpukeras.engine.engines import Logs
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.training.callbacks.functions import tell_next_batch

# Batches Keras counts as one, as with its own `steps_per_execution`. A tick costs about 0.5 ms, and
# cuts a call short.
TICK_BATCHES = 1024
MAX_TICKS = 20


def choose_ticks(steps: int | None, exact: bool = True, each: bool = False) -> int | None:
    """Ticks an epoch: what Keras and its callbacks see as batches.

    Args:
        steps: Batches an epoch, or None if that is unknown.
        exact: Whether it is known for certain; else an epoch is one tick, and runs to its end.
        each: Whether a callback must see every batch: as many as Keras would count on.

    Returns:
        Their number, or None for one a batch until there are no more.
    """
    if each:
        return steps
    return max(1, min(MAX_TICKS, (steps or 1) // TICK_BATCHES)) if exact else 1


@dataclass
class Ticks:
    """What Keras sees as the batches of an epoch.

    Args:
        feed: What gives the rows.
        runner: What trains on them.
        callbacks: Keras callbacks.
        each: Whether a callback must see every batch.
        together: Batches that it then sees as one.
    """

    feed: AnyFeed
    runner: EpochLoop
    callbacks: Sequence[Any]
    each: bool
    together: int
    done: int = 0

    def __post_init__(self) -> None:
        """An epoch has `count` ticks, see `choose_ticks()`."""
        self.count = choose_ticks(self.feed.steps, self.feed.exact, self.each)

    def advance(self) -> Logs:
        """Runs the batches up to the next tick's share of the epoch.

        Raises:
            StopIteration: where a tick is a batch and there are no more.
        """
        self.done += 1
        if self.each:
            return self._run_batches()
        share = (self.feed.steps or 0) * self.done // (self.count or 1)
        return self.runner.advance(share if self.feed.exact else math.inf)

    def _run_batches(self) -> Logs:
        """What Keras counts as one batch, where callbacks work on batches."""
        before, runner, count = self.runner.position, self.runner, self.done * self.together
        logs = runner.advance(count)
        if runner.ended and runner.position == before:
            raise StopIteration
        if count >= (self.count or math.inf):
            while runner.has_more():  # an epoch of rows in sequence is longer than it seemed
                tell_next_batch(self.callbacks, runner.position - 1, logs)
                logs = runner.advance(runner.position + self.together)
        return logs
