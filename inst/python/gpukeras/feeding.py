"""From rows to blocks of batches on the device.

    rows by number:   epoch's order --> Feed -------+
    rows in sequence: chunks --> StreamFeed --------+--> Block (many batches) --> engine

Rows are gathered a block at a time outside the training program, by TensorFlow's own multi-threaded
gather: inside XLA on a CPU a gather becomes a loop over rows (28 us a row, measured). Where the
host gathers, a thread makes and sends the next block while the device works on this one; on a CPU
too, as a compiled step leaves cores idle (a warm epoch of 200,000 x 200 took 0.81 to 0.93 times as
long, 2 cores). What a user's R function makes is asked for on R's main thread, between two calls of
the engine.

`open_feed()` gives whichever feed a dataset needs; those who train and evaluate see one interface.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from . import runtime
from .blocks import AnyFeed, Block, Finish, as_floats
from .images.augment import build_finish
from .pipeline import Dataset
from .plans import BLOCK_BATCHES, PipelinePlan, choose_capacity, choose_evaluation_rows
from .recipes import Recipe
from .stages import end_stage, heard_by
from .streams.chunks import check_rows
from .streams.dataset import StreamDataset
from .unpacking import build_unpack

Map = Callable[[Any], Any]
EVALUATED_ROWS = 2**20  # of an epoch whose length is not known


# Row numbers, batches, whether it is the tail, and the key of its random numbers.
Piece = tuple[np.ndarray, int, bool, tuple[int, int]]


class Feed(AnyFeed):
    """Gathers blocks of batches; one block ahead of the device where the host gathers.

    Args:
        dataset: Where the rows are.
        plan: Its plan.
        batch_size: Rows a batch; evaluation uses larger ones than training.
        steps: Batches an epoch, so that a small dataset gets a small block.
        finish: See `AnyFeed`.
        rows: The rows of each epoch, or None: the training rows in the epoch's order.
        drop_last: Leave out the short last batch, if there is a full one.
    """

    exact = True

    def __init__(
        self,
        dataset: Dataset,
        plan: PipelinePlan,
        batch_size: int,
        steps: int,
        finish: Finish | None = None,
        rows: np.ndarray | None = None,
        drop_last: bool = False,
    ) -> None:
        """Places the rows."""
        super().__init__(batch_size, plan.device, finish)
        self._sizes = batch_size * dataset.row_bytes, steps
        self.capacity = choose_capacity(*self._sizes)
        self._dataset, self._rows, self._drop_last = dataset, rows, drop_last
        count = len(dataset.rows("train") if rows is None else rows)
        self.steps = max(1, count // batch_size) if drop_last else -(-count // batch_size)
        self._place = plan.device if plan.mode == "resident" else "CPU:0"
        self._gatherers = tuple(source.gatherer(self._place) for source in dataset.sources)

    def epoch(self, number: int) -> Iterator[Block]:
        """The blocks of an epoch, counted from 0."""
        with heard_by(self.clock):
            order = self._dataset.order(number) if self._rows is None else self._rows
            end_stage("gather")
        return self.blocks(order, number)

    def capacity_for(self, engine: str) -> int:
        """Batches of the blocks that suit an engine; 0 where all get the same.

        Random numbers are drawn a block at a time: there its size must stay.
        """
        return choose_capacity(*self._sizes, engine) if self._finish is None else 0

    def settle(self, plan: PipelinePlan) -> PipelinePlan:
        """The plan itself: all was known."""
        return plan

    def blocks(self, order: np.ndarray, epoch: int = 0) -> Iterator[Block]:
        """The rows of `order` as blocks of full batches, then the short last batch."""
        pieces = self._pieces(order, epoch)
        if self._place == "CPU:0":
            yield from self._blocks_ahead(pieces)
            return
        for piece in pieces:  # the device's own gather costs less than a second block in its memory
            began = time.perf_counter()
            block = self._gather(*piece)
            self.wait_s += time.perf_counter() - began
            yield block
            del block

    def _blocks_ahead(self, pieces: Iterator[Piece]) -> Iterator[Block]:
        with ThreadPoolExecutor(1) as ahead:
            waiting = ahead.submit(self._gather, *next(pieces))
            for piece in itertools.chain(pieces, [None]):
                block = self._wait(waiting)
                if piece is not None:
                    waiting = ahead.submit(self._gather, *piece)
                yield block
                del block  # before the next is gathered: two blocks are in memory, never three

    def _pieces(self, order: np.ndarray, epoch: int) -> Iterator[Piece]:
        full = len(order) // self.batch_size
        first = block = 0
        while first < full:
            room, batches = self.capacity * self.batch_size, min(self.capacity, full - first)
            rows = order[first * self.batch_size : (first + batches) * self.batch_size]
            yield np.pad(rows, (0, room - len(rows)), mode="edge"), batches, False, (epoch, block)
            first, block = first + batches, block + 1
        if len(order) % self.batch_size and not (self._drop_last and full):
            yield order[full * self.batch_size :], 1, True, (epoch, full)

    def _gather(self, rows: np.ndarray, batches: int, tail: bool, key: tuple[int, int]) -> Block:
        tf = runtime.tensorflow()
        with heard_by(self.clock):
            with tf.device(f"/{self._place}"):
                arrays = tuple(gather(rows) for gather in self._gatherers)
            end_stage("gather", arrays)
            return Block(self._complete(arrays, key), batches, tail)

    def _wait(self, waiting: Future[Block]) -> Block:
        began = time.perf_counter()
        block = waiting.result()
        self.wait_s += time.perf_counter() - began
        return block


class StreamFeed(AnyFeed):
    """Blocks of rows that come in sequence.

    What the stream gives is asked for when it is needed: a function of the user's in R must run on
    this thread. On a GPU the engine's call before has then only handed its work over, so the
    function runs while the device does; TensorFlow's own pipelines run ahead by themselves.

    Args:
        data: Where the rows come from.
        plan: Its plan.
        batch_size: Rows a batch.
        training: Whether rows are shuffled and the short last batch may be left out.
        finish: See `AnyFeed`.
        check: Asked whether labels may be, once they lie outside of the range seen so far.
        idle: Called now and then while rows are waited for.
        most: Batches a block, at most.
    """

    exact = False

    def __init__(
        self,
        data: StreamDataset,
        plan: PipelinePlan,
        batch_size: int,
        training: bool = True,
        finish: Finish | None = None,
        check: Callable[[Recipe], None] = lambda recipe: None,
        idle: Callable[[], None] = lambda: None,
        most: int = BLOCK_BATCHES,
    ) -> None:
        """Opens the stream; nothing is read yet."""
        super().__init__(batch_size, plan.device, finish)
        self.steps = -(-plan.rows // batch_size) or None
        capacity = choose_capacity(batch_size * data.row_bytes, min(self.steps or most, most))
        self._data, self._check = data, check
        self._rows: int | None = None
        self._dropped = 0
        self._pass = data.stream.open(data, batch_size, capacity, training)
        self._pass.idle = idle

    def epoch(self, number: int) -> Iterator[Block]:
        """The blocks of an epoch, counted from 0; what it teaches is kept when it is done."""
        blocks, steps, rows = self._pass.blocks(number + 1), 0, 0
        try:
            while True:
                began = time.perf_counter()
                with heard_by(self.clock):
                    piece = next(blocks, None)
                    if piece is None:
                        break
                    arrays, batches, tail = piece
                    count = len(arrays[0]) if tail else batches * self.batch_size
                    self._look(arrays, count)
                    arrays = _adopt(arrays)
                    end_stage(self._pass.stage, arrays)
                    block = Block(self._complete(arrays, (number, steps)), batches, tail)
                del arrays, piece
                self.wait_s += time.perf_counter() - began
                steps, rows = steps + batches, rows + count
                yield block
                del block
            self.steps, self._rows, self._dropped = steps, rows, self._pass.dropped
        finally:
            blocks.close()

    def settle(self, plan: PipelinePlan) -> PipelinePlan:
        """The plan with the rows of the last epoch that was finished."""
        if self._rows is None:
            return plan
        na_reason = plan.na_reason
        if plan.na == "drop":
            whole = self._rows + self._dropped
            na_reason = f"dropped: {self._dropped:,} of {whole:,} rows with missing values"
        return replace(
            plan,
            rows=self._rows,
            steps_per_epoch=self.steps or 0,
            last_batch=self._rows % plan.batch_size or plan.batch_size,
            dropped_rows=self._dropped,
            na_reason=na_reason,
        )

    def _look(self, arrays: tuple[Any, ...], count: int) -> None:
        """What nobody could check before: labels and weights are small, and still in memory."""
        labels, weights = (np.asarray(array[:count]) for array in (*arrays[1:3], *_NONE)[:2])
        check_rows(self._data.recipe, labels, weights)
        if self._data.widen_label(labels):
            self._check(self._data.recipe)


_NONE = (np.empty(0), np.empty(0))


def _adopt(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        runtime.adopt_array(array) if isinstance(array, np.ndarray) else array for array in arrays
    )


# Opening -----------------------------------------------------------------------------------------


def has_rows(data: Dataset | StreamDataset, part: str) -> bool:
    """Whether a part ("train", "validation" or "all") has rows."""
    if isinstance(data, StreamDataset):
        return part != "validation"
    return len(data.rows(part)) > 0


def open_feed(
    data: Dataset | StreamDataset,
    plan: PipelinePlan,
    check: Callable[[Recipe], None] = lambda recipe: None,
    idle: Callable[[], None] = lambda: None,
    most: int = BLOCK_BATCHES,
) -> Feed | StreamFeed:
    """The feed that trains on a dataset.

    Args:
        data: Its rows.
        plan: Its plan.
        check: See `StreamFeed`.
        idle: See `StreamFeed`.
        most: Batches a block, at most.
    """
    finish = _open_finish(data, True, plan.batch_size)
    if isinstance(data, StreamDataset):
        return StreamFeed(data, plan, plan.batch_size, True, finish, check, idle, most)
    steps = max(1, min(most, len(data.rows("train")) // plan.batch_size))
    return Feed(data, plan, plan.batch_size, steps, finish, drop_last=plan.drop_last)


def open_evaluation(
    data: Dataset | StreamDataset,
    device: str,
    part: str = "all",
    batch_size: int | None = None,
    check: Callable[[Recipe], None] = lambda recipe: None,
    idle: Callable[[], None] = lambda: None,
) -> Feed | StreamFeed:
    """The feed that evaluates a part of a dataset: all of its rows in their order.

    Args:
        data: Its rows.
        device: Where the model is.
        part: "all", "train" or "validation".
        batch_size: Rows a batch, or None for large ones, as nothing is learned.
        check: See `StreamFeed`.
        idle: See `StreamFeed`.
    """
    if isinstance(data, StreamDataset):
        plan = data.plan(device)
        most = plan.rows or EVALUATED_ROWS
        size = min(most, batch_size or choose_evaluation_rows(data.row_bytes, most))
        finish = _open_finish(data, False, size)
        return StreamFeed(data, plan, size, False, finish, check, idle)
    plan, rows = data.plan(device, "auto"), data.rows(part)
    most = len(rows)
    size = min(most, batch_size or choose_evaluation_rows(data.row_bytes, most))
    return Feed(data, plan, size, max(1, most // size), _open_finish(data, False, size), rows=rows)


def sample_rows(data: Dataset | StreamDataset, rows: int) -> tuple[Any, ...]:
    """The first rows as the model takes them, to build its variables from."""
    tf, finish = runtime.tensorflow(), _open_finish(data, False, rows)
    with runtime.on_device("CPU:0", soft=True):
        arrays = tuple(tf.constant(array) for array in data.batch(rows))
        return as_floats(arrays if finish is None else finish(arrays, (0, 0)))


def open_finish(recipe: Recipe, rows: int, function: Map | None = None) -> Map:
    """What makes encoded features ready to be predicted, `rows` at a time.

    Args:
        recipe: Their encoding.
        rows: Rows of a batch.
        function: The user's own, or None.
    """
    finish = _compose(build_finish(recipe, None, False, rows), function, recipe)

    def complete(features: np.ndarray) -> Any:
        if finish is None:
            return features if features.dtype.kind == "f" else features.astype(np.float32)
        return finish((runtime.tensorflow().constant(features),), (0, 0))[0]

    return complete


def _open_finish(data: Dataset | StreamDataset, training: bool, batch_size: int) -> Finish | None:
    varied = build_finish(data.recipe, data.augment, training, batch_size)
    return _compose(varied, data.map, data.recipe)


def _compose(finish: Finish | None, function: Map | None, recipe: Recipe) -> Finish | None:
    """The user's own function takes the features that the model would take without it.

    Several inputs and outputs are taken apart last: what comes before knows of rows.
    """
    unpack = build_unpack(recipe)
    if function is None and unpack is None:
        return finish

    def both(arrays: tuple[Any, ...], key: tuple[int, int]) -> tuple[Any, ...]:
        features, *others = as_floats(arrays if finish is None else finish(arrays, key))
        if function is not None:
            features = function(features)
            end_stage("map", (features,))
        arrays = (features, *others)
        return arrays if unpack is None else unpack(arrays)

    return both
