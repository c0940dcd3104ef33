"""What a smaller model gained and what it lost: the report of everything in this package.

Every compression ends in `conclude()`: both models are measured side by side, and one whose metric
fell by more than was allowed is refused. The model given is never changed, so that refusing is
enough.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from gpukeras.compression.metrics import Figures, measure_pair
from gpukeras.core.errors import CompressionError, SpecError
from gpukeras.core.options import Spec, check_count, check_number, check_text, option
from gpukeras.data.base import Dataset
from gpukeras.engine.predict_loop import model_device
from gpukeras.training.callbacks.early_stopping import choose_mode
from gpukeras.training.report import FitReport


@dataclass(frozen=True)
class ReportSpec(Spec):
    """What every compression is asked for besides its own options.

    Args:
        batch_size: Rows of the batch that is timed besides a single row; None for the data's.
        max_drop: By how much the metric may get worse, in its own unit (0.01 is one point of
            accuracy); None for any.
        metric: The metric that `max_drop` is about; None for the first that is not the loss.
    """

    batch_size: int | None = option(None, check_count)
    max_drop: float | None = option(None, check_number, 0.0)
    metric: str | None = option(None, check_text, "the name of a metric")


@dataclass(frozen=True)
class LayerChange:
    """What was done to a layer.

    Args:
        layer: Its name.
        kind: Its class.
        change: What was done, a few words, such as "80 % of the kernel set to 0".
        before: A figure of it before, in `unit`.
        after: The same afterwards.
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
    """A layer that was left as it is.

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
    """What a compression did.

    Args:
        kind: "prune", "quantize", "distill" or "separate".
        before: Of the model given.
        after: Of the model made.
        settings: The options, plain values by name.
        layers: What was done to which layer.
        listed: What could not be done, and why.
        metric: The metric that tells what was lost; "" where nothing was evaluated.
        drop: By how much it got worse, in its own unit (negative: better); None if not known.
        seconds: In all, training and measuring included.
        device: Where latency was measured.
        notes: What its owner should know, sentences.
        training: The training that was a part of it, or None.
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
    """What a compression hands in to be reported.

    Args:
        kind, settings, layers, listed, notes, training: As in `CompressionReport`.
        began: When it began, of `time.perf_counter()`.
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
        before: The model given, as it was.
        after: The model made of it.
        work: What was done.
        spec: Options.
        data: The rows, or None.
        validation: Rows to evaluate on, or None for the validation rows of `data`.

    Raises:
        CompressionError: if the metric got worse by more than `max_drop`.
        SpecError: if `max_drop` is given and nothing can be evaluated, or `metric` is not there.
    """
    old, new = measure_pair(before, after, data, spec.batch_size, validation)
    metric, drop = find_drop(old, new, spec.metric)
    check_drop(old, new, spec.max_drop, spec.metric)
    return CompressionReport(
        kind=work.kind,
        before=old,
        after=new,
        settings=work.settings,
        layers=work.layers,
        listed=work.listed,
        metric=metric,
        drop=drop,
        seconds=time.perf_counter() - work.began,
        device=model_device(after),
        notes=(*work.notes, *_explain(old, new)),
        training=work.training,
    )


def check_requested(spec: ReportSpec, data: Dataset | None, validation: Dataset | None) -> None:
    """Before anything is done: `max_drop` needs rows to evaluate on.

    Raises:
        SpecError: if there are none.
    """
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


# Metrics -----------------------------------------------------------------------------------------


def find_drop(before: Figures, after: Figures, metric: str | None) -> tuple[str, float | None]:
    """The metric that tells what was lost, and by how much it got worse.

    A metric of which more is better (accuracy, AUC, ...) gets worse when it falls, others (losses,
    errors) when they rise.

    Args:
        before: With metrics or without.
        after: With the same metrics.
        metric: The name of one; None for the first that is not the loss.

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
    chosen = metric or next((name for name in names if not name.endswith("loss")), names[0])
    fall = before.metrics[chosen] - after.metrics[chosen]
    return chosen, fall if choose_mode(chosen) == "max" else -fall


def check_drop(
    before: Figures, after: Figures, max_drop: float | None, metric: str | None = None
) -> None:
    """Refuses a model whose metric got worse by more than `max_drop`.

    Args:
        before: Of the model given.
        after: Of the model made.
        max_drop: In the metric's unit; None allows everything.
        metric: See `find_drop()`.

    Raises:
        CompressionError: with `metric`, `before`, `after` and `max_drop` in its details.
        SpecError: if nothing was evaluated.
    """
    if max_drop is None:
        return
    name, drop = find_drop(before, after, metric)
    if drop is None:
        raise SpecError(
            "`max_drop` needs rows with labels, and a compiled model.",
            hint="Give `data`, and compile the model with the metric.",
            arg="max_drop",
        )
    if drop <= max_drop:  # never true of NaN
        return
    old, new = before.metrics[name], after.metrics[name]
    raise CompressionError(
        f"{name} goes from {old:.4g} to {new:.4g}, and `max_drop` allows {max_drop:g}.",
        hint="The model given is as it was. Ask for less, train longer, or allow more.",
        arg="max_drop",
        metric=name,
        before=old,
        after=new,
        max_drop=max_drop,
    )
