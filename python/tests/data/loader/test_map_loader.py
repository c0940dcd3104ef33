"""Rows by number as blocks on the device."""

from dataclasses import replace

import numpy as np
import pytest

from gpukeras.backend import runtime
from gpukeras.core.memory import aligned_empty
from gpukeras.data.dataset import map_dataset
from gpukeras.data.loader import loader
from gpukeras.data.loader.sharding import BatchSharding
from gpukeras.data.reader.rows import MemoryRows

pytestmark = pytest.mark.tf


def numbers(rows, **options):
    """Features alone, so that a block's arrays are no tuple."""
    x = np.arange(rows, dtype=float).reshape(-1, 1)
    return map_dataset.build_dataset({"kind": "array", "values": x}, options)


def open_loader(data, capacity=None, **options):
    feed = loader.open_loader(data, data.plan("CPU:0", **options))
    feed.capacity = capacity or feed.capacity
    return feed


def test_a_block_has_one_shape_so_that_one_program_serves():
    feed = open_loader(numbers(100, batch_size=10), capacity=4)
    assert [tuple(block.arrays.shape) for block in feed.epoch(0)] == [(40, 1)] * 3


def test_blocks_have_the_plans_bytes_but_workers_cut_alike():
    data = numbers(100, batch_size=10)
    plan = replace(data.plan("CPU:0"), block_bytes=3 * 10 * data.row_bytes)
    assert loader.open_loader(data, plan).capacity == 3
    shares = BatchSharding(2, 0, ("CPU:0", "CPU:0"))
    assert loader.open_loader(data, plan, shares=shares).capacity == 10


@pytest.mark.parametrize("cache", ["auto", "host", "disk"])
def test_leaving_an_epoch_early_is_clean(cache):
    feed = open_loader(numbers(100, batch_size=10, cache=cache), capacity=1)
    blocks = feed.epoch(0)
    next(blocks)
    blocks.close()
    assert sorted(rows_of(feed.epoch(0))) == list(range(100))


def test_blocks_are_about_equally_long():
    feed = open_loader(numbers(5000, batch_size=1))
    assert [block.batches for block in feed.epoch(0)] == [2500, 2500]


def rows_of(blocks):
    return [row for block in blocks for row in np.ravel(block.arrays)[: block.batches * block.rows]]


def test_the_next_epoch_begins_before_this_one_ends_where_one_follows():
    data = numbers(40, batch_size=10)
    feed, asked = open_loader(data, capacity=2), []
    order = data.order
    data.order = lambda epoch, size: asked.append(epoch) or order(epoch, size)
    blocks = feed.epoch(0, more=True)
    assert [next(blocks).batches, next(blocks).batches] == [2, 2]
    assert next(blocks, None) is None
    feed._begun.first.result()
    assert asked == [0, 1]
    for epoch, more in ((1, True), (2, False)):
        np.testing.assert_array_equal(rows_of(feed.epoch(epoch, more)), order(epoch))
    assert asked == [0, 1, 2]
    assert feed._begun is None


def test_the_next_epoch_begins_beside_the_last_full_batches_where_a_short_one_follows():
    feed = open_loader(numbers(45, batch_size=10), capacity=4)
    blocks = feed.epoch(0, more=True)
    assert next(blocks).batches == 4
    assert next(blocks).tail
    begun = feed._begun
    assert begun.first.result()[1].batches == 4
    assert next(blocks, None) is None
    assert feed._begun is begun
    assert sorted(rows_of(feed.epoch(1))) == list(range(45))


def test_an_epoch_that_begins_again_takes_its_own_rows():
    data = numbers(40, batch_size=10)
    feed = open_loader(data, capacity=2)
    for epoch in (0, 0, 2, 0):
        np.testing.assert_array_equal(rows_of(feed.epoch(epoch, more=True)), data.order(epoch))


def test_an_error_of_the_next_epochs_rows_is_raised_there():
    data = numbers(40, batch_size=10)
    feed, order = open_loader(data, capacity=2), data.order

    def fail(epoch, size):
        if epoch:
            raise OSError("the disk is gone")
        return order(epoch, size)

    data.order = fail
    assert sorted(rows_of(feed.epoch(0, more=True))) == list(range(40))
    with pytest.raises(OSError, match="the disk is gone"):
        next(feed.epoch(1))


def test_an_order_that_a_caller_draws_is_drawn_when_its_epoch_begins():
    data, drawn = numbers(40, batch_size=10), []
    data.draw = lambda: drawn.append(1) or np.arange(40)[::-1]
    feed = open_loader(data)
    assert rows_of(feed.epoch(0, more=True)) == list(range(40))[::-1]
    assert len(drawn) == 1


def test_released_memory_is_not_filled_again():
    feed = open_loader(numbers(40, batch_size=10), capacity=1)
    assert len(rows_of(feed.epoch(0, more=True))) == 40
    feed.release()
    assert (feed._begun, feed._pool) == (None, None)


@pytest.mark.parametrize(
    ("rows", "batch_size", "drop_last", "steps"),
    [(100, 32, False, 4), (100, 32, True, 3), (96, 32, True, 3), (10, 10, True, 1)],
)
def test_the_short_last_batch_may_be_left_out(rows, batch_size, drop_last, steps):
    data = numbers(rows, batch_size=batch_size, drop_last=drop_last)
    feed = open_loader(data)
    assert feed.steps == steps == sum(block.batches for block in feed.epoch(0))
    assert data.plan("CPU:0").steps_per_epoch == steps


def test_an_epochs_order_is_the_datasets():
    data = numbers(50, batch_size=50, seed=3)
    feed = open_loader(data)
    for epoch in (0, 1):
        (block,) = feed.epoch(epoch)
        np.testing.assert_array_equal(block.arrays[:, 0], data.order(epoch))


def test_bytes_become_floats_on_the_way():
    data, rows = numbers(10, batch_size=5), aligned_empty((10, 1), np.uint8)
    rows[...] = 7
    data.sources = (MemoryRows(rows),)
    for block in open_loader(data).epoch(0):
        assert block.arrays.dtype == runtime.tensorflow().float32


def test_what_finishes_a_block_gets_its_arrays_and_a_key_of_its_own():
    keys = []

    def device_transform(arrays, key):
        keys.append(key)
        return (arrays[0] * 2, *arrays[1:])

    data = numbers(25, batch_size=5, shuffle=False)
    feed = loader.MapLoader(data, data.plan("CPU:0"), 4, 6, loader.LoaderOptions(device_transform))
    feed.capacity = 2
    rows = [row for block in feed.epoch(3) for row in block.arrays.numpy()[:, 0]]
    assert rows[:4] == [0, 2, 4, 6]
    assert len(set(keys)) == len(keys) == 4
    assert {epoch for epoch, _ in keys} == {3}
