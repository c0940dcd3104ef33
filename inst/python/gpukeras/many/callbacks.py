"""What a training of a stack does at its epochs, model by model, as callbacks.

`StackTraining.in_order()` says in which order they run. Logs are arrays with one entry a model. A
model rests from the epoch in which it was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gpukeras.core.keras_types import Model
from gpukeras.core.metric_values import read_metrics, split_components
from gpukeras.engine.optimizer import count_steps, read_rate, reduce_factor
from gpukeras.engine.schedules import draw_rates_at, parse_schedule
from gpukeras.many.fits import ModelHistory
from gpukeras.many.partitions import PartitionedStack
from gpukeras.many.stack import Stack
from gpukeras.training.callbacks.early_stopping import EarlyStoppingSpec, MetricMonitor
from gpukeras.training.listener import ProgressReporter

Logs = dict[str, Any]


class StoppedError(Exception):
    """The user ended the training within an epoch."""


@dataclass(eq=False)
class Divergence:
    """Gives models whose loss or weights are no numbers the state before the epoch; stops them.

    Args:
        histories: Those of the models.

    Attributes:
        before: The stack's state before the epoch.
    """

    model: ClassVar[Stack | PartitionedStack]  # set by Keras
    histories: Sequence[ModelHistory]
    before: Any = None
    _finite: Any = None  # of the weights before the epoch, see `Stack.are_finite()`

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Keeps the state."""
        self.before, self._finite = self.model.copy_state(), self.model.are_finite()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Looks at the losses; models that loss scaling lets train no more have none.

        The weights are looked at too: the loss of a step is that of the weights before its update.
        """
        lost = (self._finite & ~self.model.are_finite()).any(axis=1)
        logs["loss"] = np.where(self.model.are_stuck() | lost, np.nan, logs["loss"])
        rests = [bool(history.stopped) for history in self.histories]
        failed = ~np.isfinite(logs["loss"]) & ~np.array(rests)
        for place in np.flatnonzero(failed):
            self.histories[place].stopped = "non_finite"
        if failed.any():
            self.model.state = self.model.keep(~failed, self.before)


@dataclass(eq=False)
class Recording:
    """Adds the epoch to the histories of the models that trained in it.

    Args:
        histories: Those of the models.
        holds_out: Whether each model has rows to be validated on.
    """

    histories: Sequence[ModelHistory]
    holds_out: Sequence[bool]

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Records the metrics, of a model without validation rows those of its training."""
        values = {name: np.atleast_1d(each) for name, each in logs.items()}
        trained = {name: each for name, each in values.items() if not name.startswith("val_")}
        for place, (history, holds_out) in enumerate(
            zip(self.histories, self.holds_out, strict=True)
        ):
            if history.stopped:
                continue
            known = values if holds_out else trained
            own = {name: each[place] for name, each in known.items()}
            for name, value in read_metrics(own).items():
                history.metrics.setdefault(name, []).append(value)


@dataclass(eq=False)
class _Watching:
    """The part that both following callbacks share: a monitor for each model.

    Args:
        histories: Those of the models, which have the epoch already.
        spec: What to watch, and how patiently.
        directions: What the models' metrics say themselves, see `choose_mode()`.
    """

    model: ClassVar[Stack | PartitionedStack]
    histories: Sequence[ModelHistory]
    spec: Any
    directions: Mapping[str, str]

    def __post_init__(self) -> None:
        """Starts without a best epoch."""
        self.monitors = [MetricMonitor.of(self.spec) for _ in self.histories]

    def resume(self, states: Sequence[Mapping[str, Any] | None]) -> None:
        """Goes on from where the monitors of an earlier process stood."""
        for monitor, state in zip(self.monitors, states, strict=True):
            if state is not None:
                monitor.set_state(state)

    def see(self, epoch: int) -> Iterator[tuple[int, str]]:
        """Yields the places of models that train, with what `MetricMonitor.see()` says of them.

        Raises:
            SpecError: if there is no such metric, or which of its values are better is not known.
        """
        for place, monitor in enumerate(self.monitors):
            if self.histories[place].stopped:
                continue
            last = {name: values[-1] for name, values in self.histories[place].metrics.items()}
            value = monitor.read(self.spec, split_components(last), self.directions)
            if epoch + 1 >= getattr(self.spec, "start_epoch", 1):
                yield place, monitor.see(value, epoch + 1)


