"""What a model gives for rows: in large batches, nothing learned.

Keras' own predict function runs them, so a model's own `predict_step()` and `run_eagerly` hold. The
calls are what costs: at 20 columns, 64 and 10 units a million staged rows took 0.40 s in batches of
8,192, 0.23 s in batches of 32,768 and 0.17 s in batches of 131,072 (medians of 5, 2 cores,
TensorFlow 2.21). So a batch has as many rows as memory allows, all batches the same.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.core.errors import ModelError
from gpukeras.core.prefetch import count_workers, map_ahead
from gpukeras.core.r_buffer import OutputBuffer, write_rows
from gpukeras.data.arrays import aligned_empty
from gpukeras.data.loading.loader import open_evaluation
from gpukeras.data.loading.transforms import open_device_transform
from gpukeras.data.plan import choose_evaluation_rows
from gpukeras.data.preprocessing.recipe import Recipe
from gpukeras.data.sources.row_store import RowSource
from gpukeras.data.streams.dataset import IterableDataset

PREDICTION_BYTES = 64 * 2**20  # of a batch's input and all layers' outputs
# Batches at a time: a million rows of 20 columns took 0.25 s by one, 0.19 s by two and 0.18 s by
# three (2 cores).
WORKERS = min(4, count_workers() + 1)
ALIGNED_ROWS = 16  # of any type: 64 bytes or a multiple, so that memory can be adopted


def predict_rows(
    model: Any,
    source: RowSource,
    recipe: Recipe,
    function: Callable[[Any], Any] | None = None,
    buffer: OutputBuffer | None = None,
) -> Any:
    """A model's output for all rows.

    Several batches are on their way at a time: while one is encoded, which takes one core, another
    is predicted.

    Args:
        model: A built model; need not be compiled.
        source: The rows.
        recipe: Their encoding.
        function: The user's own, applied to features before the model, or None.
        buffer: Where a lone output may be written, or None.

    Returns:
        An array of the rows' outputs, or the model's dict or list of such arrays.
    """
    device, output = model_device(model), Output(len(source), buffer)
    fixed = fixed_rows(model)
    size = fixed or choose_rows(len(source), source.row_bytes, count_row_bytes(model))
    # Of a fixed length are batches for models with a state, which is that of the batch before.
    workers = 0 if model.run_eagerly or function is not None or fixed else WORKERS
    while output.written < len(source):
        device_transform = open_device_transform(recipe, size, function, source.texts)
        work = partial(_predict_batch, model, source, device_transform, device, size)
        try:
            with closing(_map(work, range(output.written, len(source), size), workers)) as results:
                for values, count in results:
                    output.write(values, count)
        except runtime.tensorflow().errors.ResourceExhaustedError:
            if size == 1 or fixed:
                raise
            size = -(-size // 2)
    return output.values


class Batches(list[np.ndarray]):
    """An output's arrays by batch, where their rows differ in shape."""


def predict_stream(model: Any, data: IterableDataset) -> Any:
    """A model's output for an epoch of rows in sequence, see `predict_rows()`.

    Where the shape of a row of an output varies, there is an array for each batch: `Batches`.
    """
    loader, nest = open_evaluation(data, model_device(model)), runtime.tensorflow().nest
    most = choose_rows(2**31, data.row_bytes, count_row_bytes(model))
    size = fixed_rows(model) or most
    if data.open_axes:  # the user's own batches, which may vary in shape
        size = data.facts.chunk_rows
    outputs = []
    for block in loader.epoch(0):
        features = runtime.keras().utils.unpack_x_y_sample_weight(block.arrays)[0]
        rows = block.rows if block.tail else block.batches * loader.batch_size
        whole = [features] if block.whole else _pieces(features, rows, size)
        outputs += [_predict(model, piece) for piece in whole]
        del features, block
    return nest.map_structure(_join, *outputs)


def _join(*parts: np.ndarray) -> Any:
    check_numbers(parts[0])
    same = len({part.shape[1:] for part in parts}) == 1
    return np.concatenate(parts) if same else Batches(parts)


class Output:
    """A nest of arrays for all rows, filled from the first row on.

    Args:
        rows: How many rows there will be.
        buffer: Where a lone array may be, or None.

    Attributes:
        values: The arrays, in the structure of what was written; None before.
        written: Rows that were.
    """

    def __init__(self, rows: int, buffer: OutputBuffer | None = None) -> None:
        """Waits for the first values: they tell structure, shapes and types."""
        self.values: Any = None
        self.written = 0
        self._rows, self._buffer = rows, buffer

    def write(self, values: Any, count: int) -> None:
        """Takes the first `count` rows of some values."""
        nest = runtime.tensorflow().nest
        if self.values is None:
            self.values = nest.map_structure(self._make, values)
        for whole, part in zip(nest.flatten(self.values), nest.flatten(values), strict=True):
            write_rows(whole[self.written : self.written + count], part[:count])
        self.written += count

    def _make(self, like: np.ndarray) -> np.ndarray:
        check_numbers(like)
        shape = (self._rows, *like.shape[1:])
        made = None if self._buffer is None else self._buffer.make(shape, like.dtype)
        return aligned_empty(shape, like.dtype) if made is None else made


def choose_rows(rows: int, row_bytes: int, model_bytes: int | None) -> int:
    """Rows of a batch: as many as memory allows, and about the same in each.

    Args:
        rows: Rows in all.
        row_bytes: Of a row's input.
        model_bytes: Of all layers' outputs for a row, or None where nobody knows.
    """
    if model_bytes is None:
        return choose_evaluation_rows(row_bytes, rows)
    most = PREDICTION_BYTES // max(1, row_bytes + model_bytes) // ALIGNED_ROWS * ALIGNED_ROWS
    most = max(ALIGNED_ROWS, most)
    each = math.ceil(rows / math.ceil(rows / most))
    return min(rows, math.ceil(each / ALIGNED_ROWS) * ALIGNED_ROWS)


