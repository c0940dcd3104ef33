"""The histories of the models of a stack: early stopping, and losses that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpukeras.core.metric_values import Value, order_metrics, read_metrics, split_components
from gpukeras.training.callbacks.early_stopping import (
    EarlyStoppingSpec,
    MetricMonitor,
    choose_mode,
    choose_monitor,
)

Logs = Mapping[str, np.ndarray]


@dataclass
class ModelHistory:
    """What one model has come to in its training.

    Args:
        metrics: Each metric's value after each epoch.
        stopped: "" while it trains, then "completed", "early", "interrupted", "non_finite" or,
            where a worker could not train it, "failed".
        best_epoch: The epoch, from 1, whose weights it ends with; 0 for the last one.
        rates: The learning rate of each epoch's last step.
        skipped: Steps that loss scaling left out, because gradients were not finite.
        monitor: Counts epochs without improvement; None without early stopping.
    """

    monitor: MetricMonitor | None = None
    metrics: dict[str, list[Value]] = field(default_factory=dict)
    stopped: str = ""
    best_epoch: int = 0
    rates: list[float] = field(default_factory=list)
    skipped: int = 0

    @property
    def epochs(self) -> int:
        """Epochs in the history."""
        return len(self.metrics.get("loss", ()))


@dataclass(frozen=True)
class Verdict:
    """What an epoch's logs mean for the models of a stack; one entry a model.

    Args:
        better: Whether its weights are those to keep.
        failed: Whether its loss is no number, so that it returns to the epoch before.
    """

    better: np.ndarray
    failed: np.ndarray


def begin_histories(count: int, spec: EarlyStoppingSpec | None) -> list[ModelHistory]:
    """Returns the histories of models before their training."""
    if spec is None:
        return [ModelHistory() for _ in range(count)]
    made = [MetricMonitor(spec.mode or "min", spec.patience, spec.min_delta) for _ in range(count)]
    return [ModelHistory(one) for one in made]


def record_epoch(
    models: Sequence[ModelHistory], logs: Logs, epoch: int, spec: EarlyStoppingSpec | None
) -> Verdict:
    """Records an epoch of those models that still train.

    Args:
        models: The models.
        logs: Metrics by name, one entry a model; those of validation begin with "val_".
        epoch: The epoch, from 1.
        spec: When to stop; None for never.

    Raises:
        SpecError: if the metric to monitor is not among the logs.
    """
    better, failed = np.zeros(len(models), bool), np.zeros(len(models), bool)
    for place, model in enumerate(models):
        if model.stopped:
            continue
        found = read_metrics({name: values[place] for name, values in logs.items()})
        if not math.isfinite(float(np.sum(found["loss"]))):
            model.stopped, failed[place] = "non_finite", True
            continue
        for name in order_metrics(found):
            model.metrics.setdefault(name, []).append(found[name])
        better[place] = _improves(model, found, epoch, spec)
    return Verdict(better, failed)


def _improves(
    model: ModelHistory, found: Mapping[str, Value], epoch: int, spec: EarlyStoppingSpec | None
) -> bool:
    """Whether an epoch's weights are those to keep; stops a model whose patience has run out."""
    if spec is None or model.monitor is None or epoch < spec.start_epoch:
        return True
    values = split_components(found)
    name = choose_monitor(spec.monitor, list(values))
    model.monitor.mode = spec.mode or choose_mode(name)
    word = model.monitor.see(values[name], epoch)
    if word == "due":
        model.stopped = "early"
    if not spec.restore_best:
        return True
    model.best_epoch = model.monitor.best_epoch
    return word == "better"
