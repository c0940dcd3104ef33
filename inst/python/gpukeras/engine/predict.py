"""Runs a model on rows in large batches, or in Keras' where what it gives depends on the batch.

Keras' own predict function runs them, so a model's own `predict_step()` and `run_eagerly` apply.
The calls dominate the time: at 20 columns, 64 and 10 units a million staged rows took 0.40 s in
batches of 8,192, 0.23 s in batches of 32,768 and 0.17 s in batches of 131,072 (medians of 5, 2
cores, TensorFlow 2.21). So a batch has as many rows as `tensor_ops.batch_bytes()` allows, all
batches the same.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.errors import ModelError
from gpukeras.core.half_precision import wide_dtype, widen_half
from gpukeras.core.keras_types import Model
from gpukeras.core.memory import ALIGNMENT, aligned_empty
from gpukeras.core.prefetch import map_ahead
from gpukeras.core.r_buffer import OutputBuffer, write_rows
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.loader.loader import open_evaluation
from gpukeras.data.loader.transforms import open_device_transform
from gpukeras.data.reader.rows import RowSource
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.engine.batch_dependence import KERAS_ROWS, Sample, explain_outputs, sample_of
from gpukeras.engine.batch_rows import choose_rows, count_row_bytes, fixed_rows, model_device
from gpukeras.engine.refusals import is_inability, raise_explained
from gpukeras.models.embedded_codes import Lookup, find_lookups, open_code_check, refuse_codes
from gpukeras.system.host import count_workers

# Batches at a time: a million rows of 20 columns took 0.25 s with one, 0.19 s with two and 0.18 s
# with three (2 cores).
WORKERS = min(4, count_workers() + 1)
AfterBatch = Callable[[int], None]


def predict_rows(
    model: Model,
    source: RowSource,
    recipe: Recipe,
    function: Callable[[Any], Any] | None = None,
    buffer: OutputBuffer | None = None,
    *,
    batch_size: int = KERAS_ROWS,
    wide: bool = True,
    after_batch: AfterBatch = lambda rows: None,
) -> Any:
    """Returns a model's output for all rows.

    Several batches are processed at a time: while one is encoded, which takes one core, another is
    predicted.

    Args:
        model: A built model; need not be compiled.
        source: The row source.
        recipe: The encoding of the rows.
        function: The user's function that is applied to features before the model, or None.
        buffer: Memory for a single output, or None.
        batch_size: Rows per batch where outputs depend on it, see `explain_rows()`: then batches
            come in order, and the last one may be shorter. Otherwise batches are large.
        wide: Whether numbers of 16 bits become float32.
        after_batch: Called after each batch with the number of rows that are done.

    Returns:
        An array of the rows' outputs, or the model's dict or list of such arrays.
    """
    why = explain_rows(model, source, recipe, function, batch_size)
    device, output = model_device(model), Output(len(source), buffer, wide)
    fixed = fixed_rows(model)
    kept = fixed or (batch_size if why else None)
    size = kept or choose_rows(len(source), source.row_bytes, count_row_bytes(model), device)
    # Batches of fixed size belong to stateful models, whose state is that of the batch before.
    workers = 0 if model.run_eagerly or function is not None or kept else WORKERS
    lookups = [] if source.texts else find_lookups(model)
    while output.written < len(source):
        device_transform = open_device_transform(recipe, size, function, source.texts)
        rows = RowBatches(source, size, pads=kept is None or fixed is not None)
        work = partial(_predict_batch, model, rows, device_transform, device, lookups)
        try:
            with closing(_map(work, range(output.written, len(source), size), workers)) as results:
                for values, count in results:
                    output.write(values, count)
                    after_batch(output.written)
        except tensor_ops.exhausted():
            if size == 1 or kept:
                raise
            size = -(-size // 2)
    return output.values


def explain_rows(
    model: Model,
    source: RowSource,
    recipe: Recipe,
    function: Callable[[Any], Any] | None = None,
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


class Batches(list[np.ndarray]):
    """An output's arrays by batch, where the shape of rows differs."""


def predict_stream(
    model: Model,
    data: IterableDataset,
    *,
    wide: bool = True,
    after_batch: AfterBatch = lambda rows: None,
) -> Any:
    """Returns a model's output for one epoch of an iterable dataset, see `predict_rows()`.

    Where the shape of an output's rows varies, there is one array per batch: `Batches`.
    """
    sample = sample_of(data)
    if sample is not None:
        _build(model, sample)
    batch_size = data.facts.chunk_rows if explain_outputs(model, sample) else None
    device, nest = model_device(model), runtime.tree()
    data.code_check = open_code_check(model, "newdata")
    loader = open_evaluation(data, device, batch_size=batch_size)
    most = choose_rows(2**31, data.row_bytes, count_row_bytes(model), device)
    size = fixed_rows(model) or batch_size or most
    if data.variable_axes:  # the user's own batches, whose shape may vary
        size = data.facts.chunk_rows
    outputs, done = [], 0
    for block in loader.epoch(0):
        features = runtime.keras().utils.unpack_x_y_sample_weight(block.arrays)[0]
        rows = block.rows if block.tail else block.batches * loader.batch_size
        whole = [features] if block.whole else _pieces(features, rows, size)
        outputs += [_predict(model, piece) for piece in whole]
        done += rows
        after_batch(done)
        del features, block
    return nest.map_structure(partial(_join, wide=wide), *outputs)


def _join(*parts: np.ndarray, wide: bool) -> Any:
    check_numbers(parts[0])
    parts = tuple(map(widen_half, parts)) if wide else parts
    same = len({part.shape[1:] for part in parts}) == 1
    return np.concatenate(parts) if same else Batches(parts)


