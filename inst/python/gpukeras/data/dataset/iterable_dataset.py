"""Datasets whose rows come in sequence, from a function or a pipeline of the user's, as blocks.

    the user's function --------chunks--> encode --> Rebatcher --> blocks of batches
    the user's tf.data.Dataset -----------------------TensorFlow--> blocks of batches

The loader requests chunks between two calls of the engine, until a block of batches is full. That
block is the bounded queue between the function and the device. On a GPU an engine's call returns
before the device is done, so the next block's chunks are made while the device works on the
previous block; on a CPU a call uses the cores until it returns, and the two take turns.

The recipe is learned from the first chunk. With `cache = TRUE` all chunks are collected once into
a dataset of rows by number, with a full shuffle and every plan; the user's code is not called
again.

Chunks of any number of rows are regrouped with NumPy only, each row copied once, into memory that
TensorFlow adopts without another copy:

    chunks --shuffle_rows() (optional)--> Rebatcher --> blocks of full batches, a short last one
"""

from __future__ import annotations

import itertools
import sys
import time
from abc import ABC, abstractmethod
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.memory import aligned_copy, aligned_empty
from gpukeras.core.options import DatasetSpec
from gpukeras.core.pulling import Puller
from gpukeras.data.dataset.chunks import Arrays, Chunk, Generator, Parts, check_parts, encode_chunk
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.plan import PipelinePlan, StreamFacts, plan_stream
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.data.recipe.multi_output import widen_labels
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.stage_timer import end_stage

# Blocks -------------------------------------------------------------------------------------------

MOST_BLOCKS = 3  # in memory: one being filled, one in training, one in transfer
FILL_S = 0.2  # seconds after which a block is sent if it has a full batch, so that progress shows

HostBlock = tuple[Arrays, int, bool]  # arrays, full batches to train, whether it is the tail


@dataclass(frozen=True)
class BlockOptions:
    """How the rows of a pass become blocks.

    Args:
        batch_size: Rows per batch.
        capacity: Batches per block.
        drop_last: Leave out the short last batch, if there is a full one.
        buffer: Rows of the shuffle buffer, or None to keep the order.
        seed: Seed of the shuffle buffer; each epoch adds its number.
    """

    batch_size: int
    capacity: int
    drop_last: bool = False
    buffer: int | None = None
    seed: int = 0


class Pass(ABC):
    """Successive epochs of rows in sequence, in blocks.

    Attributes:
        stage: The last stage on the host, see `loader.profile.WHAT`.
        whole: Why the last batch goes to Keras' train function unchanged, or "".
        dropped: Rows of the epoch that were dropped for missing values.
        idle: Called now and then while the pass waits for rows.
    """

    stage = "pull"  # one stage, as TensorFlow's threads overlap its parts
    whole = ""
    dropped = 0

    def __init__(self) -> None:
        """Reads nothing."""
        self.idle: Callable[[], None] = lambda: None
        self._puller: Puller | None = None

    @abstractmethod
    def blocks(self, epoch: int) -> abc.Generator[HostBlock, None, None]:
        """Yields the blocks of an epoch, counted from 1."""

    def close(self) -> None:
        """Stops reading; the next epoch starts anew."""
        if self._puller is not None:
            self._puller.close()
        self._puller = None


class BlockMemory:
    """A pool of block memory, reused as soon as no other reference to it exists.

    TensorFlow adopts a block's arrays and keeps a reference to them as long as a tensor, or a
    pending copy to a device, needs them. The reference count therefore shows when a block is free.
    """

    def __init__(self) -> None:
        """Starts without blocks."""
        self._kept: list[list[np.ndarray]] = []

    def take(self, arrays: Arrays, rows: int) -> list[np.ndarray]:
        """Returns arrays of `rows` rows, otherwise with the shapes and dtypes of `arrays`."""
        for kept in self._kept:
            if all(sys.getrefcount(kept[index]) == 2 for index in range(len(kept))):
                for array in kept:
                    array.flags.writeable = True  # adoption made it read-only
                return kept
        made = [aligned_empty((rows, *array.shape[1:]), array.dtype) for array in arrays]
        if len(self._kept) < MOST_BLOCKS:
            self._kept.append(made)
        return made


