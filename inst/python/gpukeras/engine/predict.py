"""Predicts rows in large batches, or in Keras' where what a model gives depends on the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.core.keras_types import Model
from gpukeras.core.r_buffer import OutputBuffer
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.loader.transforms import open_device_transform
from gpukeras.data.reader.rows import RowSource
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.engine import predict_loop
from gpukeras.engine.batch_dependence import KERAS_ROWS, Sample, explain_outputs, sample_of
from gpukeras.engine.predict_loop import AfterBatch

Function = Callable[[Any], Any]


def predict_rows(
    model: Model,
    source: RowSource,
    recipe: Recipe,
    function: Function | None = None,
    buffer: OutputBuffer | None = None,
    *,
    batch_size: int = KERAS_ROWS,
    wide: bool = True,
    after_batch: AfterBatch = lambda rows: None,
) -> Any:
    """Returns a model's output for all rows, see `predict_loop.predict_rows()`.

    Args:
        model: A built model; need not be compiled.
        source: The row source.
        recipe: The encoding of the rows.
        function: The user's function that is applied to features before the model, or None.
        buffer: Memory for a single output, or None.
        batch_size: Rows per batch where outputs depend on the batch.
        wide: Whether numbers of 16 bits become float32.
        after_batch: Called after each batch with the number of rows that are done.
    """
    why = explain_rows(model, source, recipe, function, batch_size)
    kept = batch_size if why else None
    return predict_loop.predict_rows(
        model,
        source,
        recipe,
        function,
        buffer,
        batch_size=kept,
        wide=wide,
        after_batch=after_batch,
    )


def explain_rows(
    model: Model,
    source: RowSource,
    recipe: Recipe,
    function: Function | None = None,
    batch_size: int = KERAS_ROWS,
) -> str:
    """Returns why what a model gives for rows may be others in large batches, or "".

    For the arguments see `predict_rows()`.
    """

    def take(places: np.ndarray) -> Any:
        encode = open_device_transform(recipe, len(places), function, source.texts)
        return encode(source.gather(places.astype(np.int32)))

    sample = Sample(len(source), take)
    _build(model, sample)
    return explain_outputs(model, sample, batch_size)


def predict_stream(
    model: Model,
    data: IterableDataset,
    *,
    wide: bool = True,
    after_batch: AfterBatch = lambda rows: None,
) -> Any:
    """Returns a model's output for an epoch of a stream, see `predict_loop.predict_stream()`."""
    sample = sample_of(data)
    if sample is not None:
        _build(model, sample)
    kept = data.facts.chunk_rows if explain_outputs(model, sample) else None
    return predict_loop.predict_stream(
        model, data, batch_size=kept, wide=wide, after_batch=after_batch
    )


def _build(model: Model, sample: Sample) -> None:
    """Creates a model's variables, which JAX cannot within a program, and TensorFlow can."""
    if runtime.backend() == "jax":
        keras_private.build_layers(model, sample.take(np.arange(1)))
