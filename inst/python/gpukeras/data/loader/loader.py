"""Opens the loader that fits a dataset; both loaders have the same interface.

rows by number:   epoch's order --> MapLoader ------+
rows in sequence: chunks --> IterableLoader --------+--> Block (many batches) --> engine
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.data.dataset.base import Dataset
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.loader.block import as_floats
from gpukeras.data.loader.iterable_loader import IterableLoader
from gpukeras.data.loader.map_loader import MapLoader
from gpukeras.data.loader.sharding import BatchSharding, round_batch_size
from gpukeras.data.loader.transforms import device_transform_for
from gpukeras.data.plan import (
    BLOCK_BATCHES,
    STREAM_BLOCK_BATCHES,
    PipelinePlan,
    choose_evaluation_rows,
)
from gpukeras.data.recipe.recipe import Recipe

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
        check: See `IterableLoader`.
        idle: See `IterableLoader`.
        most: The most batches per block, or None for the loader's default.
        steps_per_epoch: See `MapLoader`.
        initial_epoch: See `MapLoader`.
        shares: See `DataLoader`.
    """
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
            most=most or STREAM_BLOCK_BATCHES,
            shares=shares,
        )
    assert isinstance(data, MapDataset)
    return MapLoader(
        data,
        plan,
        plan.batch_size,
        steps_per_epoch or max(1, data.count("train") // plan.batch_size),
        device_transform=device_transform,
        drop_last=plan.drop_last,
        shares=shares,
        most=most or BLOCK_BATCHES,
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
        check: See `IterableLoader`.
        idle: See `IterableLoader`.
        shares: See `DataLoader`.
    """
    plan, known = data.plan(device, "auto"), data.count(part)
    most = plan.rows or EVALUATED_ROWS if known is None else min(known, first or known)
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
    steps, rows = max(1, most // size), data.rows(part)[:first]
    return MapLoader(
        data, plan, size, steps, device_transform=device_transform, rows=rows, shares=shares
    )


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
