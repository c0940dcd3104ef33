"""Loads rows in sequence, as a stream yields them, in blocks of batches onto the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import SpecError
from gpukeras.core.messages import count_of
from gpukeras.data.dataset.generator import check_rows
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.dataset.passthrough import count_rows
from gpukeras.data.loader.block import Block, DataLoader, DeviceTransform
from gpukeras.data.loader.sharding import BatchSharding
from gpukeras.data.plan import STREAM_BLOCK_BATCHES, PipelinePlan, choose_ahead, choose_capacity
from gpukeras.data.recipe.recipe import BatchesEncoding, Recipe
from gpukeras.data.stage_timer import end_stage, heard_by


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
        most: int = STREAM_BLOCK_BATCHES,
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
        capacity = choose_capacity(batch_size * data.row_bytes, self.steps or most, most)
        capacity = choose_ahead(capacity, self.steps) if plan.ahead else capacity
        self._data, self._check = data, check
        self._rows: int | None = None
        self._dropped = 0
        self._pass = data.open_pass(batch_size, capacity, training)
        self._pass.idle = idle

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
        if isinstance(self._data.recipe.features, BatchesEncoding):
            return self._leave(arrays, batches, count, tail, self._pass.whole)
        self._look(arrays, count)
        if self._pass.whole:
            self._check(self._data.recipe.with_row_shape(arrays[0].shape[1:]))
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
