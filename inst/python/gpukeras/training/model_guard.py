"""Restores a model after a search or a trial training.

Its variables get their values back. After a trial, the parts that Keras builds in a first step
(optimizer, metrics, loss) are replaced by copies meanwhile. Two changes stay: a model without
weights gets them, as fit() would build them; and an optimizer that cannot be copied from its config
is built, with its initial state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from gpukeras.backend import keras_private
from gpukeras.core.keras_types import Model
from gpukeras.models.losses import weighing_rows
from gpukeras.models.state import apply_snapshot, take_snapshot
from gpukeras.models.variables import build_variables, other_optimizers
from gpukeras.training.keras_functions import SAMPLE, jit_policy

PARTS = [
    "optimizer",
    keras_private.COMPILED_METRICS,
    keras_private.COMPILED_LOSS,
    "train_function",
    "test_function",
    "predict_function",
    "train_step",
    "stop_training",
    "steps_per_execution",
]


@contextmanager
def kept_model(model: Model) -> Iterator[None]:
    """Restores weights, optimizer, metrics and random state on exit.

    It also does so after errors and interrupts. The state is copied to host memory.

    Args:
        model: A compiled Keras model whose variables exist.
    """
    snapshot = take_snapshot(model)
    try:
        with jit_policy(model), weighing_rows(model):
            yield
    finally:
        apply_snapshot(model, snapshot)


@contextmanager
def untouched(model: Model, batch: Callable[[int], Any]) -> Iterator[None]:
    """Builds all variables of a model within the context, and restores the model afterwards.

    Args:
        model: A compiled Keras model.
        batch: Returns a number of rows, from which variables are built.
    """
    parts = {name: vars(model)[name] for name in PARTS if name in vars(model)}
    try:
        # Not by setattr(): Keras would track each copy, and save it with the model.
        vars(model).update(_unbuilt_copies(model))
        if not _is_built(model):  # a second build would give a LossScaleOptimizer further variables
            build_variables(model, batch(SAMPLE))
        snapshot = take_snapshot(model)
        try:
            yield
        finally:
            apply_snapshot(model, snapshot)
            keras_private.forget_losses(model)  # tensors of graphs that no longer exist
    finally:
        for name in PARTS:
            vars(model).pop(name, None)
        vars(model).update(parts)


def _unbuilt_copies(model: Model) -> dict[str, Any]:
    """Returns copies of the parts of a compiled model that Keras builds in its first step."""
    optimizer = model.optimizer
    metrics, loss = keras_private.compiled_metrics(model), keras_private.compiled_loss(model)
    made: dict[str, Any] = {}
    if optimizer is not None and not optimizer.built:
        with suppress(Exception):  # a user's own class may lack a config: it gets built
            made["optimizer"] = type(optimizer).from_config(optimizer.get_config())
    if metrics is not None and not metrics.built:
        arguments = keras_private.given_metrics(metrics)
        again = type(metrics)(*arguments, output_names=metrics.output_names)
        made[keras_private.COMPILED_METRICS] = again
    if loss is not None and not loss.built:
        arguments = keras_private.given_losses(loss)
        again = type(loss)(*arguments, output_names=loss.output_names)
        made[keras_private.COMPILED_LOSS] = again
    return made


def _is_built(model: Model) -> bool:
    parts = keras_private.compiled_metrics(model), keras_private.compiled_loss(model)
    built = model.optimizer, *parts, *other_optimizers(model), *keras_private.list_layers(model)
    return all(each is None or each.built for each in built)
