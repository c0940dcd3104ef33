"""Loads rows onto the device in blocks of many batches.

rows by number:   epoch's order --> MapLoader ------+
rows in sequence: chunks --> IterableLoader --------+--> Block (many batches) --> engine
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import SpecError
from gpukeras.data.dataset.chunks import check_rows
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.dataset.passthrough import count_rows
from gpukeras.data.loader.sharding import BatchSharding, round_batch_size
from gpukeras.data.loader.transforms import (
    DeviceTransform,
    as_data,
    as_floats,
    device_transform_for,
)
from gpukeras.data.plan import (
    BLOCK_BATCHES,
    BLOCK_BYTES,
    STREAM_BLOCK_BATCHES,
    PipelinePlan,
    choose_ahead,
    choose_capacity,
    choose_evaluation_rows,
    explain_dropped,
)
from gpukeras.data.recipe.recipe import BatchesEncoding, Recipe
from gpukeras.data.stage_timer import Clock, end_stage, heard_by

# Blocks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """The rows of several batches on the device.

    Args:
        arrays: The data of the steps, of `capacity * batch_size` rows, or fewer in a tail:
            features, labels and weights as a tuple, or features alone, see `as_data()`. Several
            inputs or outputs are a dict of tensors by name, or a list if they have no names. If
            several devices share each batch, one such structure for each device of this process.
        batches: Full batches to train; the other rows are padding to a fixed shape.
        rows: Rows of one batch, on all devices together.
        tail: Whether the block is a single batch of another size, such as the short last one.
        whole: Why only Keras' train function can take the block, or "".
    """

    arrays: Any
    batches: int
    rows: int
    tail: bool = False
    whole: str = ""

    def batch(self, place: int) -> Any:
        """Returns a full batch, counted from 0."""
        rows = slice(place * self.rows, (place + 1) * self.rows)
        return runtime.tree().map_structure(lambda array: array[rows], self.arrays)


@dataclass(frozen=True)
class LoaderOptions:
    """How blocks are made, by loaders of all kinds of rows.

    Args:
        device_transform: Applied to a block's arrays on the device; None for nothing.
        shares: How several devices share each batch; None for one device. Of rows in sequence
            every process reads all, and keeps its part of each batch.
        check: Called with the recipe once labels lie outside of the range seen so far; raises an
            error if they are not allowed.
        idle: Called now and then while the loader waits for rows.
        most: The most batches per block, or None for the loader's default.
    """

    device_transform: DeviceTransform | None = None
    shares: BatchSharding | None = None
    check: Callable[[Recipe], None] = lambda recipe: None
    idle: Callable[[], None] = lambda: None
    most: int | None = None


class DataLoader(ABC):
    """The base class of loaders, which yield the blocks of an epoch.

    Args:
        dataset: The dataset.
        plan: The dataset's plan.
        batch_size: Rows per batch; evaluation uses larger batches than training.
        how: How blocks are made.

    Attributes:
        wait_s: Seconds spent waiting for rows.
        capacity: Batches of the next block; 0 if that depends on its rows.
        steps: Batches per epoch, or None while unknown.
        exact: Whether `steps` is exact rather than an estimate.
        clock: The clock to which the stages of the next blocks report, see `stage_timer`.
    """

    steps: int | None
    exact: bool
    _gatherers: tuple[tuple[Callable[..., Any], ...], ...] = ()

    def __init__(
        self, dataset: Dataset, plan: PipelinePlan, batch_size: int, how: LoaderOptions
    ) -> None:
        """Stores the settings and starts `wait_s` at 0."""
        self._wrapped = dataset.wrapped
        self.batch_size, self.shares = batch_size, how.shares
        self.capacity = 0
        self.wait_s = 0.0
        self.clock = Clock()
        self._device = plan.device
        self._device_transform = how.device_transform

    @abstractmethod
    def epoch(self, number: int, more: bool = False) -> Generator[Block, None, None]:
        """Yields the blocks of an epoch, counted from 0.

        Args:
            number: The epoch's number.
            more: Whether the next epoch follows: its first block may be gathered before it begins.
        """

    def release(self) -> None:
        """Frees the memory for further blocks, once no epoch follows."""
        self._gatherers = ()

    @abstractmethod
    def settle(self, plan: PipelinePlan) -> PipelinePlan:
        """Returns the plan with the number of rows that an epoch had."""

    def _complete(self, arrays: tuple[Any, ...], key: tuple[int, int], device: str = "") -> Any:
        """Puts arrays on a device as the model takes them: augmented, with float features."""
        place = device or self._device
        arrays = tuple(tensor_ops.put(array, place) for array in arrays)
        with tensor_ops.device_scope(place):
            end_stage("send", arrays)
            arrays = as_floats(
                arrays if self._device_transform is None else self._device_transform(arrays, key)
            )
            return as_data(arrays, self._wrapped)

    def _complete_parts(
        self, parts: Sequence[tuple[Any, ...]], key: tuple[int, int]
    ) -> tuple[Any, ...]:
        """Puts each part of a shared block on its device, with separate random numbers."""
        (epoch, block), shares = key, self.shares
        assert shares is not None  # only a shared block has parts
        return tuple(
            self._complete(arrays, (epoch, block * shares.replicas + rank), device)
            for arrays, rank, device in zip(parts, shares.ranks, shares.devices, strict=True)
        )


# Rows by number -----------------------------------------------------------------------------------

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
        how: How blocks are made.
        rows: The rows of each epoch, or None for the training rows in the epoch's order.
        drop_last: Leave out the short last batch, if there is a full one.
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
        how: LoaderOptions = LoaderOptions(),  # noqa: B008 (frozen)
        *,
        rows: np.ndarray | None = None,
        drop_last: bool = False,
        steps_per_epoch: int | None = None,
        initial_epoch: int = 0,
    ) -> None:
        """Sizes the blocks and opens the row sources on their devices."""
        super().__init__(dataset, plan, batch_size, how)
        shares = how.shares
        here = batch_size if shares is None else shares.count_here(batch_size)
        self._pool: ThreadPoolExecutor | None = None
        self._begun: Begun | None = None
        # Workers make equal calls, whatever memory their devices have.
        room = (plan.block_bytes, plan.even_blocks) if shares is None else (BLOCK_BYTES, False)
        most = how.most or BLOCK_BATCHES
        self.capacity = choose_capacity(here * dataset.row_bytes, steps, *room, most)
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


# Rows in sequence ---------------------------------------------------------------------------------


class IterableLoader(DataLoader):
    """A loader of rows in sequence.

    It reads from the stream only when it needs rows, as a user's R function must run on this
    thread. On a GPU the engine's previous call has only queued its work by then, so the function
    runs while the device works; tf.data pipelines prefetch on their threads.

    Args:
        data: The dataset.
        plan: The dataset's plan.
        batch_size: Rows per batch.
        how: How blocks are made.
        training: Whether rows are shuffled and the short last batch may be left out.
    """

    exact = False

    def __init__(
        self,
        data: IterableDataset,
        plan: PipelinePlan,
        batch_size: int,
        how: LoaderOptions,
        training: bool = True,
    ) -> None:
        """Opens the stream without reading from it."""
        if how.shares is not None and data.obstacle:
            raise SpecError(
                f"Several devices cannot share batches of {data.obstacle}.",
                hint="Train on one device.",
                arg="devices",
            )
        super().__init__(data, plan, batch_size, how)
        most = how.most or STREAM_BLOCK_BATCHES
        self.steps = (plan.steps_per_epoch if training else -(-plan.rows // batch_size)) or None
        capacity = choose_capacity(
            batch_size * data.row_bytes, self.steps or most, plan.block_bytes, most=most
        )
        capacity = choose_ahead(capacity, self.steps) if plan.ahead else capacity
        self._data, self._check = data, how.check
        self._rows: int | None = None
        self._dropped = 0
        self._pass = data.open_pass(batch_size, capacity, training)
        self._pass.idle = how.idle

    def epoch(self, number: int, more: bool = False) -> Generator[Block, None, None]:
        """Yields the blocks of an epoch, counted from 0; stores its number of rows at its end."""
        blocks = self._pass.blocks(number + 1)
        steps = 0
        rows = 0
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
                self._check_codes(block)
                yield block
                del block
            if self._data.code_check is not None:
                self._data.code_check.finish()
            self.steps = steps
            self._rows = rows
            self._dropped = self._pass.dropped
        finally:
            blocks.close()

    def _make_block(
        self, arrays: tuple[Any, ...], batches: int, tail: bool, key: tuple[int, int], count: int
    ) -> Block:
        size, whole = count if tail else self.batch_size, self._pass.whole
        if isinstance(self._data.recipe.features, BatchesEncoding):
            if not whole:  # TensorFlow sends those for Keras' function
                put = partial(tensor_ops.put, device=self._device)
                arrays = runtime.tree().map_structure(put, arrays)
            return Block(arrays, batches, size, tail, whole)
        self._look(arrays, count)
        if whole:
            self._check(self._data.recipe.with_row_shape(arrays[0].shape[1:]))
        if self.shares is None:
            arrays = tuple(
                tensor_ops.adopt_array(array) if isinstance(array, np.ndarray) else array
                for array in arrays
            )
            end_stage(self._pass.stage, arrays)
            return Block(self._complete(arrays, key), batches, size, tail, whole)
        columns = [self.shares.split(np.asarray(array), self.batch_size, tail) for array in arrays]
        with runtime.on_device("CPU:0", soft=True):
            constant = runtime.tensorflow().constant
            parts = [tuple(map(constant, part)) for part in zip(*columns, strict=True)]
        end_stage(self._pass.stage, parts)
        return Block(self._complete_parts(parts, key), batches, size, tail)

    def _check_codes(self, block: Block) -> None:
        """Hands the features of a block, or of its parts, to the check of the model's codes."""
        if self._data.code_check is None or self._data.obstacle:
            return
        unpack = runtime.keras().utils.unpack_x_y_sample_weight
        for arrays in [block.arrays] if self.shares is None else block.arrays:
            self._data.code_check.add(unpack(arrays)[0])

    def settle(self, plan: PipelinePlan) -> PipelinePlan:
        """Returns the plan with the rows of the last finished epoch."""
        if self._rows is None:
            return plan
        na_reason = plan.na_reason
        if plan.na == "drop":
            na_reason = explain_dropped(self._dropped, self._rows + self._dropped)
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
        others = [np.asarray(array[:count]) for array in arrays[1:]]
        check_rows(*others)
        if others and self._data.widen_label(others[0]):
            self._check(self._data.recipe)