class Output:
    """A nest of arrays for all rows, filled in order.

    Args:
        rows: Total number of rows.
        buffer: Memory for a single array, or None.
        wide: Whether numbers of 16 bits become float32.

    Attributes:
        values: The arrays, in the structure of the written values; None before the first.
        written: Number of rows written.
    """

    def __init__(self, rows: int, buffer: OutputBuffer | None = None, wide: bool = True) -> None:
        """Allocates nothing: the first values determine structure, shapes and dtypes."""
        self.values: Any = None
        self.written = 0
        self._rows = rows
        self._buffer = buffer
        self._wide = wide

    def write(self, values: Any, count: int) -> None:
        """Writes the first `count` rows of some values."""
        nest = runtime.tree()
        if self.values is None:
            self.values = nest.map_structure(self._make, values)
        for whole, part in zip(nest.flatten(self.values), nest.flatten(values), strict=True):
            write_rows(whole[self.written : self.written + count], part[:count])
        self.written += count

    def _make(self, like: np.ndarray) -> np.ndarray:
        check_numbers(like)
        shape = (self._rows, *like.shape[1:])
        dtype = wide_dtype(like.dtype) if self._wide else like.dtype
        made = None if self._buffer is None else self._buffer.make(shape, dtype)
        return aligned_empty(shape, dtype) if made is None else made


def check_numbers(values: Any) -> None:
    """Checks that a model's outputs are numbers, with rows.

    Raises:
        ModelError: if one is text, ragged, no array, or not of real numbers, such as complex ones.
    """
    kind = _odd(values)
    if not kind:
        return
    raise ModelError(
        f"`model` gives {kind}, but each of its outputs must hold real numbers for every row.",
        hint="Predict with a model without that output, or with a last layer that makes them "
        "real numbers, such as float32.",
        arg="model",
    )


def _odd(values: Any) -> str:
    """Returns the kind of an output that is no array of numbers with rows, or ""."""
    if hasattr(values, "row_splits"):  # Keras returns a ragged tensor unchanged
        return "ragged rows"
    dtype = wide_dtype(getattr(values, "dtype", np.dtype(type(values))))
    if dtype.kind in "OSU":
        return "text"
    if dtype.kind not in "fiub":
        return f"numbers of the type {dtype.name}"
    return "" if np.ndim(values) else "a single number for all rows"


_RANKS: weakref.WeakKeyDictionary[Any, tuple[int, ...]] = weakref.WeakKeyDictionary()


def _predict(model: Model, features: Any) -> Any:
    """Runs Keras' predict function; stops compiling it once XLA refuses it.

    TensorFlow would trace it with an unknown rank once it has seen two ranks, such as strings as
    vectors and as a column, and layers cannot work with that.
    """
    ranks = tuple(len(part.shape) for part in runtime.tree().flatten(features))
    if _RANKS.get(model, ranks) != ranks:
        model.predict_function = None
    _RANKS[model] = ranks
    try:
        with tensor_ops.memory_faults():
            return tensor_ops.predict_batch(model, features)
    except tensor_ops.refusals() as error:
        if not model.jit_compile or not is_inability(error, "compiled"):
            raise_explained(model, error)
    before = model.jit_compile
    model.jit_compile, model.predict_function = False, None
    try:
        return tensor_ops.predict_batch(model, features)
    finally:
        model.jit_compile = before  # the function that is not compiled is kept for the next batches


Batch = tuple[Any, int]


@dataclass(frozen=True)
class RowBatches:
    """Encoded rows in batches.

    Args:
        source: The rows.
        size: Rows per batch.
        pads: Whether the last batch is padded to as many.
    """

    source: RowSource
    size: int
    pads: bool

    def gather(self, start: int) -> tuple[np.ndarray, int]:
        """Returns the batch from row `start`, and how many of its rows are no padding."""
        rows = self.source.gather(slice(start, start + self.size))
        return pad_rows(rows, self.size) if self.pads else rows, len(rows)


def _predict_batch(
    model: Model,
    batches: RowBatches,
    device_transform: Callable[[Any], Any],
    device: str,
    lookups: list[Lookup],
    start: int,
) -> Batch:
    """Returns the output of the batch from row `start`, and how many of its rows are no padding."""
    rows, count = batches.gather(start)
    features = _adopt(device_transform(rows), device)
    refuse_codes(lookups, features, "newdata")
    return _predict(model, features), count


def _map(work: Callable[[int], Batch], starts: range, workers: int) -> Generator[Batch, None, None]:
    """Yields the batches in order, computed in threads, or here if a user's Python code may call R.

    The first is computed alone, because it traces; it is written while the next ones are computed.
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
    """Pads rows to the batch size: TensorFlow traces for one shape."""
    lacking = size - len(rows)
    return np.pad(rows, [(0, lacking)] + [(0, 0)] * (rows.ndim - 1)) if lacking else rows


def _adopt(features: Any, device: str) -> Any:
    """Adopts rows in host memory without a copy, where the model's device uses host memory."""
    if not isinstance(features, np.ndarray) or not device.startswith("CPU"):
        return features
    flags = features.flags  # adopted arrays, such as a dataset's rows, cannot be adopted again
    fit = features.ctypes.data % ALIGNMENT == 0 and flags.c_contiguous and flags.writeable
    return tensor_ops.adopt_array(features) if fit else features


def _pieces(features: Any, rows: int, size: int) -> Iterator[Any]:
    nest = runtime.tree()
    for start in range(0, rows, size):
        piece = slice(start, min(start + size, rows))
        yield nest.map_structure(lambda array, piece=piece: array[piece], features)


def _build(model: Model, sample: Sample) -> None:
    """Creates a model's variables, which JAX cannot within a program, and TensorFlow can."""
    if runtime.backend() == "jax":
        keras_private.build_layers(model, sample.take(np.arange(1)))
