"""Rows of a worker that has read its own part of the files, for training with the other workers.

    files --build_sharded()--> this worker's rows --exchange of their number--> ShardedDataset

Rows are numbered over all workers. Each batch takes equally many rows of each worker, in the order
in which `BatchSharding` divides it, so that no worker needs rows of another one. An epoch ends with
the rows of the smallest shard: each worker leaves out as many as it has more, others in each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import epoch_order
from gpukeras.data.dataset.map_dataset import MapDataset, Request, build_rows
from gpukeras.data.plan import PipelinePlan, choose_batch_size
from gpukeras.data.reader.rows import RenumberedRows, RowSource

MOST_ROWS = 2**31 - 1
LEARNED = "Each worker would learn another encoding from its own files."


@dataclass(frozen=True)
class WorkerShard:
    """The place of this worker among those that share the files.

    Args:
        index: Number of this worker, from 0.
        count: Number of workers.
        exchange: Sends a record to all workers, and returns those of all in their order.
    """

    index: int
    count: int
    exchange: Callable[[str, Mapping[str, Any]], list[dict[str, Any]]]


class ShardRows(RenumberedRows):
    """This worker's rows, under their numbers among the rows of all workers.

    Args:
        own: The rows.
        first: Number of the first of them.
        total: Number of rows of all workers.
    """

    def __init__(self, own: RowSource, first: int, total: int) -> None:
        """Stores the arguments."""
        super().__init__(own, total)
        self._first = first

    def find(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the numbers among this worker's rows.

        Raises:
            DataError: for rows of other workers.
        """
        local = numbers - self._first
        if local.size and not 0 <= local.min() <= local.max() < len(self._base):
            raise DataError(
                "This worker has read its own shard, and not the rows of the other workers.",
                hint="Train on all workers, and evaluate data that each worker reads as a whole.",
            )
        return local


class ShardedDataset(MapDataset):
    """The rows of all workers, of which this one has its own.

    Args:
        own: This worker's dataset.
        index: Number of this worker, from 0.
        counts: Rows of each worker.
        share: A phrase for what this worker has read.
    """

    def __init__(self, own: MapDataset, index: int, counts: Sequence[int], share: str) -> None:
        """Numbers the rows over all workers."""
        firsts = np.cumsum([0, *counts])
        self._index = index
        self._counts = tuple(counts)
        self._firsts = firsts
        self._share = share
        sources = tuple(ShardRows(each, int(firsts[index]), sum(counts)) for each in own.sources)
        super().__init__(
            sources,
            own.recipe,
            replace(own.spec, drop_last=True),
            np.arange(len(counts) * min(counts), dtype=np.int32),  # as many as an epoch takes
            np.empty(0, np.int32),
            na=own.na,
            dropped=own.dropped,
            skipped=own.skipped,
            notes=own.notes,
        )

    def rows(self, part: str) -> np.ndarray:
        """Returns the row numbers of a part; "all" are this worker's rows."""
        if part != "all":
            return super().rows(part)
        first = int(self._firsts[self._index])
        return np.arange(first, first + self._counts[self._index], dtype=np.int32)

    def batch(self, rows: int | np.ndarray) -> tuple[Any, ...]:
        """Returns rows of every source by their numbers, or so many of this worker's first ones."""
        return super().batch(self.rows("all")[:rows] if isinstance(rows, int) else rows)

    def order(self, epoch: int, batch_size: int = 0) -> np.ndarray:
        """Returns an epoch's full batches, of which each worker gets rows of its own.

        Args:
            epoch: Number of the epoch, from 0.
            batch_size: Rows of a batch on all workers, a multiple of their number.
        """
        workers = len(self._counts)
        size = batch_size or workers
        steps, part = len(self.train_rows) // size, size // workers
        order = np.empty((steps, workers, part), np.int32)
        for worker, count in enumerate(self._counts):
            order[:, worker] = self._firsts[worker]  # not gathered here, so any will do
            if worker == self._index:
                own = np.arange(count, dtype=np.int32) + np.int32(self._firsts[worker])
                own = epoch_order(own, self.spec.shuffle, self.spec.seed, epoch)
                order[:, worker] = own[: steps * part].reshape(steps, part)
        return order.reshape(-1)

    def identity(self) -> dict[str, Any]:
        """Returns the numbers of rows, and those of each worker's shard."""
        return {**super().identity(), "shards": list(self._counts)}

    def make_plan(self, device: str, spec: DatasetSpec) -> PipelinePlan:
        """Returns the plan for a device and options, with what this worker has read."""
        most = self._counts[self._index]
        share = f"worker {self._index + 1} of {len(self._counts)} reads {self._share}, "
        share += count_of(most, "row")
        if most > min(self._counts):
            share += f"; an epoch takes {min(self._counts):,} of them, as the smallest shard has"
        return replace(super().make_plan(device, spec), share=share)


def build_sharded(
    features: Mapping[str, Any], request: Request, shard: WorkerShard
) -> ShardedDataset:
    """Builds the dataset of a worker from its part of the files; all workers call it together.

    Args:
        features: Of kind "table", with paths.
        request: How the dataset is to be made, with a recipe.
        shard: The place of this worker.

    Raises:
        SpecError: for other rows, or an option that needs the rows of all workers.
        DataError: for data that cannot be trained on, or fewer files than workers.
    """
    spec, arg = request.spec, request.arg
    _check_options(features, request)
    place = shard.index, shard.count
    share = _describe_share(features, spec, place, arg)
    own = build_rows({**features, "shard": place}, request)
    counts = _check_counts(shard.exchange("shard", {"rows": len(own.train_rows)}), arg)
    data = ShardedDataset(own, shard.index, counts, share)
    choose_batch_size(len(data.train_rows), spec.batch_size)
    return data


def _describe_share(
    features: Mapping[str, Any], spec: DatasetSpec, place: tuple[int, int], arg: str
) -> str:
    from gpukeras.data.reader.table.features import open_table  # imports pyarrow, which takes 0.3 s

    how = {"format": features.get("format") or "auto", "on_error": spec.on_error}
    columns = features.get("columns")
    return open_table(features["paths"], arg, columns=columns, **how).take_shard(*place)


def _check_counts(records: Sequence[Mapping[str, Any]], arg: str) -> list[int]:
    """Returns each worker's number of rows, which all together have numbers of 32 bits."""
    counts = [record.get("rows") for record in records]
    known = [count for count in counts if type(count) is int and count > 0]
    if len(known) < len(counts) or sum(known) > MOST_ROWS:
        raise DataError(f"The workers' rows of `{arg}` cannot be numbered.", arg=arg)
    return known


def _check_options(features: Mapping[str, Any], request: Request) -> None:
    if features["kind"] != "table" or features.get("stream") is not None:
        raise SpecError(
            '`shard` = "workers" divides files: CSV, Parquet or Feather.',
            hint="Use `shard = c(1, 1)`: each worker then reads all rows, and trains its part.",
            arg="shard",
        )
    refused = {
        "validation": (request.spec.validation > 0, "Give gpu_fit(validation = ) other files."),
        "class_weight": (request.class_weight is not None, "Give `weights`."),
        "recipe": (
            request.recipe is None,
            "Learn it from one file: recipe = gpu_recipe(gpu_dataset(files[1], ...)).",
        ),
    }
    for name, (wrong, hint) in refused.items():
        if wrong:
            needs = "needs a `recipe`" if name == "recipe" else f"does not go with `{name}`"
            message = f'`shard` = "workers" {needs}. {LEARNED}'
            raise SpecError(message, hint=hint, arg=name)
