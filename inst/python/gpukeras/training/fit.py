"""Fits a model: checks all arguments before the training, then runs a `Trainer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import FitSpec, describe
from gpukeras.core.preemption import catch_preemption
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.recipe.multi_output import gather_weights
from gpukeras.data.recipe.serialization import check_labels, check_order, same_encoding
from gpukeras.distributed.session import propagate_failures
from gpukeras.distributed.strategy import open_strategy
from gpukeras.engine.predict import predict_rows
from gpukeras.models import model_checks, model_recipes
from gpukeras.models.compilation import explaining_refusals
from gpukeras.models.families.keras_classes import family_layer
from gpukeras.models.families.survival import baseline_hazard
from gpukeras.training.callbacks.functions import Functions, check_hooks
from gpukeras.training.history_registry import keep_history
from gpukeras.training.keras_functions import jit_policy
from gpukeras.training.keras_terms import KerasTerms
from gpukeras.training.listener import ProgressReporter
from gpukeras.training.report import FitReport
from gpukeras.training.trainer import Trainer


def fit(
    model: Model,
    data: Dataset,
    options: Mapping[str, Any],
    *,
    validation: Dataset | None = None,
    batch_size: int | str | None = None,
    callbacks: Sequence[Any] = (),
    functions: Functions | None = None,
    on_event: OnEvent | None = None,
    devices: Any = None,
    compiling: Mapping[str, Any] | None = None,
    terms: KerasTerms | None = None,
) -> FitReport:
    """Trains a model in place.

    Args:
        model: A Keras model, compiled unless `compiling` is given.
        data: The dataset; its own validation rows are used unless `validation` is given.
        options: Fields of `FitSpec`.
        validation: Rows to validate on, encoded as `data` is.
        batch_size: Replaces the dataset's own.
        callbacks: Keras callbacks.
        functions: The user's functions by hook, see `callbacks`.
        on_event: Called at most every 0.2 s and after each epoch with a dict; true ends training.
        devices: The devices to train on, see `distributed.device_selection`; None for the model's
            device, or for those of the cluster that this process has joined.
        compiling: Arguments to compile the model with first, see `models.compile_model()`.
        terms: What Keras' `fit()` has and gpu_fit() has not; Python callers only.

    Raises:
        SpecError, DataError, ModelError: for input that does not fit, before anything is trained.
        ClusterError: if a worker differs from the chief, fails or is lost.
        OutOfMemoryError: if the device's memory is exhausted, and halving did not help.
        CheckpointError: if the checkpoints' folder cannot be used, or is another training's.
        PreemptedError: if the process was asked to end, and the training is saved.
        GeneratorError: if one of the user's functions failed.
    """
    spec = FitSpec.from_dict(options)
    if compiling:
        model_checks.compile_model(model, compiling)
    _check_input(model, data, validation)
    _check_callbacks(callbacks, functions or {}, spec)
    strategy, terms = open_strategy(devices, trains=True), terms or KerasTerms()
    strategy.check(model, spec.engine)
    with (
        catch_preemption(spec.checkpoint is not None) as notice,
        propagate_failures(),
        jit_policy(model),
        explaining_refusals(model),
    ):
        trainer = Trainer(
            model,
            data,
            validation,
            strategy.own_spec(spec),
            batch_size,
            callbacks,
            functions or {},
            ProgressReporter(on_event, spec.epochs),
            strategy,
            terms,
            notice,
        )
        report = trainer.run()
    fill_baseline(model, data)
    keep_history(model, report)
    return report


def _check_input(model: Model, data: Dataset, validation: Dataset | None) -> None:
    model_checks.check_model(model)
    model_checks.check_rows(model, data, fits=True)
    if validation is None and data.has_rows("validation"):
        model_checks.check_rows(model, data, step="test", fits=True)
    if validation is not None:
        _check_validation(model, data, validation)
    model_recipes.check_encoding(model, data.recipe)


def _check_callbacks(callbacks: Sequence[Any], functions: Functions, spec: FitSpec) -> None:
    check_hooks(functions)
    keras = runtime.keras().callbacks
    for callback in callbacks:
        if not isinstance(callback, keras.Callback):
            raise SpecError(
                f"`callbacks` must hold Keras callbacks, not {describe(callback)}.",
                arg="callbacks",
            )
        if isinstance(callback, keras.TensorBoard) and find_spec("tensorboard") is None:
            raise SpecError(
                "The callback TensorBoard needs the Python package tensorboard.",
                hint="Install it, or use `tensorboard` of gpu_fit(), which writes without it.",
                arg="callbacks",
            )
        if spec.checkpoint is not None and isinstance(callback, keras.BackupAndRestore):
            raise SpecError(
                "`checkpoint` and the callback BackupAndRestore both resume a training.",
                hint="Use one of the two: `checkpoint` also resumes within an epoch.",
                arg="checkpoint",
            )
        if spec.ema is not None and isinstance(callback, keras.BackupAndRestore):
            raise SpecError(
                "The callback BackupAndRestore sees the averages of `ema` in the weights' place, "
                "so a training would not go on with its weights.",
                hint="Use `checkpoint`, which saves both.",
                arg="ema",
            )
        setters = (keras.ReduceLROnPlateau, keras.LearningRateScheduler)
        if spec.schedule is not None and isinstance(callback, setters):
            raise SpecError(
                f"`schedule` and the callback {type(callback).__name__} both set the rate.",
                hint="Use schedule_plateau(), or one of the two.",
                arg="schedule",
            )


def _check_validation(model: Model, data: Dataset, validation: Dataset) -> None:
    model_checks.check_rows(model, validation, "validation", step="test", fits=True)
    if not same_encoding(data.recipe, validation.recipe):
        check_labels(data.recipe, validation.recipe, "validation", "those of `data`")
        raise DataError(
            "`validation` was encoded by its own means and levels, not by those of `data`.",
            hint="Pass the data frame or matrix itself, or use gpu_dataset(recipe = ).",
            arg="validation",
        )
    check_order(data.recipe.features, validation.recipe.features, "validation")


# The baseline hazard of a model of Cox -----------------------------------------------------------


def fill_baseline(model: Model, data: Dataset) -> None:
    """Estimates the baseline hazard from the training rows, and stores it in the model's weights.

    Other models are left alone. Rows in sequence are not read again: their model has none.

    Args:
        model: A trained model.
        data: The dataset that it was trained on.
    """
    layer = family_layer(model)
    if layer is None or layer.family.name != "cox" or not isinstance(data, MapDataset):
        return
    with jit_policy(model):
        output = np.asarray(predict_rows(model, data.sources[0], data.recipe, data.map))
    rows = data.train_rows
    labels = np.asarray(data.sources[1].gather(slice(None)), np.float64)
    weights = gather_weights(data, slice(None))
    times, hazard = baseline_hazard(layer.family, labels[rows], output[rows], weights[rows])
    layer.own["times"].assign(times.astype(np.float32))
    layer.own["hazard"].assign(hazard.astype(np.float32))
