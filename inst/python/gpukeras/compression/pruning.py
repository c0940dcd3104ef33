"""Prunes a model: sets most weights to 0 during training, or removes whole units.

Magnitude pruning sets single weights to 0. Files compress better and accuracy hardly falls, but the
model computes as much as before: TensorFlow multiplies by zeros too. Structured pruning
(`structured`) builds a smaller model, which is faster everywhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, tensor_ops
from gpukeras.compression.layer_options import check_excluded, check_options, is_named
from gpukeras.compression.masks import (
    DEPTHWISE,
    Kernel,
    apply_masks,
    list_kernels,
    list_layers,
    sparsity,
)
from gpukeras.compression.report import (
    LayerChange,
    Listed,
    ReportSpec,
    Work,
    check_requested,
    conclude,
)
from gpukeras.compression.sparsity_schedule import POWERS, Growth, plan_ramp, zero_smallest
from gpukeras.compression.structured import NORMS, TARGETS, Narrowed, narrow_model
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import percent
from gpukeras.core.options import (
    FitSpec,
    check_choice,
    check_count,
    check_flag,
    check_fraction,
    check_names,
    check_positive,
    option,
)
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import sample_rows
from gpukeras.engine.batch_rows import model_device
from gpukeras.engine.optimizer import find_optimizer
from gpukeras.models import model_checks
from gpukeras.models.clone import copy_model
from gpukeras.models.variables import build_variables
from gpukeras.training import fit
from gpukeras.training.callbacks.early_stopping import parse_early_stopping
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
    check_requested(model, spec, data, validation)
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
    kernels, listed = choose_kernels(copy, spec.exclude)
    before = {kernel.path: int(np.count_nonzero(kernel.variable)) for kernel in kernels}
    trained = None
    if spec.epochs and data is not None:
        trained = _train_masks(copy, kernels, data, spec, train)
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
    model: Model, kernels: Sequence[Kernel], data: Dataset, spec: PruneSpec, train: Train
) -> FitReport:
    """Trains while the masks grow."""
    asked = FitSpec.from_dict(spec.fit)
    passed = count_steps(model, data)
    epoch_steps = min(passed, asked.steps_per_epoch or passed)
    first = asked.initial_epoch
    ramp = plan_ramp(
        epoch_steps * (spec.epochs - first),
        spec.sparsity,
        spec.schedule,
        initial=spec.initial,
        part=spec.ramp,
        every=spec.frequency,
    )
    optimizer = find_optimizer(model, "schedule")
    growth = Growth(kernels, keras_private.step_count(optimizer), ramp, _is_whole(spec))
    with tensor_ops.stepping(optimizer, growth.state):
        report = train(model, late_stopping(spec, first - (-ramp.last // epoch_steps)))
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
    """Returns the number of batches of a pass over the rows.

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
    trained = train(small, spec.fit) if spec.epochs else None
    return small, replace(
        work,
        layers=narrowed.changes,
        listed=narrowed.listed,
        notes=narrowed.notes,
        training=trained,
    )


# Options -----------------------------------------------------------------------------------------


SCOPES = ("layer", "global")
NOT_FIT = ("checkpoint", "tensorboard")  # options of a training: a pruning cannot be resumed later


@dataclass(frozen=True)
class PruneSpec(ReportSpec):
    """Options of a pruning, with the fields of `ReportSpec`.

    Args:
        sparsity: Share that is removed, in (0, 1): of the weights; of the FLOPs or units if
            structured.
        schedule: "cubic", "linear", or "constant" (all at the first step).
        structured: Remove whole units and filters, so that the model gets smaller and faster.
        epochs: Epochs of training; 0 prunes the model without training.
        scope: "layer" (the same share of each layer) or "global" (the smallest weights of all
            layers).
        exclude: Names of layers that are not pruned.
        frequency: Steps from one update of the masks to the next, or None.
        initial: Share of zeros at the start, below `sparsity`.
        ramp: Part of the training, in (0, 1], in which the share of zeros grows.
        target: If structured, what `sparsity` is a share of: "flops" or "units".
        norm: If structured, how a unit is scored: "l2", "l1" (of its weights), or "bn" (the scale
            of the batch normalization after it).
        learning_rate: Of the training, or None for the model's own.
        fit: More fields of `FitSpec`.
    """

    sparsity: float = option(0.8, check_fraction)
    schedule: str = option("cubic", check_choice, tuple(POWERS))
    structured: bool = option(False, check_flag)
    epochs: int = option(5, check_count, 0)
    scope: str = option("layer", check_choice, SCOPES)
    exclude: tuple[str, ...] = option((), check_names, "layers")
    frequency: int | None = option(None, check_count)
    initial: float = 0.0
    ramp: float = option(0.75, check_positive, 1.0)
    target: str = option("flops", check_choice, TARGETS)
    norm: str = option("l2", check_choice, NORMS)
    learning_rate: float | None = option(None, check_positive)
    fit: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks and normalizes every field."""
        super().__post_init__()
        self._set(fit=_check_fit(self.fit), initial=_check_initial(self.initial, self.sparsity))

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings for the report: the fields that affect this kind of pruning."""
        shown = ["sparsity", "structured", "epochs", "scope", "exclude"]
        shown += ["target", "norm"] if self.structured else ["schedule", "ramp"]
        return {name: getattr(self, name) for name in shown}


def _check_fit(options: Any) -> dict[str, Any]:
    """Checks the training's options; R's empty list arrives as a list."""
    checked = check_options(options)
    for name in NOT_FIT:
        if checked.get(name) is not None:
            raise SpecError(
                f"`{name}` is not for pruning, whose masks grow in one training.",
                hint="Train the pruned model on with gpu_fit(): its zeros stay.",
                arg=name,
            )
    FitSpec.from_dict(checked)  # fails before any work is done
    return checked


def _check_initial(initial: Any, final: float) -> float:
    value = 0.0 if initial == 0 else check_fraction("initial", initial)
    if value > final:
        raise SpecError("`initial` must not be above `sparsity`.", arg="initial")
    return value


def late_stopping(spec: PruneSpec, epoch: int) -> dict[str, Any]:
    """Returns the training's options; early stopping ignores epochs in which the masks grow."""
    options = dict(spec.fit)
    if options.get("early_stopping") is not None:
        requested = parse_early_stopping(options["early_stopping"])
        start = max(requested.start_epoch, epoch + 1)
        options["early_stopping"] = asdict(replace(requested, start_epoch=start))
    return options
