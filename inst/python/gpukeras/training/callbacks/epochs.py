"""What a training does at its epochs and between calls of the engine, as callbacks.

`Training.in_order()` says in which order they run. Besides Keras' hooks there is
`on_engine_call_end(position, logs)`, see `loop.run_epochs()`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gpukeras.backend import runtime
from gpukeras.checkpoint.manager import Checkpointer, check_grace
from gpukeras.checkpoint.state import TrainingState
from gpukeras.core.errors import CheckpointError
from gpukeras.core.keras_types import Model
from gpukeras.core.metric_values import Value, read_metrics, split_components
from gpukeras.core.preemption import PreemptionNotice
from gpukeras.data.loader.loader import DataLoader
from gpukeras.distributed.consensus import LocalConsensus
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.engine.optimizer import read_rate
from gpukeras.models.state import apply_snapshot, hold_state
from gpukeras.training.callbacks.manager import CallbackManager
from gpukeras.training.listener import ProgressReporter
from gpukeras.training.nan_guard import DivergenceGuard
from gpukeras.training.progress import Progress

Logs = Mapping[str, Any] | None


@dataclass(eq=False)
class Measurement:
    """Comes first: takes an epoch's time and rate, shows the averages, and the final weights.

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

    def on_train_end(self, logs: Logs = None) -> None:
        """Gives the model its final weights, which all that follow see."""
        self.manager.settle()


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
        read: Returns the state, within an epoch (true) or between two; the model's as it is, or as
            `hold_state()` has held it.
        write: Saves a state.
        short: Whether the last batch of an epoch is short.
    """

    saver: Checkpointer
    runner: EpochLoop
    loader: DataLoader
    read: Callable[..., TrainingState]
    write: Callable[[TrainingState], None]
    short: bool

    @property
    def possible(self) -> bool:
        """Whether a checkpoint may be made here: not before the short last batch.

        Keras retraces for any batch size when it sees a second one; results differ in the last bit.
        """
        return not (self.short and self.runner.position == (self.loader.steps or 0) - 1)

    @property
    def whole(self) -> bool:
        """Whether the epoch that ends is whole."""
        return self.runner.finished or not self.runner.stopped

    def save(self, within: bool = False) -> None:
        """Saves a checkpoint, within an epoch or between two."""
        if self.saver.enabled:
            self.write(self.read(within))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Saves a whole epoch; of one that was stopped, a resumption runs the rest."""
        if self.whole:
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
class Preemption:
    """Ends a training whose process is asked to end, once it is saved, on all workers.

    Args:
        notice: Whether this process is asked to end.
        checkpoints: Saves.
        agreement: The decisions that several processes make together.
        state: The checkpoint's state that the training resumes from, or None.

    Attributes:
        enabled: Whether a training ends so: it has checkpoints.
        before: The model's state before the validation that runs, if the epoch's batches are done.
    """

    model: ClassVar[Model]  # set by Keras
    notice: PreemptionNotice
    checkpoints: Checkpoints
    agreement: LocalConsensus
    state: TrainingState | None
    enabled: bool = False
    before: Mapping[str, Any] | None = None

    @property
    def asked(self) -> bool:
        """Whether this process is asked to end."""
        return bool(self.notice.signal)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Measures a save if there is a grace period, and ends what need not begin."""
        saves = self.checkpoints
        self.enabled = self.agreement.agree("begin", saves=saves.saver.enabled)["saves"]
        grace_s, began = saves.saver.grace_s, time.monotonic()
        if grace_s is not None:
            saves.write(saves.read(False) if self.state is None else self.state)
            self.check_saved()
            check_grace(time.monotonic() - began, grace_s)
        self.state = None
        self.end_if_asked()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Ends between two epochs."""
        self.before = None
        if self.checkpoints.whole:
            self.end_if_asked()

    def on_test_begin(self, logs: Logs = None) -> None:
        """Holds the state: the validation replaces the metrics of the batches."""
        saves = self.checkpoints
        if saves.saver.enabled and saves.runner.finished:
            self.before = hold_state(self.model)

    def after_validation_call(self, rows: int) -> None:
        """Ends within a validation, which is run again when the training goes on."""
        if not self.enabled or not self.checkpoints.runner.finished:
            return
        if self.agreement.agree("validation", end=self.asked)["end"]:
            if self.before is not None:
                self.checkpoints.write(self.checkpoints.read(True, self.before))
            self.end()

    def end_if_asked(self) -> None:
        """Ends the training, which is saved, if one of its processes is asked to end."""
        if self.enabled and self.agreement.agree("end", end=self.asked)["end"]:
            self.end()

    def end(self) -> None:
        """Ends the training on all workers, once the chief has saved it.

        Raises:
            PreemptedError: if it is saved.
            CheckpointError: if it could not be saved.
        """
        self.check_saved()
        self.agreement.agree("saved")
        self.notice.heeded = True
        raise self.notice.explain("its training is", self.checkpoints.saver.saved)

    def check_saved(self) -> None:
        """Raises CheckpointError if the last save failed."""
        if failed := self.checkpoints.saver.failed:
            raise CheckpointError(f"The training cannot be saved: {failed}", arg="checkpoint")


@dataclass(eq=False)
class Pauses:
    """Saves and reports between two calls of the engine, the same two in each process.

    Args:
        guard: Checks the losses first.
        checkpoints: Saves.
        events: Reports, and knows what several processes agree on.
        preemption: Ends the training where a process is asked to end.
    """

    guard: DivergenceGuard
    checkpoints: Checkpoints
    events: Events
    preemption: Preemption

    def on_engine_call_end(self, position: int, logs: Logs) -> None:
        """Saves and reports what is due.

        Raises:
            NonFiniteLoss: if the training cannot make progress any more.
            PreemptedError: if a process is asked to end.
        """
        saves = self.checkpoints
        events = self.events
        ending = self.preemption
        due = events.agreement.agree(
            "call", save=saves.saver.due(), emit=events.listener.due, end=ending.asked
        )
        if (due["save"] or due["end"]) and saves.possible:
            self.guard.check(within=True, weights=True)
            saves.save(within=True)
            if due["end"]:
                ending.end()
        if not due["emit"]:
            return
        self.guard.check(within=True)
        loss = {name: value for name, value in (logs or {}).items() if name == "loss"}
        events.emit("progress", read_metrics(loss))
        events.agree_stop("stop")
        if events.progress.stopped == "interrupted" and saves.possible:
            saves.save(within=True)  # before validation, which resets the metrics


@contextmanager
def keeping_backups(callbacks: Sequence[Any], interrupted: Callable[[], bool]) -> Iterator[None]:
    """Keeps what BackupAndRestore saved before an interrupt.

    Keras lets an interrupt end `fit()` at once, so its callback neither counts the epoch that was
    not finished nor deletes its files, as it does at the end of a training.

    Args:
        callbacks: Keras callbacks.
        interrupted: Whether the training was interrupted.
    """
    kind = runtime.keras().callbacks.BackupAndRestore
    backups = [callback for callback in callbacks if isinstance(callback, kind)]

    def unless_interrupted(hook: Callable[..., None]) -> Callable[..., None]:
        return lambda *given, **named: None if interrupted() else hook(*given, **named)

    hooks = ("on_epoch_end", "on_train_end")
    for backup in backups:
        vars(backup).update({name: unless_interrupted(getattr(backup, name)) for name in hooks})
    try:
        yield
    finally:
        for backup in backups:
            for name in hooks:
                del vars(backup)[name]
