"""Loads rows by number in blocks of batches onto the device.

The rows of a block are gathered outside the training program: inside XLA on a CPU, a gather becomes
a loop over rows (28 us per row, measured). If the host gathers, a thread makes and sends the next
block while the device works on the current one, also on a CPU, where a compiled step leaves cores
idle (a warm epoch of 200,000 x 200 took 0.81 to 0.93 times as long, 2 cores).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpukeras.backend import tensor_ops
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.loader.block import Block, DataLoader, DeviceTransform
from gpukeras.data.loader.sharding import BatchSharding
from gpukeras.data.plan import BLOCK_BATCHES, PipelinePlan, choose_capacity
from gpukeras.data.stage_timer import end_stage, heard_by

# Row numbers, batches, whether the piece is the tail, and the key of its random numbers.
Piece = tuple[np.ndarray, int, bool, tuple[int, int]]
Gathered = TypeVar("Gathered")


class Begun(NamedTuple):
    """An epoch whose first block the loader's thread gathers: its number, pieces and block."""

    epoch: int
    first: Future[tuple[Iterator[Piece], Block]]


class MapLoader(DataLoader):
    """A loader of rows by number; if the host gathers, it makes one block ahead of the device.

    Args:
        dataset: The dataset.
        plan: The dataset's plan.
        batch_size: Rows per batch; evaluation uses larger batches than training.
        steps: Batches per epoch, so that a small dataset gets a small block.
        device_transform: See `DataLoader`.
        rows: The rows of each epoch, or None for the training rows in the epoch's order.
        drop_last: Leave out the short last batch, if there is a full one.
        shares: See `DataLoader`.
        most: The most batches per block.
        steps_per_epoch: Batches of an epoch that is a part of a pass over the rows, fewer than the
            pass has; None for whole passes. The last epoch of a pass has the batches that are left.
        initial_epoch: The epoch that begins the first pass.

    Attributes:
        steps: Batches of the epoch that was begun last.
    """

    exact = True

    def __init__(
        self,
        dataset: MapDataset,
        plan: PipelinePlan,
        batch_size: int,
        steps: int,
        *,
        device_transform: DeviceTransform | None = None,
        rows: np.ndarray | None = None,
        drop_last: bool = False,
        shares: BatchSharding | None = None,
        most: int = BLOCK_BATCHES,
        steps_per_epoch: int | None = None,
        initial_epoch: int = 0,
    ) -> None:
        """Sizes the blocks and opens the row sources on their devices."""
        super().__init__(batch_size, plan.device, device_transform, shares, dataset.wrapped)
        here = batch_size if shares is None else shares.count_here(batch_size)
        self._pool: ThreadPoolExecutor | None = None
        self._begun: Begun | None = None
        self.capacity = choose_capacity(here * dataset.row_bytes, steps, most)
        self._dataset = dataset
        self._rows = rows
        self._drop_last = drop_last
        self.row_count = count = len(dataset.rows("train") if rows is None else rows)
        self._passed = max(1, count // batch_size) if drop_last else -(-count // batch_size)
        self._part = self.steps = steps_per_epoch or self._passed
        self._initial_epoch = initial_epoch
        places = (plan.device,) if shares is None else shares.devices
        on_device = plan.mode == "resident" and not plan.device.startswith("CPU")
        self._places = places if on_device else ("CPU:0",) * len(places)
        reuse = plan.device.startswith("CPU")  # for a GPU TensorFlow's threads gather faster
        self._gatherers = tuple(
            tuple(s.reusing_gatherer() if reuse else s.gatherer(place) for s in dataset.sources)
            for place in self._places
        )

    def epoch(self, number: int, more: bool = False) -> Generator[Block, None, None]:
        """Yields the blocks of an epoch, counted from 0; see `DataLoader.epoch()`."""
        begun, self._begun = self._begun, None
        self.steps = self._count_steps(number)
        following = number + 1 if more and self._dataset.draw is None else None
        if begun is not None and begun.epoch == number:
            return self._blocks_ahead(begun, following)
        if begun is not None:  # the epoch before it begins again
            begun.first.cancel()
        return self.blocks(self._order(number), number, following)

    def _count_steps(self, number: int) -> int:
        return min(self._part, self._passed - self._place(number)[1])

    def _place(self, number: int) -> tuple[int, int]:
        """Returns an epoch's pass, and the batch of that pass at which it begins."""
        epochs = -(-self._passed // self._part)
        passes, part = divmod(number - self._initial_epoch, epochs)
        return self._initial_epoch + passes, part * self._part

    def _order(self, number: int) -> np.ndarray:
        with heard_by(self.clock):
            rows, size = self._rows, self.batch_size
            passes, first = self._place(number)
            order = self._dataset.order(passes, size) if rows is None else rows
            if self._part < self._passed:
                order = order[first * size : (first + self._part) * size]
                if self._drop_last:
                    order = order[: self._count_steps(number) * size]
            end_stage("gather")
        return order

    def settle(self, plan: PipelinePlan) -> PipelinePlan:
        """Returns the plan itself, as all rows are known beforehand."""
        return plan

    def release(self) -> None:
        """Frees the memory for further blocks, the next epoch's first one too."""
        if self._pool is not None:  # not joined: see `prefetch.shutdown_without_join()`
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._pool = None
        self._begun = None
        self._gatherers = ()

    def blocks(
        self, order: np.ndarray, epoch: int = 0, following: int | None = None
    ) -> Generator[Block, None, None]:
        """Yields the rows of `order` as blocks of full batches, then the short last batch.

        Args:
            order: Row numbers.
            epoch: The number of the epoch, for random numbers.
            following: The epoch whose first block is gathered while the last one is used, or None.
        """
        if self._places[0] == "CPU:0":
            yield from self._blocks_ahead(self._begin(epoch, order), following)
            return
        for piece in self._pieces(order, epoch):  # cheaper than a second block on the device
            began = time.perf_counter()
            block = self._gather(*piece)
            self.wait_s += time.perf_counter() - began
            yield block
            del block

    def _blocks_ahead(self, begun: Begun, following: int | None) -> Generator[Block, None, None]:
        pieces, first = self._wait(begun.first)
        block: Block | None = first
        del begun, first  # which hold the block too
        while block is not None:
            waiting = self._submit(self._gather_next, pieces, following)
            yield block
            del block  # before the next is gathered, so that at most two blocks are in memory
            block = self._wait(waiting)

    def _gather_next(self, pieces: Iterator[Piece], following: int | None) -> Block | None:
        """Gathers a piece; after the last full block, the next epoch's first one comes after it."""
        piece = next(pieces, None)
        if following is not None and self._begun is None and (piece is None or piece[2]):
            self._begun = self._begin(following)
        return None if piece is None else self._gather(*piece)

    def _begin(self, epoch: int, order: np.ndarray | None = None) -> Begun:
        return Begun(epoch, self._submit(self._gather_first, epoch, order))

    def _submit(self, work: Callable[..., Gathered], *arguments: Any) -> Future[Gathered]:
        """Runs in the loader's thread: one for all, as the C library keeps memory by thread."""
        self._pool = self._pool or ThreadPoolExecutor(1)
        return self._pool.submit(work, *arguments)

    def _gather_first(self, epoch: int, order: np.ndarray | None) -> tuple[Iterator[Piece], Block]:
        pieces = self._pieces(self._order(epoch) if order is None else order, epoch)
        return pieces, self._gather(*next(pieces))

    def _pieces(self, order: np.ndarray, epoch: int) -> Iterator[Piece]:
        full = len(order) // self.batch_size
        first = 0
        block = 0
        while first < full:
            room, batches = self.capacity * self.batch_size, min(self.capacity, full - first)
            rows = order[first * self.batch_size : (first + batches) * self.batch_size]
            yield np.pad(rows, (0, room - len(rows)), mode="wrap"), batches, False, (epoch, block)
            first, block = first + batches, block + 1
        if len(order) % self.batch_size and not (self._drop_last and full):
            yield order[full * self.batch_size :], 1, True, (epoch, full)

    def _gather(self, rows: np.ndarray, batches: int, tail: bool, key: tuple[int, int]) -> Block:
        size = len(rows) if tail else self.batch_size
        with heard_by(self.clock):
            if self.shares is None:
                arrays = self._complete(self._gather_at(0, rows), key)
                return Block(arrays, batches, size, tail)
            parts = self.shares.split(rows, self.batch_size, tail)
            gathered = [self._gather_at(place, part) for place, part in enumerate(parts)]
            return Block(self._complete_parts(gathered, key), batches, size, tail)

    def _gather_at(self, place: int, rows: np.ndarray) -> tuple[Any, ...]:
        with tensor_ops.device_scope(self._places[place]):
            arrays = tuple(gather(rows) for gather in self._gatherers[place])
        end_stage("gather", arrays)
        return arrays

    def _wait(self, waiting: Future[Gathered]) -> Gathered:
        began = time.perf_counter()
        gathered = waiting.result()
        self.wait_s += time.perf_counter() - began
        return gathered