@dataclass
class Rebatcher:
    """A converter of chunks into blocks.

    Args:
        batch_size: Rows per batch.
        capacity: Batches per block.
        drop_last: Leave out the short last batch, if there is a full one.
        fill_s: Seconds after which a partly filled block with at least one batch is sent.
    """

    batch_size: int
    capacity: int
    drop_last: bool = False
    fill_s: float = FILL_S
    _memory: BlockMemory = field(default_factory=BlockMemory)

    def blocks(self, chunks: Iterable[Arrays]) -> Iterator[HostBlock]:
        """Yields blocks of one shape, padded after their full batches, then the short last batch.

        The next chunk is requested only after the previous block has been taken.
        """
        room = self.batch_size * self.capacity
        filled = 0
        full = 0
        block: list[np.ndarray] = []
        began = time.perf_counter()
        for chunk in chunks:
            start, rows = 0, len(chunk[0])
            while start < rows:
                block = block or self._memory.take(chunk, room)
                count = min(room - filled, rows - start)
                _copy(chunk, start, block, filled, count)
                start, filled = start + count, filled + count
                late = start == rows and time.perf_counter() - began > self.fill_s
                if filled == room or (late and filled >= self.batch_size):
                    batches = filled // self.batch_size
                    before = block
                    block = []
                    yield _full(before, filled, batches)
                    full, began = full + batches, time.perf_counter()
                    filled -= batches * self.batch_size
                    if filled:
                        block = self._memory.take(chunk, room)
                        _copy(tuple(before), batches * self.batch_size, block, 0, filled)
                    del before
        yield from self._end(block, filled, full)

    def _end(self, block: list[np.ndarray], filled: int, full: int) -> Iterator[HostBlock]:
        batches = filled // self.batch_size
        rest = slice(batches * self.batch_size, filled)
        tail = tuple(aligned_copy(array[rest], array.dtype) for array in block)
        if batches:
            yield _full(block, filled, batches)
        if rest.stop > rest.start and not (self.drop_last and full + batches):
            yield tail, 1, True


def _full(block: list[np.ndarray], filled: int, batches: int) -> HostBlock:
    for array in block:
        array[filled:] = 0  # clears rows of an earlier use or uninitialised memory
    return tuple(block), batches, False  # holds no reference to `block`: see BlockMemory


def _copy(chunk: Arrays, start: int, block: list[np.ndarray], filled: int, count: int) -> None:
    for array, out in zip(chunk, block, strict=True):
        out[filled : filled + count] = array[start : start + count]


def shuffle_rows(chunks: Iterable[Arrays], rows: int, seed: list[int]) -> Iterator[Arrays]:
    """Yields rows in the random order of a shuffle buffer.

    Each new row replaces a random row of the buffer; at the end the buffer is shuffled.

    Args:
        chunks: The rows in order.
        rows: Rows of the buffer.
        seed: Seed of the shuffle.
    """
    generator = np.random.default_rng(seed)
    buffer: list[np.ndarray] = []
    filled = 0
    for chunk in chunks:
        buffer = buffer or [np.empty((rows, *a.shape[1:]), a.dtype) for a in chunk]
        count = min(rows - filled, len(chunk[0]))
        _copy(chunk, 0, buffer, filled, count)
        filled += count
        for start in range(count, len(chunk[0]), rows):
            piece = tuple(array[start : start + rows] for array in chunk)
            yield _swap(piece, buffer, generator.permutation(rows)[: len(piece[0])])
    if filled:
        order = generator.permutation(filled)
        yield tuple(array[order] for array in buffer)


