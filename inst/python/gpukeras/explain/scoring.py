"""Computes a compiled model's loss, or one of its metrics, from outputs that are known already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.metric_values import read_metrics, split_components
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import open_evaluation, sample_rows
from gpukeras.engine.batch_dependence import KERAS_ROWS, choose_batches
from gpukeras.engine.batch_rows import fixed_rows, model_device
from gpukeras.models.losses import weighing_rows


@dataclass(frozen=True)
class Scorer:
    """A score of a compiled model on rows with labels.

    Args:
        model: The model.
        labels: The labels as the model takes them (tensors).
        weights: Weights of the rows, or None.
        metric: "loss", or the name of one of the model's metrics.
        compute: Maps labels, outputs and weights to the loss.
        batch_size: Rows per batch where the score depends on the batches; None for all at a time.
    """

    model: Model
    labels: Any
    weights: Any
    metric: str
    compute: Callable[[Any, Any, Any], Any]
    batch_size: int | None = None

    def score(self, outputs: Any) -> float:
        """Returns the score of the model's outputs for the rows, as `gpu_evaluate()` has it.

        Raises:
            SpecError: if the model was not compiled with the metric; lists what it has.
        """
        convert = runtime.keras().ops.convert_to_tensor
        with tensor_ops.device_scope(model_device(self.model)):
            outputs = runtime.tree().map_structure(convert, outputs)
            if self.metric == "loss":
                return self._loss(outputs)
            return self._metric(outputs)

    def _batches(self, outputs: Any) -> Iterator[tuple[int, Any]]:
        """Yields the rows of each batch, and its labels, outputs and weights."""
        nest, whole = runtime.tree(), (self.labels, outputs, self.weights)
        rows = len(nest.flatten(outputs)[0])
        size = self.batch_size or rows
        for start in range(0, rows, size):
            here = slice(start, start + size)
            part = nest.map_structure(
                lambda array, here=here: None if array is None else array[here], whole
            )
            yield min(size, rows - start), part

    def _loss(self, outputs: Any) -> float:
        number, total, rows = runtime.keras().ops.convert_to_numpy, 0.0, 0
        for count, part in self._batches(outputs):
            total, rows = total + count * float(number(self.compute(*part))), rows + count
        return total / rows

    def _metric(self, outputs: Any) -> float:
        metrics = keras_private.compiled_metrics(self.model)
        values: dict[str, float] = {}
        if metrics is not None:
            metrics.reset_state()
            for _, (labels, part, weights) in self._batches(outputs):
                metrics.update_state(labels, part, sample_weight=weights)
            values = split_components(read_metrics(metrics.result()))
        if self.metric not in values:
            known = ", ".join(["loss", *values])
            raise SpecError(
                f"`metric` is `{self.metric}`, which `model` was not compiled with.",
                hint=f"It has {known}. Compile it with the metric; its weights stay.",
                arg="metric",
            )
        return values[self.metric]


@contextmanager
def open_scorer(model: Model, data: Dataset, part: str, metric: str) -> Iterator[Scorer]:
    """Opens the score of a model on a part of a dataset; the metrics' state is reset after it.

    Raises:
        DataError: if the rows have no labels.
        ModelError: if the score is not known from the model's outputs.
    """
    if len(data.sources) < 2:
        raise DataError(
            "`data` has no labels, and importance is a rise of the loss.",
            arg="data",
            hint="Give `y`.",
        )
    _check_outputs(model, data, metric)
    labels, weights = read_labels(model, data, part)
    size, _ = choose_batches(model, data, part, KERAS_ROWS)
    try:
        with weighing_rows(model):
            yield Scorer(model, labels, weights, metric, _build_loss(model), size)
    finally:
        model.reset_metrics()


def _check_outputs(model: Model, data: Dataset, metric: str) -> None:
    """Checks that a model's outputs, as predictions give them, are all that its score depends on.

    Raises:
        ModelError: if not: it has a step of its own, or its call adds to the loss or masks steps.
    """
    for step in ("test_step", "predict_step"):
        if tensor_ops.overrides(model, step):
            raise ModelError(
                f"`model` has a `{step}()` of its own: its loss is not known from its predictions.",
                hint="Override `call()` or `compute_loss()` instead.",
                arg="model",
            )
    rows = np.zeros(fixed_rows(model) or 1, np.int32)
    features = sample_rows(data, rows)[0]
    takes = keras_private.takes_training(model)
    with (
        tensor_ops.device_scope(model_device(model)),
        runtime.keras().StatelessScope(collect_losses=True) as scope,
    ):
        outputs = model(features, training=False) if takes else model(features)
    masks = map(keras_private.mask_of, runtime.tree().flatten(outputs))
    why = "masked steps do not count" if any(mask is not None for mask in masks) else ""
    if scope.losses and metric == "loss":
        why = "its layers add to it"
    if why:
        raise ModelError(
            f"The {metric} of `model` is not known from its predictions: {why}.", arg="model"
        )


def _build_loss(model: Model) -> Callable[[Any, Any, Any], Any]:
    """Returns a model's loss as a program, unless the model runs eagerly.

    200 permutations of 1,000 rows took 0.58 s with Keras' eager loss, and 0.39 s with a program (2
    busy cores, TensorFlow 2.21). What the loss adds to the state of its metrics is dropped.
    """
    scope = runtime.keras().StatelessScope

    def compute(labels: Any, outputs: Any, weights: Any) -> Any:
        keras_private.forget_losses(model)
        with scope():
            return keras_private.compute_loss(
                model, x=None, y=labels, y_pred=outputs, sample_weight=weights, training=False
            )

    return compute if model.run_eagerly else tensor_ops.traced(compute)


def read_labels(model: Model, data: Dataset, part: str) -> tuple[Any, Any]:
    """Returns labels and weights (None without) of a part of a dataset as the model takes them."""
    ops, nest, blocks = runtime.keras().ops, runtime.tree(), []
    loader = open_evaluation(data, model_device(model), part)
    for block in loader.epoch(0):
        rows = block.rows if block.tail else block.batches * loader.batch_size
        targets = runtime.keras().utils.unpack_x_y_sample_weight(block.arrays)[1:]
        blocks.append(
            nest.map_structure(
                lambda array, rows=rows: None if array is None else np.asarray(array)[:rows],
                targets,
            )
        )
    with tensor_ops.device_scope(model_device(model)):
        labels, weights = nest.map_structure(
            lambda *parts: (
                None if parts[0] is None else ops.convert_to_tensor(np.concatenate(parts))
            ),
            *blocks,
        )
    return labels, weights
