"""Regroups chunks of any number of rows into blocks of batches of one shape, with NumPy only.

    chunks --shuffle_rows() (optional)--> Rebatcher --> blocks of full batches, a short last one

Each row is copied once, into memory that TensorFlow adopts without another copy.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.core.memory import aligned_copy, aligned_empty
from gpukeras.core.pulling import Puller

FILL_S = 0.2  # seconds after which a block is sent if it has a full batch, so that progress shows

Arrays = tuple[Any, ...]  # features, labels, weights: rows first
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
    def blocks(self, epoch: int) -> Generator[HostBlock, None, None]:
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

    def __init__(self, most: int = 3) -> None:
        """Keeps at most `most` blocks: one being filled, one in training, one in transfer."""
        self._most = most
        self._kept: list[list[np.ndarray]] = []

    def take(self, arrays: Arrays, rows: int) -> list[np.ndarray]:
        """Returns arrays of `rows` rows, otherwise with the shapes and dtypes of `arrays`."""
        for kept in self._kept:
            if all(sys.getrefcount(kept[index]) == 2 for index in range(len(kept))):
                for array in kept:
                    array.flags.writeable = True  # adoption made it read-only
                return kept
        made = [aligned_empty((rows, *array.shape[1:]), array.dtype) for array in arrays]
        if len(self._kept) < self._most:
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
                    batches, block, before = filled // self.batch_size, [], block
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
