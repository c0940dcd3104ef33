"""Monitors a metric: early stopping with the best weights, and lower rates on a plateau.

Counting is plain Python (`MetricMonitor`); the Keras callbacks only call it and act on its result.
They are created for every training, keep their state when it begins (a resumed training has
restored it before), and count epochs from 1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private
from gpukeras.core.errors import SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.metric_values import read_metrics, split_components
from gpukeras.core.options import (
    Spec,
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_text,
    option,
    refused_value,
)
from gpukeras.engine.optimizer import Rates
from gpukeras.engine.schedules import PlateauSpec
from gpukeras.models.metric_modes import choose_mode

MODE_HINT = 'Say which: `mode = "max"` or `mode = "min"`.'

State = tuple[dict[str, Any], dict[str, np.ndarray]]


@dataclass(frozen=True)
class EarlyStoppingSpec(Spec):
    """When to stop a training that no longer improves.

    Args:
        patience: Epochs without improvement after which it stops.
        monitor: The metric; None is the validation loss, or the loss without validation rows.
        min_delta: Smallest change that counts as an improvement.
        mode: "min" or "max": which is better; None takes what the metric or its name says.
        restore_best: Whether the model ends with the weights of its best epoch.
        start_epoch: The first epoch, counted from 1, that is monitored.
    """

    patience: int = option(MISSING, check_count)
    monitor: str | None = option(None, check_text, "the name of a metric")
    min_delta: float = option(0.0, check_number, 0.0)
    mode: str | None = option(None, check_choice, ("min", "max"))
    restore_best: bool = option(True, check_flag)
    start_epoch: int = option(1, check_count)


def parse_early_stopping(value: Any) -> EarlyStoppingSpec:
    """Parses early stopping from a number of epochs, or a mapping of the fields of its record.

    Raises:
        SpecError: naming the option.
    """
    if isinstance(value, (int, float)):
        return EarlyStoppingSpec(check_count("early_stopping", value))
    if not isinstance(value, Mapping) or "patience" not in value:
        expected = "a number of epochs or a list with `patience`"
        hint = 'Such as list(patience = 5, monitor = "val_loss").'
        raise refused_value("early_stopping", value, expected, hint)
    return EarlyStoppingSpec.from_dict(value)


def choose_monitor(requested: str | None, metrics: list[str]) -> str:
    """Returns the metric to monitor, among the available ones.

    Raises:
        SpecError: if there is none of that name.
    """
    name = requested or ("val_loss" if "val_loss" in metrics else "loss")
    if name not in metrics:
        raise SpecError(
            f'`monitor` is "{name}", which is not among the metrics.',
            hint=f"Metrics are {', '.join(metrics)}.",
            arg="monitor",
        )
    return name


@dataclass
class MetricMonitor:
    """The best value of a metric so far, and the epochs since then.

    Args:
        mode: "min" or "max".
        patience: Epochs without improvement that are tolerated.
        min_delta: Smallest change that counts as an improvement.
        cooldown: Epochs after patience has run out that are not counted.
        metric: The metric's name; "" before the first epoch's values.
        best: The best value; None before there was one.
        best_epoch: Its epoch, from 1; 0 before there was one.
        wait: Epochs without improvement since the best, or since patience ran out.
        cooling: Epochs of the cooldown that are left.
    """

    mode: str
    patience: int
    min_delta: float = 0.0
    cooldown: int = 0
    metric: str = ""
    best: float | None = None
    best_epoch: int = 0
    wait: int = 0
    cooling: int = 0

    @classmethod
    def of(cls, spec: EarlyStoppingSpec | PlateauSpec) -> MetricMonitor:
        """Returns the monitor that was asked for."""
        cooldown = getattr(spec, "cooldown", 0)
        return cls(spec.mode or "min", spec.patience, spec.min_delta, cooldown)

    def read(
        self,
        spec: EarlyStoppingSpec | PlateauSpec,
        values: Mapping[str, float],
        directions: Mapping[str, str],
    ) -> float:
        """Returns the value of the metric to monitor; decides which it is, and which is better.

        Args:
            spec: What was asked for.
            values: An epoch's metrics.
            directions: What the metrics say themselves, see `choose_mode()`.

        Raises:
            SpecError: if the metric is not among them, or which of its values are better is not
                known.
        """
        self.metric = choose_monitor(self.metric or spec.monitor, list(values))
        self.mode = spec.mode or choose_mode(self.metric, directions, arg="mode", hint=MODE_HINT)
        return values[self.metric]

    def see(self, value: float, epoch: int) -> str:
        """Records an epoch's value.

        Args:
            value: The metric's value.
            epoch: The epoch, from 1.

        Returns:
            "better", "waiting", or "due" when patience has run out.
        """
        self.cooling = max(0, self.cooling - 1)
        if self._improves(value):
            self.best = value
            self.best_epoch = epoch
            self.wait = 0
            return "better"
        self.wait = 0 if self.cooling else self.wait + 1
        if self.wait < self.patience:
            return "waiting"
        self.wait, self.cooling = 0, self.cooldown
        return "due"

    def get_state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint, as plain values."""
        names = ("metric", "best", "best_epoch", "wait", "cooling")
        return {name: getattr(self, name) for name in names}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the result of `get_state()`."""
        for name in self.get_state():
            setattr(self, name, state[name])

    def _improves(self, value: float) -> bool:
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        gain = self.best - value if self.mode == "min" else value - self.best
        return gain > self.min_delta


# Callbacks ---------------------------------------------------------------------------------------


class _Watching(ABC):
    """The part that both callbacks share; Keras' base class is added once Keras is imported.

    Attributes:
        watch: Counts the epochs.
        skips: Whether some epochs are not validated; these do not count for a validation's metric.
    """

    model: Model  # set by Keras

    def __init__(self, spec: EarlyStoppingSpec | PlateauSpec) -> None:
        super().__init__()
        self.spec: EarlyStoppingSpec | PlateauSpec = spec
        self.skips = False
        self.watch = MetricMonitor.of(spec)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Records the metric's value of an epoch.

        Raises:
            SpecError: if the metric is not among the logs, or which of its values are better is not
                known.
        """
        values = split_components(read_metrics(logs))
        validated = any(name.startswith("val_") for name in values)
        if self.skips and not validated and (self.watch.metric or self.spec.monitor) not in values:
            return
        directions = keras_private.metric_directions(self.model)
        self.take(self.watch.read(self.spec, values, directions), epoch + 1)

    @abstractmethod
    def take(self, value: float, epoch: int) -> None:
        """Acts on the metric's value."""

    def explain(self) -> str:
        """Returns the monitored metric as part of a sentence; "" before the first epoch."""
        better = "lower" if self.watch.mode == "min" else "higher"
        return f"{self.watch.metric} ({better} is better)" if self.watch.metric else ""

    def get_state(self) -> State:
        """Returns the state for a checkpoint: plain values, and arrays."""
        return {"watch": self.watch.get_state()}, {}

    def set_state(self, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the result of `get_state()`."""
        self.watch.set_state(plain["watch"])


class EarlyStopping(_Watching):
    """Stops a training that no longer improves, and restores its best weights.

    Attributes:
        stopped: Whether patience ran out, which stops the training.
    """

    spec: EarlyStoppingSpec

    def __init__(self, spec: EarlyStoppingSpec) -> None:
        """Starts without a best epoch."""
        super().__init__(spec)
        self.stopped = False
        self._best: list[np.ndarray] = []

    @property
    def best_epoch(self) -> int:
        """The epoch, from 1, whose weights are kept; 0 where none are."""
        return self.watch.best_epoch if self._best else 0

    def take(self, value: float, epoch: int) -> None:
        """Acts on the metric's value."""
        if epoch < self.spec.start_epoch:
            return
        verdict = self.watch.see(value, epoch)
        if verdict == "better" and self.spec.restore_best:
            self._best = [np.array(weights) for weights in self.model.get_weights()]
        if verdict == "due":
            self.watch.wait = self.spec.patience  # a resumption with more patience counts on
            self.stopped = self.model.stop_training = True

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Restores the best weights, however the training ended."""
        self.restore_best()

    def restore_best(self) -> None:
        """Restores the best weights, if they were kept; a second call changes nothing."""
        if self._best:
            self.model.set_weights(self._best)

    def get_state(self) -> State:
        """Returns the state for a checkpoint: plain values, and the best weights by their index."""
        plain, _ = super().get_state()
        best = {f"best/{place:04d}": weights for place, weights in enumerate(self._best)}
        return {**plain, "monitor": self.spec.monitor, "stopped": self.stopped}, best

    def set_state(self, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the result of `get_state()`, unless another metric is asked for now."""
        if plain["monitor"] != self.spec.monitor:
            return
        super().set_state(plain, arrays)
        self.stopped = bool(plain["stopped"]) and self.watch.wait >= self.spec.patience
        kept = sorted(name for name in arrays if name.startswith("best/"))
        self._best = [np.array(arrays[name]) for name in kept]


class Plateau(_Watching):
    """Lowers the rates when a metric stops improving.

    Attributes:
        reductions: The epochs, from 1, after which the rates were lowered.
    """

    spec: PlateauSpec

    def __init__(self, spec: PlateauSpec, rates: Rates) -> None:
        """Starts without reductions."""
        super().__init__(spec)
        self.rates = rates
        self.reductions: list[int] = []

    def take(self, value: float, epoch: int) -> None:
        """Acts on the metric's value."""
        due = self.watch.see(value, epoch) == "due"
        if due and self.rates.reduce(self.spec.factor, self.spec.min_rate):
            self.reductions.append(epoch)

    def get_state(self) -> State:
        """Returns the state for a checkpoint; the rates store their own factor."""
        plain, arrays = super().get_state()
        return {**plain, "reductions": list(self.reductions)}, arrays

    def set_state(self, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the result of `get_state()`."""
        super().set_state(plain, arrays)
        self.reductions = [int(epoch) for epoch in plain["reductions"]]
