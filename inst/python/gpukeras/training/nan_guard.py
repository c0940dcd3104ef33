"""Checks whether a training still makes progress: finite losses and weights, and updates.

A model whose loss has become NaN never recovers: every later update is NaN too. Its state is
copied to host memory at the start of an epoch, so that such a training can be stopped with earlier
weights.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from gpukeras.backend import devices
from gpukeras.core.keras_types import Model
from gpukeras.engine.engine_cache import open_watch
from gpukeras.engine.optimizer import STUCK_STEPS, read_rate
from gpukeras.engine.train_step import Averages, step_counter
from gpukeras.models.state import apply_snapshot, take_snapshot

# Share of the time spent on copies: a small model (1 ms) is copied before each epoch of at least
# 50 ms, one of 1 GB (0.3 s) before those of 15 s.
KEEPING_SHARE = 0.02


class NonFiniteLoss(Exception):
    """Ends a training that would otherwise continue with NaN or without updates."""


class DivergenceGuard:
    """Monitors a training.

    Args:
        model: A compiled model whose variables exist.
        averages: Averages of its weights, or None.
        stops: Whether a loss that is not finite ends the training.

    Attributes:
        watch: The monitor that the steps update.
    """

    def __init__(
        self, model: Model, averages: Averages | None = None, *, stops: bool = True
    ) -> None:
        """Copies the state that the training begins with."""
        self._counter = step_counter(model)
        self.watch, self._stops = open_watch(model), stops
        if not stops:
            self.watch.ignore()
        self._more = [*self.watch.variables, *(averages.variables if averages else [])]
        self._model = model
        self._finite = [weight for weight in model.trainable_weights if is_finite(weight)]
        self._epoch = 0
        self._first_step = 0
        self._repeats = devices.repeats()
        self._first_scale = self._read_scale()
        self._began = self._count_updates()
        self._last = self._began, 0
        self._keep(0)
        self._first = self._kept

    @property
    def skipped(self) -> int:
        """Number of steps that loss scaling skipped, because gradients were not finite."""
        if not self._leaves_out():
            return 0
        return max(0, self._count_steps() - (self._count_updates() - self._began))

    def begin_epoch(self, epoch: int, done: int = 0) -> None:
        """Copies the state before an epoch.

        Args:
            epoch: Number of finished epochs.
            done: Batches of this epoch that were done before a resumption.
        """
        self._epoch, self._first_step = epoch, self._count_steps() - done
        spent_s = time.perf_counter() - self._kept_at
        if self._repeats or self._took_s <= KEEPING_SHARE * spent_s:
            self._keep(epoch)

    def rewind(self) -> bool:
        """Restores the state at the start of the epoch; returns False if it was not copied."""
        if self._kept_epoch != self._epoch:
            return False
        apply_snapshot(self._model, self._kept, self._more)
        return True

    def check(self, *, within: bool = False, weights: bool = False) -> None:
        """Reads the results of the steps.

        Args:
            within: Whether a clock chose the step, in the middle of an epoch.
            weights: Whether to read the weights too, which are kept, validated or saved next: the
                loss of a step is that of the weights before its update.

        Raises:
            NonFiniteLoss: if the training cannot make progress any more.
        """
        if not self._stops:
            return
        bad = int(self.watch.bad.numpy())
        if bad:
            raise NonFiniteLoss(
                f"the loss was no finite number at step {bad - self._first_step:,} of epoch "
                f"{self._epoch + 1} (learning rate {read_rate(self._model):.3g})"
            )
        if weights and not all(map(is_finite, self._finite)):
            step = self._count_steps() - self._first_step
            raise NonFiniteLoss(
                f"weights were no finite numbers after step {step:,} of epoch {self._epoch + 1}, "
                "whose loss was still one"
            )
        if (within and self._repeats) or not self._leaves_out():
            return
        updates, steps = self._count_updates(), self._count_steps()
        if updates != self._last[0]:
            self._last = updates, steps
        elif steps - self._last[1] >= STUCK_STEPS:
            missed = steps - self._last[1]
            raise NonFiniteLoss(f"the gradients of the last {missed:,} steps were not finite")

    def restore(self) -> str:
        """Restores the copied state; returns which one it is, as part of a sentence."""
        apply_snapshot(self._model, self._kept, self._more)
        return f"after epoch {self._kept_epoch}" if self._kept_epoch else "that it began with"

    def start_again(self) -> None:
        """Restores the state that the training began with."""
        apply_snapshot(self._model, self._first, self._more)

    def _keep(self, epoch: int) -> None:
        began = time.perf_counter()
        self._kept, self._kept_epoch = take_snapshot(self._model, self._more), epoch
        self._kept_at = time.perf_counter()
        self._took_s = self._kept_at - began

    def _leaves_out(self) -> bool:
        """Whether loss scaling decides on updates; a user's own step may update by other means."""
        scale = self._read_scale()
        moves = scale != self._first_scale or self._count_updates() != self._began
        return scale is not None and moves

    def _read_scale(self) -> float | None:
        """Returns the scale of the loss, which each step halves that is left out."""
        scale = getattr(self._model.optimizer, "dynamic_scale", None)
        return None if scale is None else float(scale.numpy())

    def _count_steps(self) -> int:
        return int(self.watch.steps.numpy())

    def _count_updates(self) -> int:
        return int(self._counter.numpy())


def is_finite(variable: Any) -> bool:
    """Whether all numbers of a variable are finite."""
    return bool(np.isfinite(variable.numpy()).all())


def explain_stop(why: str, which: str) -> str:
    """Returns a note about a training that was stopped because it made no progress.

    Args:
        why: See `NonFiniteLoss`.
        which: The weights that the model has, see `DivergenceGuard.restore()`.
    """
    return (
        f"Stopped: {why}. The model has the weights {which}. A smaller learning rate, "
        "`clip_global_norm = 1` or scaled features may help."
    )
