"""Chunks of rows, of any sizes, into blocks of batches of one shape.

    chunks --ShuffleBuffer (if asked for)--> Rebatcher --> blocks of full batches, a short last one

NumPy only. Each row is copied once, into memory that TensorFlow can adopt.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.data.arrays import aligned_empty

FILL_S = 0.2  # seconds after which a block goes as it is, if it holds a batch: progress stays alive

Arrays = tuple[Any, ...]  # features, labels, weights: rows first
HostBlock = tuple[Arrays, int, bool]  # arrays, full batches that count, whether it is the tail


class BlockMemory:
    """Memory of blocks, used again as soon as nobody else holds it.

    TensorFlow adopts a block's arrays and keeps a reference to them as long as any tensor, or a
    copy to a device that is still under way, needs them. So the count of references tells: no
    guess about when a device is done.
    """

    def __init__(self, most: int = 3) -> None:
        """Keeps at most `most` blocks: one is filled, one trained, one on its way."""
        self._most = most
        self._kept: list[list[np.ndarray]] = []

    def take(self, arrays: Arrays, rows: int) -> list[np.ndarray]:
        """Arrays of `rows` rows, otherwise of the shapes and types of `arrays`."""
        for kept in self._kept:
            if all(sys.getrefcount(kept[index]) == 2 for index in range(len(kept))):
                for array in kept:
                    array.flags.writeable = True  # adopting made it read-only
                return kept
        made = [aligned_empty((rows, *array.shape[1:]), array.dtype) for array in arrays]
        if len(self._kept) < self._most:
            self._kept.append(made)
        return made


@dataclass
class Rebatcher:
    """Puts chunks together to blocks.

    Args:
        batch_size: Rows a batch.
        capacity: Batches a block.
        drop_last: Leave out the short last batch, if there is a full one.
        fill_s: Seconds after which a block with at least one batch goes as it is.
    """

    batch_size: int
    capacity: int
    drop_last: bool = False
    fill_s: float = FILL_S
    _memory: BlockMemory = field(default_factory=BlockMemory)

    def blocks(self, chunks: Iterable[Arrays]) -> Iterator[HostBlock]:
        """Blocks of one shape whose first batches count, then the short last batch.

        The next chunk is only asked for once the block before it has been taken.
        """
        room, filled, full = self.batch_size * self.capacity, 0, 0
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
        tail = tuple(align(array[rest]) for array in block)
        if batches:
            yield _full(block, filled, batches)
        if rest.stop > rest.start and not (self.drop_last and full + batches):
            yield tail, 1, True


def _full(block: list[np.ndarray], filled: int, batches: int) -> HostBlock:
    for array in block:
        array[filled:] = 0  # what is left of another use, or was never written
    return tuple(block), batches, False  # another object than `block`: see BlockMemory


def _copy(chunk: Arrays, start: int, block: list[np.ndarray], filled: int, count: int) -> None:
    for array, out in zip(chunk, block, strict=True):
        out[filled : filled + count] = array[start : start + count]


def align(array: np.ndarray) -> np.ndarray:
    """A copy that TensorFlow can adopt."""
    out = aligned_empty(array.shape, array.dtype)
    out[...] = array
    return out


# Shuffling ---------------------------------------------------------------------------------------


def shuffle_rows(chunks: Iterable[Arrays], rows: int, seed: list[int]) -> Iterator[Arrays]:
    """Rows in a random order as far as a buffer of `rows` rows reaches.

    Every row takes the place of one drawn from the buffer; at the end the buffer is shuffled.
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
