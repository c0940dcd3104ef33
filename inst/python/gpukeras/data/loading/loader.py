"""Loads rows in blocks of batches onto the device.

    rows by number:   epoch's order --> MapLoader ------+
    rows in sequence: chunks --> IterableLoader --------+--> Block (many batches) --> engine

The rows of a block are gathered outside the training program: inside XLA on a CPU, a gather becomes
a loop over rows (28 us per row, measured). If the host gathers, a thread makes and sends the next
block while the device works on the current one, also on a CPU, where a compiled step leaves cores
idle (a warm epoch of 200,000 x 200 took 0.81 to 0.93 times as long, 2 cores).

`open_loader()` returns the loader that fits the dataset; both loaders have the same interface.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.prefetch import letting_go
from gpukeras.data.base import Dataset
from gpukeras.data.dataset import MapDataset
from gpukeras.data.loading.block import Block, DataLoader, DeviceTransform, as_floats
from gpukeras.data.loading.transforms import device_transform_for
from gpukeras.data.plan import (
    BLOCK_BATCHES,
    PipelinePlan,
    choose_ahead,
    choose_capacity,
    choose_evaluation_rows,
)
from gpukeras.data.preprocessing.recipe import AS_IS, Recipe
from gpukeras.data.sharding import BatchSharding, round_batch_size
from gpukeras.data.stage_timer import end_stage, heard_by
from gpukeras.data.streams.chunks import check_rows
from gpukeras.data.streams.dataset import IterableDataset
from gpukeras.data.streams.passthrough import count_rows

EVALUATED_ROWS = 2**20  # assumed length of an epoch whose length is unknown

# Row numbers, batches, whether the piece is the tail, and the key of its random numbers.
Piece = tuple[np.ndarray, int, bool, tuple[int, int]]


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
    ) -> None:
        """Sizes the blocks and opens the row sources on their devices."""
        super().__init__(batch_size, plan.device, device_transform, shares, dataset.wrapped)
        here = batch_size if shares is None else shares.count_here(batch_size)
        self._sizes = here * dataset.row_bytes, steps
        self.capacity = choose_capacity(*self._sizes)
        self._dataset, self._rows, self._drop_last = dataset, rows, drop_last
        self.row_count = count = len(dataset.rows("train") if rows is None else rows)
        self.steps = max(1, count // batch_size) if drop_last else -(-count // batch_size)
        places = (plan.device,) if shares is None else shares.devices
        on_device = plan.mode == "resident" and not plan.device.startswith("CPU")
        self._places = places if on_device else ("CPU:0",) * len(places)
        reuse = plan.device.startswith("CPU")  # for a GPU TensorFlow's threads gather faster
        self._gatherers = tuple(
            tuple(s.reusing_gatherer() if reuse else s.gatherer(place) for s in dataset.sources)
            for place in self._places
        )

    def epoch(self, number: int) -> Generator[Block, None, None]:
        """Yields the blocks of an epoch, counted from 0."""
        with heard_by(self.clock):
            rows, size = self._rows, self.batch_size
            order = self._dataset.order(number, size) if rows is None else rows
            end_stage("gather")
        return self.blocks(order, number)

    def capacity_for(self, engine: str) -> int:
        """Returns the batches per block for an engine; 0 if all engines get the same.

        With a device transform the size must not change: random numbers are drawn per block.
        """
        return choose_capacity(*self._sizes, engine) if self._device_transform is None else 0

    def settle(self, plan: PipelinePlan) -> PipelinePlan:
        """Returns the plan itself, as all rows are known beforehand."""
        return plan

    def blocks(self, order: np.ndarray, epoch: int = 0) -> Generator[Block, None, None]:
        """Yields the rows of `order` as blocks of full batches, then the short last batch."""
        pieces = self._pieces(order, epoch)
        if self._places[0] == "CPU:0":
            yield from self._blocks_ahead(pieces)
            return
        for piece in pieces:  # a gather on the device is cheaper than a second block there
            began = time.perf_counter()
            block = self._gather(*piece)
            self.wait_s += time.perf_counter() - began
            yield block
            del block

    def _blocks_ahead(self, pieces: Iterator[Piece]) -> Iterator[Block]:
        with letting_go(ThreadPoolExecutor(1)) as ahead:
            waiting = ahead.submit(self._gather, *next(pieces))
            for piece in itertools.chain(pieces, [None]):
                block = self._wait(waiting)
                if piece is not None:
                    waiting = ahead.submit(self._gather, *piece)
                yield block
                del block  # before the next is gathered, so that at most two blocks are in memory

    def _pieces(self, order: np.ndarray, epoch: int) -> Iterator[Piece]:
        full, first, block = len(order) // self.batch_size, 0, 0
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

    def _wait(self, waiting: Future[Block]) -> Block:
        began = time.perf_counter()
        block = waiting.result()
        self.wait_s += time.perf_counter() - began
        return block


class IterableLoader(DataLoader):
    """A loader of rows in sequence.

    It reads from the stream only when it needs rows, as a user's R function must run on this
    thread. On a GPU the engine's previous call has only queued its work by then, so the function
    runs while the device works; tf.data pipelines prefetch on their threads.

    Args:
        data: The dataset.
        plan: The dataset's plan.
        batch_size: Rows per batch.
        training: Whether rows are shuffled and the short last batch may be left out.
        device_transform: See `DataLoader`.
        check: Called with the recipe once labels lie outside of the range seen so far; raises an
            error if they are not allowed.
        idle: Called now and then while the loader waits for rows.
        most: The most batches per block.
        shares: See `DataLoader`; every process reads all rows, and keeps its part of each batch.
    """

    exact = False

    def __init__(
        self,
        data: IterableDataset,
        plan: PipelinePlan,
        batch_size: int,
        training: bool = True,
        *,
        device_transform: DeviceTransform | None = None,
        check: Callable[[Recipe], None] = lambda recipe: None,
        idle: Callable[[], None] = lambda: None,
        most: int = BLOCK_BATCHES,
        shares: BatchSharding | None = None,
    ) -> None:
        """Opens the stream without reading from it."""
        if shares is not None and data.obstacle:
            raise SpecError(
                f"Several devices cannot share batches of {data.obstacle}.",
                hint="Train on one device.",
                arg="devices",
            )
        super().__init__(batch_size, plan.device, device_transform, shares, data.wrapped)
        self.steps = (plan.steps_per_epoch if training else -(-plan.rows // batch_size)) or None
        capacity = choose_capacity(batch_size * data.row_bytes, min(self.steps or most, most))
        capacity = choose_ahead(capacity, self.steps) if plan.ahead else capacity
        self._data, self._check = data, check
        self._rows: int | None = None
        self._dropped = 0
        self._pass = data.stream.open(data, batch_size, capacity, training)
        self._pass.idle = idle

    def epoch(self, number: int) -> Generator[Block, None, None]:
        """Yields the blocks of an epoch, counted from 0; stores its number of rows at its end."""
        blocks, steps, rows = self._pass.blocks(number + 1), 0, 0
        try:
            while True:
                began = time.perf_counter()
                with heard_by(self.clock):
                    piece = next(blocks, None)
                    if piece is None:
                        break
                    arrays, batches, tail = piece
                    count = count_rows(arrays) if tail else batches * self.batch_size
                    block = self._make_block(arrays, batches, tail, (number, steps), count)
                del arrays, piece
                self.wait_s += time.perf_counter() - began
                steps, rows = steps + batches, rows + count
                yield block
                del block
            self.steps, self._rows, self._dropped = steps, rows, self._pass.dropped
        finally:
            blocks.close()

    def _make_block(
        self, arrays: tuple[Any, ...], batches: int, tail: bool, key: tuple[int, int], count: int
    ) -> Block:
        if self._data.recipe.kind == AS_IS:
            return self._leave(arrays, batches, count, tail, self._pass.whole)
        self._look(arrays, count)
        if self._pass.whole:
            self._check(replace(self._data.recipe, shape=tuple(arrays[0].shape[1:])))
        size = count if tail else self.batch_size
        if self.shares is None:
            arrays = _adopt(arrays)
            end_stage(self._pass.stage, arrays)
            return Block(self._complete(arrays, key), batches, size, tail, self._pass.whole)
        columns = [self.shares.split(np.asarray(array), self.batch_size, tail) for array in arrays]
        with runtime.on_device("CPU:0", soft=True):
            constant = runtime.tensorflow().constant
            parts = [tuple(map(constant, part)) for part in zip(*columns, strict=True)]
        end_stage(self._pass.stage, parts)
        return Block(self._complete_parts(parts, key), batches, size, tail)

    def settle(self, plan: PipelinePlan) -> PipelinePlan:
        """Returns the plan with the rows of the last finished epoch."""
        if self._rows is None:
            return plan
        na_reason = plan.na_reason
        if plan.na == "drop":
            whole = self._rows + self._dropped
            na_reason = (
                f"dropped: {self._dropped:,} of {count_of(whole, 'row')} with missing values"
            )
        return replace(
            plan,
            rows=self._rows,
            steps_per_epoch=self.steps or 0,
            last_batch=self._rows % plan.batch_size or plan.batch_size,
            dropped_rows=self._dropped,
            na_reason=na_reason,
        )

    def _look(self, arrays: tuple[Any, ...], count: int) -> None:
        """Checks labels and weights, which are small and still in host memory."""
        labels, weights = (np.asarray(array[:count]) for array in (*arrays[1:3], *_NONE)[:2])
        check_rows(labels, weights)
        if self._data.widen_label(labels):
            self._check(self._data.recipe)


_NONE = (np.empty(0), np.empty(0))


def _adopt(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        tensor_ops.adopt_array(array) if isinstance(array, np.ndarray) else array
        for array in arrays
    )


# Opening -----------------------------------------------------------------------------------------


def open_loader(
    data: Dataset,
    plan: PipelinePlan,
    check: Callable[[Recipe], None] = lambda recipe: None,
    idle: Callable[[], None] = lambda: None,
    *,
    most: int = BLOCK_BATCHES,
    shares: BatchSharding | None = None,
) -> MapLoader | IterableLoader:
    """Opens the loader for training on a dataset; for the arguments see `IterableLoader`."""
    part = plan.batch_size if shares is None else shares.count_part(plan.batch_size)
    device_transform = device_transform_for(data, True, part)
    if isinstance(data, IterableDataset):
        return IterableLoader(
            data,
            plan,
            plan.batch_size,
            True,
            device_transform=device_transform,
            check=check,
            idle=idle,
            most=most,
            shares=shares,
        )
    assert isinstance(data, MapDataset)
    steps = max(1, min(most, data.count("train") // plan.batch_size))
    return MapLoader(
        data,
        plan,
        plan.batch_size,
        steps,
        device_transform=device_transform,
        drop_last=plan.drop_last,
        shares=shares,
    )


def open_evaluation(
    data: Dataset,
    device: str,
    part: str = "all",
    *,
    batch_size: int | None = None,
    check: Callable[[Recipe], None] = lambda recipe: None,
    idle: Callable[[], None] = lambda: None,
    shares: BatchSharding | None = None,
) -> MapLoader | IterableLoader:
    """Opens the loader for evaluation on a part of a dataset: all of its rows, unshuffled.

    Args:
        data: The dataset.
        device: The device of the model.
        part: "all", "train" or "validation".
        batch_size: Rows per batch, or None for large batches, as evaluation allows them.
        check: See `IterableLoader`.
        idle: See `IterableLoader`.
        shares: See `DataLoader`.
    """
    plan, known = data.plan(device, "auto"), data.count(part)
    most = plan.rows or EVALUATED_ROWS if known is None else known
    size = batch_size or choose_evaluation_rows(data.row_bytes, most)
    size = plan.batch_size if data.obstacle else min(most, size)
    if shares is not None:
        size = round_batch_size(size, shares.replicas)
    device_transform = device_transform_for(
        data, False, size if shares is None else shares.count_part(size)
    )
    if isinstance(data, IterableDataset):
        return IterableLoader(
            data,
            plan,
            size,
            False,
            device_transform=device_transform,
            check=check,
            idle=idle,
            shares=shares,
        )
    assert isinstance(data, MapDataset)
    steps, rows = max(1, most // size), data.rows(part)
    return MapLoader(
        data, plan, size, steps, device_transform=device_transform, rows=rows, shares=shares
    )


def sample_rows(data: Dataset, rows: int) -> tuple[Any, ...]:
    """Returns the first rows as the model takes them, to build its variables."""
    device_transform = device_transform_for(data, False, rows)
    if data.obstacle:
        return data.batch(rows)
    convert = runtime.keras().ops.convert_to_tensor
    with runtime.on_device("CPU:0", soft=True):
        arrays = tuple(map(convert, data.batch(rows)))
        return as_floats(arrays if device_transform is None else device_transform(arrays, (0, 0)))
