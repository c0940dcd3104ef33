"""What a training does at its epochs and between calls of the engine, as callbacks.

`Training.in_order()` says in which order they run. Besides Keras' hooks there is
`on_engine_call_end(position, logs)`, see `loop.run_epochs()`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gpukeras.checkpoint.manager import Saver
from gpukeras.checkpoint.state import TrainingState
from gpukeras.core.keras_types import Model
from gpukeras.core.metric_values import Value, read_metrics, split_components
from gpukeras.data.loading.block import DataLoader
from gpukeras.distributed.consensus import LocalConsensus
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.engine.optimizer import read_rate
from gpukeras.models.state import apply_snapshot
from gpukeras.training.callbacks.manager import CallbackManager
from gpukeras.training.listener import ProgressReporter
from gpukeras.training.nan_guard import DivergenceGuard
from gpukeras.training.progress import Progress

Logs = Mapping[str, Any] | None


@dataclass(eq=False)
class Measurement:
    """Comes first at an epoch's end: takes its time and rate, and shows the averages.

    Args:
        progress: The progress of the training.
        manager: Has the averages.

    Attributes:
        took_s: Seconds of the last epoch.
        rate: The rate of its last step.
    """

    model: ClassVar[Model]  # set by Keras
    progress: Progress
    manager: CallbackManager
    took_s: float = 0.0
    rate: float = math.nan

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Measures the epoch."""
        self.took_s = time.perf_counter() - self.progress.began
        self.rate = read_rate(self.model, -1)
        self.manager.show_averages()


@dataclass(eq=False)
class Resumption:
    """Restores the state of a checkpoint, once Keras has reset the metrics.

    Args:
        progress: The progress of the training.
        state: The checkpoint's state, or None.
    """

    model: ClassVar[Model]
    progress: Progress
    state: TrainingState | None

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Begins the epoch, and restores the state before the first one."""
        self.progress.began = time.perf_counter()
        self.progress.skip_to(epoch)
        if self.state is None:
            return
        apply_snapshot(self.model, self.state.snapshot)
        if not self.state.position:
            self.model.reset_metrics()  # they belong to the epoch before
        self.state = None


@dataclass(eq=False)
class Guarding:
    """Copies the state before an epoch, to which a training returns from a loss that is no number.

    Args:
        guard: Copies the state; `Calls.check` and `Pauses` ask it for the losses.
        progress: The progress of the training.
    """

    guard: DivergenceGuard
    progress: Progress

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Copies the state."""
        self.guard.begin_epoch(self.progress.epoch, self.progress.done)


@dataclass(eq=False)
class Recording:
    """Gives the model its weights back, and adds a finished epoch to the progress.

    Args:
        measured: The epoch's time and rate.
        runner: Runs the epoch.
    """

    measured: Measurement
    runner: EpochLoop

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Records the epoch."""
        measured, rows = self.measured, self.runner.rows
        measured.manager.hide_averages()
        measured.progress.add(read_metrics(logs), measured.took_s, rows, measured.rate)


@dataclass(eq=False)
class Checkpoints:
    """Saves a training between epochs, and within them when it is asked to.

    Args:
        saver: Writes the files.
        runner: Runs the epoch.
        loader: Makes its blocks.
        write: Saves the state, within an epoch (true) or between two.
        short: Whether the last batch of an epoch is short.
    """

    saver: Saver
    runner: EpochLoop
    loader: DataLoader
    write: Callable[[bool], None]
    short: bool

    @property
    def possible(self) -> bool:
        """Whether a checkpoint may be made here: not before the short last batch.

        Keras retraces for any batch size when it sees a second one; results differ in the last bit.
        """
        return not (self.short and self.runner.position == (self.loader.steps or 0) - 1)

    def save(self, within: bool = False) -> None:
        """Saves a checkpoint, within an epoch or between two."""
        if self.saver.enabled:
            self.write(within)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Saves a whole epoch; of one that was stopped, a resumption runs the rest."""
        if self.runner.finished or not self.runner.stopped:
            self.save()


@dataclass(eq=False)
class Events:
    """Reports the progress to the listener, whose answer may end the training.

    Args:
        listener: Receives the events.
        progress: The progress of the training.
        agreement: The decisions that several processes make together.

    Attributes:
        runner: Runs the epoch, set once there is one.
    """

    model: ClassVar[Model]
    listener: ProgressReporter
    progress: Progress
    agreement: LocalConsensus
    runner: EpochLoop = field(init=False)

    def emit(self, kind: str, metrics: Mapping[str, Value]) -> bool:
        """Reports an event; returns whether the training is to stop."""
        epoch, loader = self.progress.epoch + (kind != "epoch"), self.runner.loader
        step, steps = self.runner.position, None if loader is None else loader.steps
        if self.listener.emit(kind, epoch, step, steps, split_components(metrics)):
            self.progress.stopped = "interrupted"
            self.model.stop_training = True
        return bool(self.model.stop_training)

    def idle(self) -> None:
        """Handles a user's interrupt while rows are waited for."""
        if self.listener.due and self.emit("waiting", {}):
            raise KeyboardInterrupt

    def agree_stop(self, kind: str) -> None:
        """Ends the training if one of its processes asks for it."""
        stop, progress = bool(self.model.stop_training), self.progress
        interrupted = progress.stopped == "interrupted"
        wishes = self.agreement.agree(kind, stop=stop, interrupted=interrupted)
        progress.stopped = "interrupted" if wishes["interrupted"] else progress.stopped
        self.model.stop_training = wishes["stop"]

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Reports the epoch."""
        self.emit("epoch", read_metrics(logs))
        self.agree_stop("epoch")


@dataclass(eq=False)
class Pauses:
    """Saves and reports between two calls of the engine, the same two in each process.

    Args:
        guard: Checks the losses first.
        checkpoints: Saves.
        events: Reports, and knows what several processes agree on.
    """

    guard: DivergenceGuard
    checkpoints: Checkpoints
    events: Events

    def on_engine_call_end(self, position: int, logs: Logs) -> None:
        """Saves and reports what is due.

        Raises:
            NonFiniteLoss: if the training cannot make progress any more.
        """
        saves, events = self.checkpoints, self.events
        due = events.agreement.agree("call", save=saves.saver.due(), emit=events.listener.due)
        if due["save"] and saves.possible:
            self.guard.check(within=True)
            saves.save(within=True)
        if not due["emit"]:
            return
        self.guard.check(within=True)
        loss = {name: value for name, value in (logs or {}).items() if name == "loss"}
        events.emit("progress", read_metrics(loss))
        events.agree_stop("stop")
        if events.progress.stopped == "interrupted" and saves.possible:
            saves.save(within=True)  # before validation, which resets the metrics
