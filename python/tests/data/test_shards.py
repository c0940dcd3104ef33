"""Workers that have read their own rows: batches take rows of each, and no worker needs others."""

import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpukeras import DataError, SpecError
from gpukeras.data.builder import WorkerShard, assemble
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.data.loader.loader import open_loader
from gpukeras.data.loader.sharding import BatchSharding

ROWS, GROUP = 1050, 100


class Meeting:
    """An exchange among threads."""

    def __init__(self, count):
        self.given, self.barrier = [None] * count, threading.Barrier(count, timeout=60)

    def shard(self, index):
        def exchange(kind, record):
            self.given[index] = record
            self.barrier.wait()
            return list(self.given)

        return WorkerShard(index, len(self.given), exchange)


@pytest.fixture
def features(tmp_path):
    values = np.arange(ROWS, dtype=float)
    pq.write_table(
        pa.table({"a": values, "b": -values, "y": values}),
        tmp_path / "x.parquet",
        row_group_size=GROUP,
    )
    return {"kind": "table", "paths": [str(tmp_path / "x.parquet")], "label": "y"}


def build(features, workers, **options):
    """The datasets of all workers, each made by a thread of its own."""
    recipe = build_dataset(features, {}).recipe
    meeting, made = Meeting(workers), [None] * workers

    def make(index):
        made[index] = assemble(features, options, recipe=recipe, shard=meeting.shard(index))

    threads = [threading.Thread(target=make, args=(index,)) for index in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


def own_rows(data):
    return data.sources[1].gather(data.rows("all")).reshape(-1)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_workers_have_all_rows_and_each_row_once(features, workers):
    made = build(features, workers)
    assert sorted(np.concatenate([own_rows(data) for data in made])) == list(range(ROWS))
    assert {data.size for data in made} == {ROWS}
    assert len({data.identity()["rows"] for data in made}) == 1
    assert len({tuple(data.identity()["shards"]) for data in made}) == 1
    smallest = min(made[0].identity()["shards"])
    assert made[0].epoch_rows == workers * smallest


@pytest.mark.tf
@pytest.mark.parametrize(("workers", "devices", "batch"), [(2, 1, 32), (2, 2, 64), (4, 1, 100)])
def test_each_batch_takes_rows_of_each_worker(features, workers, devices, batch):
    made = build(features, workers, seed=3, batch_size=batch)
    epochs = []
    for epoch in range(2):
        seen = []
        for index, data in enumerate(made):
            places = ("CPU:0",) * devices
            shares = BatchSharding(workers * devices, index * devices, places)
            loader = open_loader(data, data.plan("CPU:0"), shares=shares)
            rows = []
            for block in loader.epoch(epoch):
                for _, labels in block.arrays:
                    part = np.asarray(labels).reshape(-1, batch // workers // devices)
                    rows.append(part[: block.batches])
            assert loader.steps == data.plan("CPU:0").steps_per_epoch
            assert sum(part.size for part in rows) == loader.steps * batch // workers
            found = np.concatenate([part.ravel() for part in rows])
            assert set(found) <= set(own_rows(data))
            seen.append(found)
        every = np.concatenate(seen)
        assert len(set(every)) == len(every)  # no row twice
        epochs.append(every)
    assert not np.array_equal(epochs[0], epochs[1])


def test_the_plan_says_what_the_worker_reads(features):
    made = build(features, 2)
    assert [data.plan("CPU:0").share for data in made] == [
        "worker 1 of 2 reads row groups 1 to 5 of 11, 500 rows",
        "worker 2 of 2 reads row groups 6 to 11 of 11, 550 rows; "
        "an epoch takes 500 of them, as the smallest shard has",
    ]
    assert made[0].plan("CPU:0").drop_last


def test_rows_of_others_are_an_error_and_not_other_rows(features):
    first, second = build(features, 2)
    with pytest.raises(DataError, match="This worker has read its own shard"):
        first.sources[0].gather(second.rows("all")[:5])
    with pytest.raises(DataError, match="own shard"):
        second.sources[0].gather(slice(3))
    assert second.batch(3)[0].shape == (3, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"recipe": None}, '`shard` = "workers" needs a `recipe`'),
        ({"options": {"validation": 0.1}}, "does not go with `validation`"),
        ({"class_weight": "balanced"}, "does not go with `class_weight`"),
        (
            {"features": {"kind": "array", "values": np.ones(3)}},
            "divides files: CSV, Parquet or Feather",
        ),
    ],
)
def test_what_needs_all_rows_is_refused(features, change, message):
    recipe = build_dataset(features, {}).recipe
    given = {"features": features, "options": {}, "recipe": recipe, **change}
    with pytest.raises(SpecError, match=message):
        assemble(**given, shard=Meeting(1).shard(0))


@pytest.mark.parametrize("told", [{}, {"rows": "many"}, {"rows": -3}, {"rows": 2**31}])
def test_a_count_that_is_none_is_refused(features, told):
    recipe = build_dataset(features, {}).recipe
    shard = WorkerShard(0, 2, lambda kind, record: [record, told])
    with pytest.raises(DataError, match="The workers' rows of `x` cannot be numbered"):
        assemble(features, {}, recipe=recipe, shard=shard)
