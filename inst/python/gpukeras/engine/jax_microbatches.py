"""Trains a batch on JAX in micro-batches, with one update from their summed gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.backend.jax_module import jax
from gpukeras.core.keras_types import Model
from gpukeras.engine.programs import cut
from gpukeras.models.losses import sums_rows


def train_in_parts(model: Model, state: Any, data: Any, size: int) -> tuple[Mapping[str, Any], Any]:
    """Traced: one update of a model from a batch, as `TrainingStep` makes it on TensorFlow.

    Args:
        model: A compiled model with Keras' own step.
        state: The values of the trainable, other, optimizer's and metrics' variables.
        data: The batch.
        size: Rows that go through the model at once.

    Returns:
        The logs and the state after the update.
    """
    trainable, other, optimizer, metrics = state
    rows = int(runtime.tree().flatten(data)[0].shape[0])

    def add(start: Any, count: int, carried: Any) -> Any:
        sums, other, metrics = carried
        part = cut(data, start, count)
        found, other, metrics = _gradients(model, (trainable, other, optimizer, metrics), part)
        share = 1.0 if sums_rows(model.loss) else count / rows
        sums = jax().tree.map(lambda total, one: total + share * one, sums, found)
        return sums, other, metrics

    carried = (jax().tree.map(jax().numpy.zeros_like, trainable), other, metrics)
    whole, rest = divmod(rows, size)
    carried = jax().lax.fori_loop(0, whole, lambda i, held: add(i * size, size, held), carried)
    if rest:
        carried = add(whole * size, rest, carried)
    sums, other, metrics = carried
    trainable, optimizer = model.optimizer.stateless_apply(optimizer, sums, trainable)
    with runtime.keras().StatelessScope(list(zip(model.metrics_variables, metrics, strict=True))):
        logs = model.get_metrics_result()
    return logs, (trainable, other, optimizer, metrics)


def _gradients(model: Model, state: Any, data: Any) -> tuple[Any, Any, Any]:
    """Returns a micro-batch's gradients, and the other and the metrics' variables after it."""
    trainable, other, optimizer, metrics = state
    x, y, weights = runtime.keras().utils.unpack_x_y_sample_weight(data)
    compute = jax().value_and_grad(keras_private.loss_and_updates(model), has_aux=True)
    (_, (loss, predicted, other, metrics)), found = compute(
        trainable,
        other,
        metrics,
        x,
        y,
        weights,
        training=True,
        optimizer_variables=optimizer,
    )
    _, metrics = keras_private.update_metrics(model, metrics, loss, x, y, predicted, weights)
    return list(found), list(other), list(metrics)
