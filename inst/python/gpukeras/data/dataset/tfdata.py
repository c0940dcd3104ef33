"""Reads a user's `tf.data.Dataset` in blocks of batches.

TensorFlow assembles the elements into blocks (`rebatch`), so that Python handles no row, and makes
the next block while the current one is trained. The dataset determines the order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.errors import DataError, SpecError, warn_ended_early
from gpukeras.core.messages import count_of, find_reason
from gpukeras.core.options import check_count, refused_value
from gpukeras.core.pulling import Puller
from gpukeras.data.dataset.elements import parse_elements, unname_pairs
from gpukeras.data.dataset.rebatch import HostBlock, Pass
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding, Recipe

PEEK_ROWS = 1024  # rows of an unbatched dataset from which a recipe is learned
INFINITE, UNKNOWN = -1, -2  # tf.data's cardinality constants


class TfStream:
    """The rows of a `tf.data.Dataset`.

    Args:
        dataset: The user's dataset.
        steps: Batches per epoch, or None to read to the dataset's end.
        batched: Whether its elements are batches; None to infer it from their shapes.
        recipe: An encoding to apply, which determines the order of several tensors; or None.
    """

    def __init__(
        self,
        dataset: Any,
        steps: Any = None,
        batched: bool | None = None,
        recipe: Recipe | None = None,
    ) -> None:
        """Parses the element shapes without reading from the dataset.

        Raises:
            SpecError: if it is not a tf.data dataset, or is infinite and `steps` is not given.
            DataError: for elements that cannot be trained on.
        """
        if not isinstance(dataset, runtime.reader().data.Dataset):
            raise refused_value("x", dataset, "a tf.data.Dataset")
        dataset = unname_pairs(dataset, recipe)
        self.elements = parse_elements(dataset.element_spec, batched, recipe)
        self.dataset = disable_prefetch(self.elements.pack(dataset))
        self.cardinality = int(dataset.cardinality())
        self.steps = check_steps(steps, self.cardinality, self.elements.batched)

    def peek(self) -> tuple[np.ndarray, ...]:
        """Returns the first batch, or the first rows, not encoded."""
        return self.plain(pull_first(self._rows()))

    def batches(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Yields all elements in batches, not encoded."""
        puller = Puller(self._rows)
        try:
            while (element := pull_element(puller, 1)) is not None:
                yield self.plain(element)
        finally:
            puller.close()

    def _rows(self) -> Any:
        return self.dataset if self.elements.batched else self.dataset.batch(PEEK_ROWS)

    def plain(self, element: Any) -> tuple[np.ndarray, ...]:
        """Converts a batch to arrays; a row of `x` has at least one dimension."""
        parts = element if isinstance(element, (tuple, list)) else (element,)
        x, *others = (np.asarray(part) for part in parts)
        return (x.reshape(-1, *self.elements.x.shape), *others)

    def expect_rows(self, first: int) -> int | None:
        """Estimates the rows of all elements from those of the first; None if unknown."""
        if self.cardinality < 0:
            return None
        return self.cardinality * (first if self.elements.batched else 1)

    def open(
        self,
        encoding: Encoding,
        batch_size: int,
        capacity: int,
        *,
        rows: int | None,
        drop_last: bool,
        buffer: int | None,
        seed: int,
    ) -> TfPass:
        """Opens a pass over the encoded rows.

        Args:
            encoding: The encoding.
            batch_size: Rows per batch.
            capacity: Batches per block.
            rows: Rows per epoch, or None to read to the dataset's end.
            drop_last: Leave out the short last batch, if there is a full one.
            buffer: Rows of the shuffle buffer, or None to keep the order.
            seed: Seed of the shuffle buffer; each epoch adds its number.
        """

        def make(epoch: int) -> Any:
            made = self.dataset
            if buffer is not None:
                made = made.unbatch() if self.elements.batched else made
                made = made.shuffle(buffer, seed=(seed + epoch) % 2**31)
            if rows is not None and self.cardinality >= 0:
                made = made.repeat()
            made = self._rebatch(made, batch_size, capacity, rows, buffer is None)
            return prefetch_one(made.map(lambda *parts: self._encode(encoding, parts)))

        once = functools.cache(lambda: make(0))  # without a buffer TensorFlow traces it once
        begin = make if buffer is not None else lambda epoch: once()
        return TfPass(begin, batch_size, capacity, rows, drop_last)

    def _rebatch(
        self, made: Any, batch_size: int, capacity: int, rows: int | None, own: bool
    ) -> Any:
        """Groups elements into blocks; with `rows`, the last block ends with the epoch."""
        room, batched = batch_size * capacity, self.elements.batched and own
        if not batched:
            made = made.batch(room if rows is None else batch_size)
        if rows is not None:
            return made.rebatch([room] * (rows // room) + [rows % room] * (rows % room > 0))
        return made.rebatch(room) if batched else made

    def _encode(self, encoding: Encoding, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """Encodes a block in the dataset's graph; bytes stay bytes and become floats later."""
        tf = runtime.reader()
        x = tf.reshape(parts[0], (-1, *self.elements.x.shape))
        if isinstance(encoding, ArrayEncoding) and not encoding.keeps_values:
            x = (tf.cast(x, tf.float64) - (encoding.center or 0.0)) / (encoding.scale or 1.0)
        if x.dtype != tf.uint8:
            x = tf.debugging.check_numerics(
                tf.cast(x, tf.float32), "`x` has missing or infinite values"
            )
        shapes = (self.elements.y.shape, self.elements.weights.shape)
        others = zip(parts[1:], shapes, strict=False)
        return (x, *(tf.cast(tf.reshape(part, (-1, *row)), tf.float32) for part, row in others))


def disable_prefetch(dataset: Any) -> Any:
    """Returns the dataset; one that calls `tf.py_function()` makes elements only on request.

    The function may be R's, which runs on R's main thread. If it ran there while a training step is
    traced, the function's tensors would become a part of that graph. Elements that the user's own
    prefetch() or num_parallel_calls makes ahead stay so.
    """
    if not keras_private.uses_py_function(dataset):
        return dataset
    options = runtime.reader().data.Options()
    options.experimental_optimization.apply_default_optimizations = False  # fuses map and batch
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def prefetch_one(dataset: Any) -> Any:
    """Prefetches one element, unless an option forbids it, see `disable_prefetch()`."""
    forbidden = dataset.options().experimental_optimization.inject_prefetch is False
    return dataset if forbidden else dataset.prefetch(1)


class TfPass(Pass):
    """Successive epochs of a tf.data dataset, in blocks of one shape.

    Args:
        make: Returns a dataset of blocks that starts with the given epoch.
        batch_size: Rows per batch.
        capacity: Batches per block.
        rows: Rows per epoch; the next epoch goes on where the last one ended. None if each epoch
            is the whole dataset.
        drop_last: Leave out the short last batch, if there is a full one.
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        batch_size: int,
        capacity: int,
        rows: int | None,
        drop_last: bool,
    ) -> None:
        """Stores the settings without reading from the dataset."""
        super().__init__()
        self._make = make
        self._batch_size = batch_size
        self._capacity = capacity
        self._rows, self._drop_last = rows, drop_last

    def blocks(self, epoch: int) -> Generator[HostBlock, None, None]:
        """Yields the blocks of an epoch, counted from 1, then its short last batch.

        Raises:
            DataError: if the user's pipeline fails, or is empty.
        """
        seen, whole = 0, False
        try:
            while self._rows is None or seen < self._rows:
                element = self._next(epoch, seen)
                if element is None:
                    self.close()
                    break
                yield from self._cut(element, seen == 0)
                seen += int(element[0].shape[0])
            whole = True
        finally:
            if self._rows is None or not whole:
                self.close()

    def _next(self, epoch: int, seen: int) -> Any:
        fresh = self._puller is None
        self._puller = self._puller or Puller(lambda: self._make(epoch))
        element = pull_element(self._puller, epoch, self.idle)
        if element is None and not fresh and seen == 0:  # it ended with the previous epoch
            self.close()
            return self._next(epoch, seen)
        if element is None and seen == 0:
            raise DataError(
                f"The tf.data dataset has no rows in epoch {epoch}.", arg="x", epoch=epoch
            )
        if element is None and self._rows is not None:
            warn_ended_early("The tf.data dataset", seen // self._batch_size + 1, epoch)
        return element

    def _cut(self, arrays: tuple[Any, ...], first: bool) -> Iterator[HostBlock]:
        tf = runtime.reader()
        rows = int(arrays[0].shape[0])
        size = self._batch_size
        full, room = rows // size, size * self._capacity
        if rows == room:
            yield _give(arrays), full, False
            return
        if full:
            yield _give(_pad(tf, array, room) for array in arrays), full, False
        if rows % size and not (self._drop_last and (full or not first)):
            yield _give(array[full * size :] for array in arrays), 1, True


def check_steps(steps: Any, cardinality: int, batched: bool = True) -> int | None:
    """Checks the user's `steps`: batches per epoch, or None to read to the dataset's end.

    Args:
        steps: The user's value.
        cardinality: The dataset's number of elements, or `INFINITE` or `UNKNOWN`.
        batched: Whether elements are batches.

    Raises:
        SpecError: if the dataset is infinite and `steps` is None, or has fewer batches than
            `steps`.
    """
    if steps is None and cardinality == INFINITE:
        raise SpecError(
            "The tf.data dataset has no end: `steps` must say how many batches an epoch has.",
            arg="steps",
        )
    steps = None if steps is None else check_count("steps", steps)
    if batched and 0 <= cardinality < (steps or 0):
        raise SpecError(
            f"`steps` is {steps}, but the tf.data dataset has {count_of(cardinality, 'batch')}.",
            hint="Leave `steps` out, or repeat() the dataset.",
            arg="steps",
        )
    return steps


def pull_first(dataset: Any) -> Any:
    """Returns the first element.

    Raises:
        DataError: if the dataset is empty or fails.
    """
    puller = Puller(lambda: dataset.take(1))
    try:
        first = pull_element(puller, 1)
    finally:
        puller.close()
    if first is None:
        raise DataError("The tf.data dataset has no rows.", arg="x")
    return first


def pull_element(puller: Puller, epoch: int, idle: Callable[[], None] = lambda: None) -> Any:
    """Returns the next element, or None at the end.

    Args:
        puller: The puller of the dataset.
        epoch: The epoch's number, for messages.
        idle: Called now and then while the puller waits.

    Raises:
        DataError: if the user's pipeline fails.
    """
    try:
        return puller.pull(idle)
    except runtime.reader().errors.OpError as error:
        raise DataError(
            f"The tf.data dataset failed in epoch {epoch}: {find_reason(error)}.",
            arg="x",
            epoch=epoch,
        ) from error


def _give(arrays: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(tensor_ops.take_over, arrays))


def _pad(tf: Any, array: Any, room: int) -> Any:
    return tf.pad(array, [[0, room - array.shape[0]]] + [[0, 0]] * (len(array.shape) - 1))