# Opening ------------------------------------------------------------------------------------------

EVALUATED_ROWS = 2**20  # assumed length of an epoch whose length is unknown
ROWS_AT_ONCE = 65_536  # rows that are read together where all are looked at


def open_loader(
    data: Dataset,
    plan: PipelinePlan,
    check: Callable[[Recipe], None] = lambda recipe: None,
    idle: Callable[[], None] = lambda: None,
    *,
    most: int | None = None,
    steps_per_epoch: int | None = None,
    initial_epoch: int = 0,
    shares: BatchSharding | None = None,
) -> MapLoader | IterableLoader:
    """Opens the loader for training on a dataset; for the arguments see `IterableLoader`.

    Args:
        data: The dataset.
        plan: The dataset's plan.
        check: See `LoaderOptions`.
        idle: See `LoaderOptions`.
        most: See `LoaderOptions`.
        steps_per_epoch: See `MapLoader`.
        initial_epoch: See `MapLoader`.
        shares: See `LoaderOptions`.
    """
    part = plan.batch_size if shares is None else shares.count_part(plan.batch_size)
    how = LoaderOptions(device_transform_for(data, True, part), shares, check, idle, most)
    if isinstance(data, IterableDataset):
        return IterableLoader(data, plan, plan.batch_size, how)
    assert isinstance(data, MapDataset)
    return MapLoader(
        data,
        plan,
        plan.batch_size,
        steps_per_epoch or max(1, data.count("train") // plan.batch_size),
        how,
        drop_last=plan.drop_last,
        steps_per_epoch=steps_per_epoch,
        initial_epoch=initial_epoch,
    )


def open_evaluation(
    data: Dataset,
    device: str,
    part: str = "all",
    *,
    batch_size: int | None = None,
    first: int | None = None,
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
        first: How many of the first rows are evaluated, of rows by number; None for all.
        check: See `LoaderOptions`.
        idle: See `LoaderOptions`.
        shares: See `LoaderOptions`.
    """
    plan, known = data.plan(device, "auto"), data.count(part)
    most = plan.rows or EVALUATED_ROWS if known is None else min(known, first or known)
    size = batch_size or choose_evaluation_rows(data.row_bytes, most)
    size = plan.batch_size if data.obstacle else min(most, size)
    if shares is not None:
        size = round_batch_size(size, shares.replicas)
    own = size if shares is None else shares.count_part(size)
    how = LoaderOptions(device_transform_for(data, False, own), shares, check, idle)
    if isinstance(data, IterableDataset):
        return IterableLoader(data, plan, size, how, training=False)
    assert isinstance(data, MapDataset)
    return MapLoader(data, plan, size, max(1, most // size), how, rows=data.rows(part)[:first])


def sample_rows(data: Dataset, rows: int | np.ndarray) -> tuple[Any, ...]:
    """Returns rows as the model takes them, by their numbers, or so many first ones."""
    count = rows if isinstance(rows, int) else len(rows)
    device_transform = device_transform_for(data, False, count)
    if data.obstacle:
        return data.batch(rows)
    convert = runtime.keras().ops.convert_to_tensor
    with runtime.on_device("CPU:0", soft=True):
        arrays = tuple(map(convert, data.batch(rows)))
        return as_floats(arrays if device_transform is None else device_transform(arrays, (0, 0)))


def iterate_rows(data: MapDataset) -> Iterator[tuple[Any, ...]]:
    """Yields all rows of a dataset as the model takes them, so many at a time."""
    numbers = data.rows("all")
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        yield sample_rows(data, numbers[start : start + ROWS_AT_ONCE])