def _swap(piece: Arrays, buffer: list[np.ndarray], slots: np.ndarray) -> Arrays:
    drawn = tuple(array[slots] for array in buffer)
    for array, out in zip(piece, buffer, strict=True):
        out[slots] = array
    return drawn


# Rows in sequence ---------------------------------------------------------------------------------

BUFFER_BYTES = 64 * 2**20  # the most for a shuffle buffer


class CodeCheck(Protocol):
    """Checks the codes that a model looks up, block by block."""

    def add(self, features: Any) -> None:
        """Takes the features of a block; raises an error for a code that the model lacks."""

    def finish(self) -> None:
        """Checks what is not checked yet, at the end of an epoch."""


@dataclass(frozen=True)
class Learned:
    """What is known of rows in sequence once their first chunk was read.

    Args:
        recipe: The encoding, learned from the first chunk or given.
        spec: The dataset's options.
        head: The first chunk, encoded: features, labels and weights.
        facts: The facts from which the plan is made.
    """

    recipe: Recipe
    spec: DatasetSpec
    head: Arrays
    facts: StreamFacts


class IterableDataset(Dataset):
    """A dataset of rows in sequence, made by a function or a pipeline.

    Args:
        learned: What the first chunk has told.

    Attributes:
        code_check: Checks the codes that the model looks up; None where it has nothing to check.
    """

    source_kind = "pipeline"
    size = None
    code_check: CodeCheck | None = None

    def __init__(self, learned: Learned) -> None:
        """Stores the parts."""
        sources = tuple(map(MemoryRows, learned.head))
        super().__init__(sources, learned.recipe, learned.spec, learned.facts.na)
        self.facts = learned.facts

    def open_pass(self, size: int, capacity: int, training: bool) -> Pass:
        """Opens a pass over successive epochs, which ends with their rows.

        Args:
            size: Rows per batch.
            capacity: Batches per block.
            training: Whether rows are shuffled, and the short last batch may be left out.
        """
        drop_last, buffer = training and self.spec.drop_last, self.buffer if training else None
        return self.open_blocks(BlockOptions(size, capacity, drop_last, buffer, self.spec.seed))

    @abstractmethod
    def open_blocks(self, how: BlockOptions) -> Pass:
        """Opens a pass whose rows become blocks in a given way."""

    @property
    def epoch_rows(self) -> int:
        """Rows per epoch if all chunks are like the first; 0 if the end is unknown."""
        return self.facts.rows

    def count(self, part: str) -> int | None:
        """Rows of a part: 0 for "validation", as there is no split; else None, for unknown."""
        return 0 if part == "validation" else None

    def identity(self) -> dict[str, Any]:
        """Returns how the rows are made; the rows may differ each time and are not compared."""
        return {"source": self.facts.what, "rows": self.facts.rows, "buffer": self.buffer}

    def make_plan(self, device: str, spec: DatasetSpec) -> PipelinePlan:
        """Returns the plan for a device and options."""
        return plan_stream(replace(self.facts, device=device), spec)

    def widen_label(self, labels: np.ndarray) -> bool:
        """Extends the recipe's range to more labels; returns whether that changed it."""
        rule = self.recipe.label
        if rule is None or not len(labels):
            return False
        wider = widen_labels(rule, labels)
        self.recipe = replace(self.recipe, label=wider)
        return wider != rule

    @property
    def buffer(self) -> int | None:
        """Rows of the shuffle buffer, or None to keep the user's order."""
        if not self.spec.shuffle or self.spec.buffer == "auto":
            return None
        return max(1, min(int(self.spec.buffer), BUFFER_BYTES // max(1, self.row_bytes)))


# Datasets of functions ----------------------------------------------------------------------------


class GeneratorDataset(IterableDataset):
    """The encoded chunks of a function.

    Args:
        learned: See `IterableDataset`.
        generator: The function.
        parts: The labels and weights that chunks have, see `read_parts()`.
        arg: The user's name for the features.
    """

    source_kind = "function"

    def __init__(self, learned: Learned, generator: Generator, parts: Parts, arg: str) -> None:
        """Stores the parts."""
        super().__init__(learned)
        self.generator = generator
        self._parts = parts
        self._arg = arg

    def open_blocks(self, how: BlockOptions) -> Pass:
        """Opens a pass over the function's chunks."""
        return GeneratorPass(self, how)

    def encode(self, chunk: Chunk) -> tuple[Arrays, int]:
        """Encodes a chunk, and counts the rows that were dropped.

        Raises:
            DataError: for a chunk that does not fit; names the batch.
        """
        recipe = self._fit_shape(chunk.features)
        try:
            check_parts(self._parts, chunk)
            return encode_chunk(chunk, recipe, self.na, self._arg)
        except DataError as error:
            raise chunk.blame(error) from error

    def _fit_shape(self, features: Mapping[str, Any]) -> Recipe:
        """Returns the recipe for rows whose shape may differ along the model's open axes.

        Raises:
            SpecError: for such rows, if `batch_size` or `buffer` regroups them.
        """
        shape = self.recipe.shape
        row_shape = np.shape(features["values"])[1:] if features["kind"] == "array" else shape
        axes = {
            a
            for a, (length, other) in enumerate(zip(row_shape, shape, strict=False))
            if length != other
        }
        same_rank = len(row_shape) == len(shape) and self.recipe.keeps_values
        if not axes or not same_rank or not axes <= self.variable_axes:
            return self.recipe
        asked = "batch_size" if self.spec.batch_size != "auto" else "buffer"
        if asked == "batch_size" or self.buffer is not None:
            raise SpecError(
                f"`{asked}` needs rows of one shape: those of the function vary.",
                hint="Leave it out: batches are then taken as they come.",
                arg=asked,
            )
        return self.recipe.with_row_shape(row_shape)


class GeneratorPass(Pass):
    """Successive epochs of a function, which is called between blocks.

    Args:
        data: The dataset of the function.
        how: How its rows become blocks.
    """

    stage = "gather"

    def __init__(self, data: GeneratorDataset, how: BlockOptions) -> None:
        """Stores the parts without calling the function."""
        super().__init__()
        self._data, self._how = data, how
        self._rebatcher = Rebatcher(how.batch_size, how.capacity, how.drop_last)

    def blocks(self, epoch: int) -> abc.Generator[HostBlock, None, None]:
        """Yields the blocks of an epoch, counted from 1; the function is called between them."""
        self.dropped = 0
        chunks = self._encoded(epoch)
        if self._how.buffer is not None:
            chunks = shuffle_rows(chunks, self._how.buffer, [self._how.seed, epoch])
        odd: list[Arrays] = []
        yield from self._rebatcher.blocks(self._alike(chunks, odd))
        for arrays in itertools.chain(odd, chunks):  # of other row shapes: each is one batch
            self.whole = "rows vary in shape, so each batch is trained as it comes"
            yield tuple(aligned_copy(array, array.dtype) for array in arrays), 1, True

    def _alike(self, chunks: Iterator[Arrays], odd: list[Arrays]) -> Iterator[Arrays]:
        """Yields chunks up to the first one of another row shape, which is appended to `odd`."""
        if self.whole:
            return
        first: Arrays = ()
        for arrays in chunks:
            first = first or arrays
            if arrays[0].shape[1:] != first[0].shape[1:]:
                odd.append(arrays)
                return
            yield arrays

    def _encoded(self, epoch: int) -> Iterator[Arrays]:
        for chunk in self._data.generator.chunks(epoch):
            end_stage("read")
            arrays, dropped = self._data.encode(chunk)
            self.dropped += dropped
            end_stage("decode")
            if len(arrays[0]):
                yield arrays
                end_stage("gather")  # into a block, or first into the shuffle buffer