class StackEarlyStopping(_Watching):
    """Stops models that no longer improve, and keeps their best states."""

    spec: EarlyStoppingSpec
    best: Any = None  # a state of the stack

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Looks at the metric of each model."""
        better = np.zeros(len(self.histories), bool)
        for place, verdict in self.see(epoch):
            history = self.histories[place]
            better[place] = verdict == "better"
            if verdict == "due":
                history.stopped = "early"
            if self.spec.restore_best:
                history.best_epoch = self.monitors[place].best_epoch
        self.best = self.model.keep(better, self.best)

    def restore_best(self) -> None:
        """Restores the best states of models that have one; a second call changes nothing."""
        if self.best is not None:
            kept = np.array([history.best_epoch > 0 for history in self.histories])
            self.model.state = self.model.keep(~kept, self.best)


class StackRates:
    """The rates of a training, by a schedule or by each optimizer itself.

    Args:
        models: The models before their training.
        steps: Steps of an epoch of each.
        epochs: Epochs of the training.
        schedule: The schedule, see `schedules`; None for the optimizers' own rates.

    Attributes:
        steps: Steps of an epoch of each model.
        own: The rate that each optimizer began with.
        factors: What each model's rates are multiplied by, see `reduce()`.
    """

    def __init__(
        self,
        models: Sequence[Model],
        steps: Sequence[int],
        epochs: int,
        schedule: Mapping[str, Any] | None,
    ) -> None:
        """Reads where the optimizers stand."""
        self.steps = steps
        self._epochs = epochs
        self.schedule = None if schedule is None else parse_schedule(schedule)
        self.own = [read_rate(model) for model in models]
        self.factors = np.ones(len(models), np.float32)
        self._began = np.array([count_steps(model) for model in models])

    def draw(self, count_steps: Callable[[], np.ndarray]) -> np.ndarray | None:
        """Returns the rates of each model's next epoch, (models, steps); None for their own.

        Args:
            count_steps: Returns the steps that each optimizer has done.
        """
        if self.schedule is None:
            return None
        rates = np.zeros((len(self.steps), max(self.steps)), np.float32)
        for place, first in enumerate(count_steps() - self._began):
            steps = self.steps[place]
            drawn = self._draw(place, first + np.arange(steps))
            rates[place, :steps] = drawn * self.factors[place]
        return rates

    def reduce(self, place: int, by: float, lowest: float) -> None:
        """Multiplies all later rates of a model by a schedule; see `Rates.reduce()`."""
        last = self.steps[place] * self._epochs - 1
        highest = float(self._draw(place, np.array([last]))[0])  # after a warm-up, if any
        self.factors[place] = reduce_factor(self.factors[place], by, lowest, highest)

    def _draw(self, place: int, at: np.ndarray) -> np.ndarray:
        """Returns a model's rates by the schedule at steps from the training's start."""
        assert self.schedule is not None
        steps = self.steps[place]
        return draw_rates_at(self.schedule, self.own[place], at, steps * self._epochs, steps)


@dataclass(eq=False)
class StackPlateau(_Watching):
    """Lowers the rates of models when a metric of theirs stops improving.

    Args:
        rates: The rates.
    """

    rates: StackRates

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Looks at the metric of each model."""
        for place, verdict in self.see(epoch):
            if verdict == "due":
                self.rates.reduce(place, self.spec.factor, self.spec.min_rate)


@dataclass(eq=False)
class StackEvents:
    """Reports the progress to the listener, whose answer may end the training.

    Args:
        histories: Those of the models, which have the epoch already: where all have stopped, the
            training ends too.
        listener: Receives the events.
    """

    model: ClassVar[Stack | PartitionedStack]
    histories: Sequence[ModelHistory]
    listener: ProgressReporter
    _epoch: int = 0

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch + 1

    def on_engine_call_end(self, position: int, logs: Mapping[str, Any]) -> None:
        """Asks whether the user wants to stop.

        Raises:
            StoppedError: if so.
        """
        listener = self.listener
        if listener.due and listener.emit("waiting", self._epoch, 0, None, {}):
            raise StoppedError

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Reports the means of the metrics of the models that trained in the epoch."""
        values: dict[str, list[float]] = {}
        for history in self.histories:
            if history.epochs == epoch + 1:  # those that rest have fewer
                for name, each in history.metrics.items():
                    if isinstance(each[-1], float):
                        values.setdefault(name, []).append(each[-1])
        means = {name: float(np.nanmean(each)) for name, each in values.items()}
        ended = self.listener.emit("epoch", epoch + 1, 0, None, means)
        self.model.stop_training = ended or all(history.stopped for history in self.histories)
