"""Prunes a model: sets most weights to 0 during training, or removes whole units.

Magnitude pruning sets single weights to 0. Files compress better and accuracy hardly falls, but the
model computes as much as before: TensorFlow multiplies by zeros too. Structured pruning
(`structured`) builds a smaller model, which is faster everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, tensor_ops
from gpukeras.compression.layer_options import check_excluded, is_named
from gpukeras.compression.masks import (
    DEPTHWISE,
    Kernel,
    apply_masks,
    find_zeros,
    list_kernels,
    list_layers,
    read_masks,
    sparsity,
)
from gpukeras.compression.prune_options import PruneSpec, late_stopping
from gpukeras.compression.report import LayerChange, Listed, Work, check_requested, conclude
from gpukeras.compression.sparsity_schedule import Growth, plan_ramp, zero_smallest
from gpukeras.compression.structured import Narrowed, narrow_model
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import percent
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import sample_rows
from gpukeras.engine.batch_rows import model_device
from gpukeras.engine.optimizer import find_optimizer
from gpukeras.models import model_checks
from gpukeras.models.clone import copy_model
from gpukeras.models.variables import build_variables
from gpukeras.training import fit
from gpukeras.training.keras_functions import SAMPLE
from gpukeras.training.report import FitReport

Train = Callable[[Model, Mapping[str, Any]], FitReport]  # by the options of the training


def prune(
    model: Model,
    data: Dataset | None = None,
    options: Mapping[str, Any] | None = None,
    validation: Dataset | None = None,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Returns a pruned copy of a model.

    Args:
        model: A built and compiled Keras model; it is not changed.
        data: Rows to train on; may be None if `epochs` is 0.
        options: Fields of `PruneSpec`.
        validation: Rows to evaluate on, or None for the validation rows of `data`.
        on_event: As in `training.fit()`.

    Returns:
        `{model, report}`: the new model, and a `CompressionReport`.

    Raises:
        SpecError: for a bad option, or a name in `exclude` that no layer has.
        ModelError: if there is nothing to prune, or Keras cannot copy the model.
        CompressionError: if the metric got worse by more than `max_drop`.
    """
    spec = PruneSpec.from_dict(options or {})
    model_checks.check_model(model, compiled=spec.epochs > 0)
    check_requested(spec, data, validation)
    if data is None and spec.epochs:
        raise DataError("`data` is missing.", hint="Give it, or `epochs = 0`.", arg="data")
    _build(model, data)
    check_excluded(spec.exclude, [path for path, _ in list_layers(model)])
    began = time.perf_counter()

    def train(made: Model, settings: Mapping[str, Any]) -> FitReport:
        assert data is not None  # as was checked
        if spec.learning_rate is not None:
            _set_rate(made, spec.learning_rate)
        asked = {**settings, "epochs": spec.epochs}
        return fit.fit(made, data, asked, validation=validation, on_event=on_event)

    make = _take_units if spec.structured else _zero_weights
    made, work = make(model, data, spec, train, Work("prune", spec.settings, began))
    work = replace(work, notes=(*_explain_training(work.training), *work.notes))
    report = conclude(model, made, work, spec, data=data, validation=validation)
    return {"model": made, "report": report}


def _build(model: Model, data: Dataset | None) -> None:
    """Builds a model without weights from the first rows, as a training does."""
    if not model.built and data is not None and model.compiled:
        build_variables(model, sample_rows(data, SAMPLE))
    if not model.built:
        raise ModelError("`model` has no weights to prune.", hint="Train it first.", arg="model")


# Single weights ----------------------------------------------------------------------------------


def _zero_weights(
    model: Model, data: Dataset | None, spec: PruneSpec, train: Train, work: Work
) -> tuple[Any, Work]:
    """Prunes a copy of the model by magnitude."""
    copy = copy_model(model)
    apply_masks(copy, read_masks(model))
    kernels, listed = choose_kernels(copy, spec.exclude)
    before = {kernel.path: int(np.count_nonzero(kernel.variable)) for kernel in kernels}
    trained = None
    if spec.epochs and data is not None:
        trained = _train_masks(copy, kernels, count_steps(copy, data), spec, train)
    else:
        zero_smallest(kernels, spec.sparsity, _is_whole(spec))
    masks = _settle(copy, kernels)
    notes = tuple(_explain_share(masks, spec))
    changes = tuple(_describe_mask(kernel, before[kernel.path]) for kernel in kernels)
    return copy, replace(work, layers=changes, listed=tuple(listed), notes=notes, training=trained)