def count_row_bytes(model: Any) -> int | None:
    """Bytes of all layers' outputs for one row, as far as the model tells them before it runs."""
    sizes = []
    for layer in model.layers:
        try:
            outputs = runtime.tensorflow().nest.flatten(layer.output)
            sizes += [math.prod(each.shape[1:]) for each in outputs]
        except (AttributeError, TypeError, ValueError):  # made by subclassing; of open length
            return None
    return 4 * sum(sizes) if sizes else None


def fixed_rows(model: Any) -> int | None:
    """Rows of a batch where the model takes no other number of them, or None.

    Those are models with states of recurrent layers, one for each row. Of others the length that
    their inputs have may be that of the first batch that Keras saw, and means nothing.
    """
    if not any(getattr(layer, "stateful", False) for layer in keras_private.list_layers(model)):
        return None
    try:
        tensors = runtime.tensorflow().nest.flatten(model.inputs)
    except (AttributeError, ValueError):  # made by subclassing, or not built
        return None
    known = {tensor.shape[0] for tensor in tensors if len(tensor.shape)} - {None}
    return min(known, default=None)


def check_numbers(values: Any) -> None:
    """What a model gives is numbers, with rows.

    Raises:
        ModelError: if it is text, ragged, or no array.
    """
    found = _odd(values)
    if not found:
        return
    raise ModelError(
        f"`model` gives {found}, but each of its outputs must hold numbers for every row.",
        hint="Predict with a model without that output.",
        arg="model",
    )


def _odd(values: Any) -> str:
    """What an output is, if it is no array of numbers with rows."""
    if hasattr(values, "row_splits"):  # Keras hands a ragged tensor on as it is
        return "ragged rows"
    kind = getattr(values, "dtype", np.dtype(type(values))).kind
    if kind in "OSU":
        return "text"
    return "" if kind in "fiub" and np.ndim(values) else "a single number for all rows"


def check_whole(fixed: int, last: int) -> None:
    """A model with a batch of fixed length takes no shorter last one; Keras fails there too.

    Raises:
        ModelError: if there is one; 0 rows are none.
    """
    if last % fixed:
        raise ModelError(
            f"`model` takes batches of {fixed} rows (`batch_shape`), but the last one has {last}.",
            hint="Use gpu_dataset(drop_last = TRUE), or rows that make whole batches.",
            arg="model",
        )


def model_device(model: Any) -> str:
    """Where a built model's variables are, such as "GPU:0"."""
    names = runtime.variable_devices(model)
    return names[0] if names else "CPU:0"


_RANKS: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()


def _predict(model: Any, features: Any) -> Any:
    """Keras' own function; not compiled any more once XLA refuses it.

    TensorFlow would trace it for any number of dimensions once it has seen two, such as texts that
    are a vector and a column, and layers cannot work with that.
    """
    ranks = tuple(len(part.shape) for part in runtime.tensorflow().nest.flatten(features))
    if _RANKS.get(model, ranks) != ranks:
        model.predict_function = None
    _RANKS[model] = ranks
    try:
        return model.predict_on_batch(features)
    except runtime.refusals():
        if not model.jit_compile:
            raise
    before = model.jit_compile
    model.jit_compile, model.predict_function = False, None
    try:
        return model.predict_on_batch(features)
    finally:
        model.jit_compile = before  # the function that is not compiled stays for the next batches


Batch = tuple[Any, int]


def _predict_batch(
    model: Any,
    source: RowSource,
    device_transform: Callable[[Any], Any],
    device: str,
    size: int,
    start: int,
) -> Batch:
    """The output of a batch from row `start` on, and how many of its rows are no padding."""
    rows = source.gather(slice(start, start + size))
    return _predict(model, _adopt(device_transform(pad_rows(rows, size)), device)), len(rows)


def _map(work: Callable[[int], Batch], starts: range, workers: int) -> Generator[Batch, None, None]:
    """The batches in order, made in threads; of a user's own Python code, which may ask R, here.

    The first is made alone, as it traces; it is written when the next ones are on their way.
    """
    first, others = work(starts[0]), starts[1:]
    if not workers:
        yield first
        yield from map(work, others)
        return
    results = map_ahead(work, others, workers)
    second = list(itertools.islice(results, 1))
    yield from (first, *second)
    yield from results


def pad_rows(rows: np.ndarray, size: int) -> np.ndarray:
    """As many rows as any batch has: TensorFlow traces for one shape."""
    lacking = size - len(rows)
    return np.pad(rows, [(0, lacking)] + [(0, 0)] * (rows.ndim - 1)) if lacking else rows


def _adopt(features: Any, device: str) -> Any:
    """Rows in host memory without a copy where the model works in the same memory."""
    if not isinstance(features, np.ndarray) or not device.startswith("CPU"):
        return features
    flags = features.flags  # what is adopted already, as a dataset's rows are, cannot be again
    fit = features.ctypes.data % runtime.ALIGNMENT == 0 and flags.c_contiguous and flags.writeable
    return runtime.adopt_array(features) if fit else features


def _pieces(features: Any, rows: int, size: int) -> Iterator[Any]:
    nest = runtime.tensorflow().nest
    for start in range(0, rows, size):
        piece = slice(start, min(start + size, rows))
        yield nest.map_structure(lambda array, piece=piece: array[piece], features)
