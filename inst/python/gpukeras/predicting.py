"""What a model gives for rows: in large batches, nothing learned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import runtime
from .arrays import aligned_empty
from .feeding import open_evaluation, open_finish
from .plans import choose_evaluation_rows
from .recipes import Recipe
from .rows import RowSource
from .streams.dataset import StreamDataset


def predict_rows(
    model: Any, source: RowSource, recipe: Recipe, function: Callable[[Any], Any] | None = None
) -> np.ndarray:
    """Runs all rows through Keras' own predict function, in large batches of one shape."""
    size = choose_evaluation_rows(source.row_bytes, len(source))
    finish = open_finish(recipe, size, function)
    output: np.ndarray | None = None
    for start in range(0, len(source), size):
        rows = source.gather(slice(start, start + size))
        padding = [(0, size - len(rows))] + [(0, 0)] * (rows.ndim - 1)
        batch = finish(np.pad(rows, padding) if padding[0][1] else rows)
        values = model.predict_on_batch(batch)
        if output is None:
            output = aligned_empty((len(source), *values.shape[1:]), values.dtype)
        output[start : start + size] = values[: len(rows)]
    return output


def predict_stream(model: Any, data: StreamDataset) -> np.ndarray:
    """Runs an epoch of rows in sequence through Keras' own predict function, block by block."""
    feed = open_evaluation(data, model_device(model))
    outputs = []
    for block in feed.epoch(0):
        rows = len(block.arrays[0]) if block.tail else block.batches * feed.batch_size
        outputs.append(model.predict_on_batch(block.arrays[0])[:rows])
    return np.concatenate(outputs)


def model_device(model: Any) -> str:
    """Where a built model's variables are, such as "GPU:0"."""
    names = runtime.variable_devices(model)
    return names[0] if names else "CPU:0"
