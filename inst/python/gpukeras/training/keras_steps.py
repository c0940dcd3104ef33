"""Maps batches to Keras steps: one Keras step stands for many batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.data.loading.block import DataLoader
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.engine.programs import Logs
from gpukeras.training.callbacks.functions import tell_next_batch

# Batches per Keras step, as with Keras' own `steps_per_execution`. A Keras step costs about
# 0.5 ms, and ends a call of the engine.
KERAS_STEP_BATCHES = 1024
MAX_KERAS_STEPS = 20


def count_keras_steps(
    steps: int | None, exact: bool = True, each: bool = False, capacity: int = 1
) -> int | None:
    """Returns the steps per epoch for Keras: what Keras and its callbacks see as batches.

    Args:
        steps: Batches per epoch, or None if unknown.
        exact: Whether that number is certain; otherwise an epoch is one step, and runs to its end.
        each: Whether a callback must see every batch: then as many as in Keras.
        capacity: Batches per block: a step that ends within one would cost a call.

    Returns:
        Their number, or None for one step per batch until there are no more.
    """
    if each:
        return steps
    if not exact or not steps:
        return 1
    return max(1, min(MAX_KERAS_STEPS, steps // KERAS_STEP_BATCHES, -(-steps // max(1, capacity))))


@dataclass
class KerasSteps:
    """The Keras steps of an epoch.

    Args:
        loader: The data loader.
        runner: The epoch loop.
        callbacks: Keras callbacks.
        each: Whether a callback must see every batch.
        together: Batches per step in that case.
    """

    loader: DataLoader
    runner: EpochLoop
    callbacks: Sequence[Any]
    each: bool
    together: int
    done: int = 0

    def __post_init__(self) -> None:
        """Computes the steps per epoch, see `count_keras_steps()`."""
        loader = self.loader
        self.count = count_keras_steps(loader.steps, loader.exact, self.each, loader.capacity)

    def advance(self) -> Logs:
        """Runs the batches up to the next step's share of the epoch.

        Raises:
            StopIteration: where a step is a batch and there are no more.
        """
        self.done += 1
        if self.each:
            return self._run_batches()
        return self.runner.advance(self._share() if self.loader.exact else math.inf)

    def _share(self) -> int:
        """Returns the epoch's batches up to a step's end: whole blocks, as a cut costs a call."""
        steps, count = self.loader.steps or 0, self.count or 1
        share = steps * self.done // count
        block = max(1, self.loader.capacity)
        return share if self.done == count else round(share / block) * block

    def _run_batches(self) -> Logs:
        """Runs one Keras batch, where callbacks work on batches."""
        before, runner, count = self.runner.position, self.runner, self.done * self.together
        logs = runner.advance(count)
        if runner.ended and runner.position == before:
            raise StopIteration
        if count >= (self.count or math.inf):
            while runner.has_more():  # a streamed epoch may be longer than expected
                tell_next_batch(self.callbacks, runner.position - 1, logs)
                logs = runner.advance(runner.position + self.together)
        return logs
