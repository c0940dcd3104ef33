"""Builds the report of every compression: what the new model gained and lost.

Every compression ends in `conclude()`: it measures both models side by side and refuses a new model
whose metric fell by more than allowed. The original model is never changed, so a refusal needs no
cleanup.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpukeras.backend import keras_private
from gpukeras.compression.metrics import Figures, measure
from gpukeras.core.errors import CompressionError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import Spec, check_count, check_number, check_text, option
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.engine.batch_rows import model_device
from gpukeras.models.calibration import calibration_of
from gpukeras.models.metric_modes import NAME_HINT, choose_mode, find_mode, refuse_mode
from gpukeras.training.report import FitReport


@dataclass(frozen=True)
class ReportSpec(Spec):
    """Options that all compressions share.

    Args:
        batch_size: Rows of the batch that is timed besides a single row; None for the data's.
        max_drop: Largest allowed loss of the metric, in its own unit (0.01 is one point of
            accuracy); None for any.
        metric: The metric that `max_drop` refers to; None for the first that is not the loss.
    """

    batch_size: int | None = option(None, check_count)
    max_drop: float | None = option(None, check_number, 0.0)
    metric: str | None = option(None, check_text, "the name of a metric")


@dataclass(frozen=True)
class LayerChange:
    """The change of one layer.

    Args:
        layer: Its name.
        kind: Its class.
        change: What was done, a few words, such as "80 % of the kernel set to 0".
        before: A measure of the layer before, in `unit`.
        after: The same measure afterwards.
        unit: Such as "units", "non-zeros", "bits" or "FLOPs".
    """

    layer: str
    kind: str
    change: str
    before: float
    after: float
    unit: str


@dataclass(frozen=True)
class Listed:
    """A layer that was not changed.

    Args:
        layer: Its name.
        kind: Its class.
        reason: Why, a few words.
    """

    layer: str
    kind: str
    reason: str


@dataclass(frozen=True)
class CompressionReport:
    """The result of a compression.

    Args:
        kind: "prune", "quantize" or "distill".
        before: Measurements of the original model.
        after: Measurements of the new model.
        settings: The options, plain values by name.
        layers: The changed layers.
        listed: The layers that could not be changed, and why.
        metric: The metric that measures the loss of quality; "" if nothing was evaluated.
        drop: By how much it got worse, in its own unit (negative: better); None if unknown.
        seconds: Total time, training and measuring included.
        device: Where latency was measured.
        notes: Sentences for the model's owner.
        training: The training that was part of it, or None.
    """

    kind: str
    before: Figures
    after: Figures
    settings: dict[str, Any]
    layers: tuple[LayerChange, ...] = ()
    listed: tuple[Listed, ...] = ()
    metric: str = ""
    drop: float | None = None
    seconds: float = 0.0
    device: str = ""
    notes: tuple[str, ...] = ()
    training: FitReport | None = None


@dataclass(frozen=True)
class Work:
    """The record of a compression's work, from which the report is made.

    Args:
        kind, settings, layers, listed, notes, training: As in `CompressionReport`.
        began: Its start, from `time.perf_counter()`.
    """

    kind: str
    settings: dict[str, Any]
    began: float
    layers: tuple[LayerChange, ...] = ()
    listed: tuple[Listed, ...] = ()
    notes: tuple[str, ...] = ()
    training: FitReport | None = None


def conclude(
    before: Any,
    after: Any,
    work: Work,
    spec: ReportSpec,
    *,
    data: Dataset | None = None,
    validation: Dataset | None = None,
) -> CompressionReport:
    """Measures both models, refuses the new one if it is too much worse, and reports.

    Args:
        before: The original model.
        after: The model made of it.
        work: The compression's work.
        spec: Options.
        data: The rows, or None.
        validation: Rows to evaluate on, or None for the validation rows of `data`.

    Raises:
        CompressionError: if the metric got worse by more than `max_drop`.
        SpecError: if `max_drop` is given and nothing can be evaluated, or `metric` does not exist.
    """
    old, new = measure([before, after], data, spec.batch_size, validation)
    metric, drop = find_drop(old, new, spec.metric, keras_private.metric_directions(before))
    check_drop(old, new, metric, drop, spec.max_drop)
    notes = (*work.notes, *_explain(old, new), *_explain_calibration(before))
    done = {**vars(work), "notes": notes}
    seconds = time.perf_counter() - done.pop("began")
    return CompressionReport(
        before=old,
        after=new,
        metric=metric,
        drop=drop,
        seconds=seconds,
        device=model_device(after),
        **done,
    )


def check_requested(
    model: Model, spec: ReportSpec, data: Dataset | None, validation: Dataset | None
) -> None:
    """Checks before any work that `max_drop` can be judged.

    Args:
        model: The original model.
        spec: Options.
        data: The rows, or None.
        validation: Rows to evaluate on, or None.

    Raises:
        SpecError: if there are no rows, or if nobody knows which values of `metric` are better.
    """
    if spec.max_drop is not None and spec.metric is not None:
        directions = keras_private.metric_directions(model)
        choose_mode(spec.metric, directions, arg="metric", hint=NAME_HINT)
    if spec.max_drop is not None and data is None and validation is None:
        raise SpecError(
            "`max_drop` needs `data`: without rows nobody knows the metric.",
            hint="Give `data`, best with validation rows.",
            arg="max_drop",
        )


def _explain(old: Figures, new: Figures) -> list[str]:
    notes = []
    if old.metrics and old.part != "validation":
        notes.append("Metrics are those of all rows, the trained ones too: none were kept apart.")
    if old.flops is None or new.flops is None:
        notes.append("FLOPs are not known: see gpu_cost().")
    if old.disk_bytes is None or new.disk_bytes is None:
        notes.append("Size on disk is not known: Keras cannot save the model.")
    return notes


def _explain_calibration(before: Model) -> list[str]:
    if calibration_of(before) is None:
        return []
    return ["The new model is not calibrated: it needs a gpu_calibrate() of its own."]


# Metrics -----------------------------------------------------------------------------------------


def find_drop(
    before: Figures, after: Figures, metric: str | None, directions: Mapping[str, str]
) -> tuple[str, float | None]:
    """Returns the metric that measures the loss of quality, and by how much it got worse.

    A metric where more is better (accuracy, AUC, ...) gets worse when it falls, others (losses,
    errors) when they rise. It is None where nothing was evaluated, or where nobody knows which.

    Args:
        before: Measurements with metrics or without.
        after: Measurements with the same metrics.
        metric: The name of one; None for the first that is not a loss and says what is better.
        directions: What the metrics say themselves, see `find_mode()`.

    Raises:
        SpecError: if `metric` is not among them.
    """
    names = [name for name in before.metrics if name in after.metrics]
    if metric is not None and metric not in names:
        known = ", ".join(names) or "none"
        raise SpecError(
            f'`metric` "{metric}" is not a metric of the model.',
            hint=f"Metrics are {known}.",
            arg="metric",
        )
    if not names:
        return "", None
    telling = [name for name in names if find_mode(name, directions)]
    first = next((name for name in telling if not name.endswith("loss")), names[0])
    chosen = metric or first
    fall = before.metrics[chosen] - after.metrics[chosen]
    return chosen, {"max": fall, "min": -fall, None: None}[find_mode(chosen, directions)]


def check_drop(
    before: Figures, after: Figures, metric: str, drop: float | None, max_drop: float | None
) -> None:
    """Refuses a model whose metric got worse by more than `max_drop`.

    Args:
        before: Measurements of the original model.
        after: Measurements of the new model.
        metric: The metric, see `find_drop()`.
        drop: By how much it got worse.
        max_drop: In the metric's unit; None allows everything.

    Raises:
        CompressionError: with `metric`, `before`, `after` and `max_drop` in its details.
        SpecError: if nothing was evaluated, or nobody knows which values of the metric are better.
    """
    if max_drop is None:
        return
    if drop is None and metric:
        raise refuse_mode(metric, arg="metric", hint=NAME_HINT)
    if drop is None:
        raise SpecError(
            "`max_drop` needs rows with labels, and a compiled model.",
            hint="Give `data`, and compile the model with the metric.",
            arg="max_drop",
        )
    if drop <= max_drop:  # never true of NaN
        return
    old, new = before.metrics[metric], after.metrics[metric]
    raise CompressionError(
        f"{metric} goes from {old:.4g} to {new:.4g}, and `max_drop` allows {max_drop:g}.",
        hint="The model given is as it was. Ask for less, train longer, or allow more.",
        arg="max_drop",
        metric=metric,
        before=old,
        after=new,
        max_drop=max_drop,
    )