def choose_kernels(model: Model, exclude: Sequence[str]) -> tuple[list[Kernel], list[Listed]]:
    """Returns the kernels to prune, and the layers that are not pruned.

    Raises:
        ModelError: if nothing is left to prune.
    """
    chosen, listed = [], []
    for kernel in list_kernels(model):
        kind = type(kernel.layer).__name__
        if is_named(kernel.name, exclude):
            listed.append(Listed(kernel.name, kind, "excluded"))
        elif not kernel.variable.trainable:
            listed.append(Listed(kernel.name, kind, "not trainable"))
        else:
            chosen.append(kernel)
    for name, layer in list_layers(model):
        if type(layer).__name__ in DEPTHWISE:
            listed.append(Listed(name, type(layer).__name__, "small, and each weight counts"))
    if not chosen:
        raise ModelError("`model` has no kernel to prune.", arg="model")
    return chosen, listed


def _train_masks(
    model: Model, kernels: Sequence[Kernel], epoch_steps: int, spec: PruneSpec, train: Train
) -> FitReport:
    """Trains while the masks grow."""
    ramp = plan_ramp(
        epoch_steps * spec.epochs,
        spec.sparsity,
        spec.schedule,
        initial=spec.initial,
        part=spec.ramp,
        every=spec.frequency,
    )
    optimizer = find_optimizer(model, "schedule")
    growth = Growth(kernels, keras_private.step_count(optimizer), ramp, _is_whole(spec))
    with tensor_ops.stepping(optimizer, growth.state):
        report = train(model, late_stopping(spec, -(-ramp.last // epoch_steps)))
    if report.stopped == "completed":
        growth.finish()  # loss scaling may have skipped the last update
    return report


def _set_rate(model: Model, rate: float) -> None:
    try:
        find_optimizer(model, "learning_rate").learning_rate = rate
    except TypeError as error:
        raise SpecError(
            "`learning_rate` is given, but the model's optimizer has a schedule of its own.",
            arg="learning_rate",
        ) from error


def count_steps(model: Model, data: Dataset) -> int:
    """Returns the number of batches in an epoch.

    Raises:
        DataError: if it is unknown.
    """
    steps = data.plan(model_device(model)).steps_per_epoch
    if not steps:
        raise DataError(
            "`data` is of rows in sequence whose number is not known, and the masks grow by it.",
            hint="Give gpu_dataset() `steps`.",
            arg="data",
        )
    return int(steps)


def _is_whole(spec: PruneSpec) -> bool:
    return spec.scope == "global"


def _settle(model: Model, kernels: Sequence[Kernel]) -> dict[str, np.ndarray]:
    """Replaces the growing masks with fixed ones and returns them."""
    masks = {kernel.path: kernel.variable.constraint.keep.numpy() for kernel in kernels}
    apply_masks(model, masks)
    return masks


def _describe_mask(kernel: Kernel, before: int) -> LayerChange:
    left = int(np.count_nonzero(kernel.variable))
    share = 1 - left / np.prod(kernel.variable.shape)
    change = f"{percent(share)} of the {kernel.variable.name} is 0"
    kind = type(kernel.layer).__name__
    return LayerChange(kernel.name, kind, change, before, left, "non-zeros")


def _explain_training(report: FitReport | None) -> list[str]:
    if report is None or report.stopped in ("completed", "early"):
        return []
    why = {"interrupted": "was interrupted", "non_finite": "ended at a loss that is no number"}
    return [f"The training {why.get(report.stopped, 'ended early')}: not all masks have grown."]


def _explain_share(masks: Mapping[str, np.ndarray], spec: PruneSpec) -> list[str]:
    share = sparsity(masks)
    if abs(share - spec.sparsity) < 0.005:
        return []
    return [f"{percent(share)} of the pruned kernels are 0, not {percent(spec.sparsity)}."]


# Whole units -------------------------------------------------------------------------------------


def _take_units(
    model: Model, data: Dataset | None, spec: PruneSpec, train: Train, work: Work
) -> tuple[Any, Work]:
    """Prunes whole units: builds a smaller model and trains it."""
    narrowed: Narrowed = narrow_model(
        model,
        spec.sparsity,
        spec.target,
        whole=_is_whole(spec),
        norm=spec.norm,
        excluded=lambda path: is_named(path, spec.exclude),
    )
    small = narrowed.model
    if read_masks(model):
        apply_masks(small, find_zeros(small))
    trained = train(small, spec.fit) if spec.epochs else None
    changes, listed, notes = narrowed.changes, narrowed.listed, narrowed.notes
    return small, replace(work, layers=changes, listed=listed, notes=notes, training=trained)
