"""Rows by number as blocks on the device; those in sequence are in test_streams.py."""

import numpy as np
import pytest
from small_fits import make_dataset

from gpukeras.backend import runtime
from gpukeras.core.memory import aligned_empty
from gpukeras.data import dataset, plan
from gpukeras.data.loading import loader
from gpukeras.data.sources.row_store import MemoryRows

pytestmark = pytest.mark.tf


def numbers(rows, **options):
    """Features alone, so that a block's arrays are no tuple."""
    x = np.arange(rows, dtype=float).reshape(-1, 1)
    return dataset.build_dataset({"kind": "array", "values": x}, options)


def open_loader(data, capacity=None, **options):
    feed = loader.open_loader(data, data.plan("CPU:0", **options))
    feed.capacity = capacity or feed.capacity
    return feed


def test_a_block_has_one_shape_so_that_one_program_serves():
    feed = open_loader(numbers(100, batch_size=10), capacity=4)
    assert [tuple(block.arrays.shape) for block in feed.epoch(0)] == [(40, 1)] * 3


def small_blocks(monkeypatch):
    monkeypatch.setattr(plan, "BLOCK_BYTES", 2 * 40)  # two batches of ten numbers
    monkeypatch.setattr(plan, "COMPILED_BLOCK_BYTES", 5 * 40)


def test_blocks_come_to_suit_an_engine_and_no_row_is_lost(monkeypatch):
    small_blocks(monkeypatch)
    feed, sizes, rows = open_loader(numbers(304, batch_size=10)), [], []
    for block in feed.epoch(0):
        sizes.append(0 if block.tail else len(block.arrays))
        rows += np.ravel(block.arrays)[: 4 if block.tail else 10 * block.batches].tolist()
        feed.suit("compiled" if len(sizes) < 4 else "superstep")
    assert sizes == [20, 20, 50, 50, 50, 20, 20, 20, 20, 20, 20, 0]
    assert sorted(rows) == list(range(304))


def test_blocks_stay_where_random_numbers_are_drawn_for_each(monkeypatch):
    small_blocks(monkeypatch)
    data = numbers(300, batch_size=10)
    feed = loader.MapLoader(
        data, data.plan("CPU:0"), 10, 30, device_transform=lambda arrays, key: arrays
    )
    before = feed.capacity
    feed.suit("compiled")
    assert (feed.capacity, feed.capacity_for("compiled")) == (before, 0)


@pytest.mark.parametrize("cache", ["auto", "host", "disk"])
def test_leaving_an_epoch_early_is_clean(cache):
    blocks = open_loader(numbers(100, batch_size=10, cache=cache), capacity=1).epoch(0)
    next(blocks)
    blocks.close()


@pytest.mark.parametrize(
    ("rows", "batch_size", "drop_last", "steps"),
    [(100, 32, False, 4), (100, 32, True, 3), (96, 32, True, 3), (10, 10, True, 1)],
)
def test_the_short_last_batch_may_be_left_out(rows, batch_size, drop_last, steps):
    data = numbers(rows, batch_size=batch_size, drop_last=drop_last)
    feed = open_loader(data)
    assert feed.steps == steps == sum(block.batches for block in feed.epoch(0))
    assert data.plan("CPU:0").steps_per_epoch == steps


def test_evaluation_leaves_no_row_out():
    data = make_dataset(100, validation=0.3, drop_last=True)
    for part, rows in (("all", 100), ("train", 70), ("validation", 30)):
        feed = loader.open_evaluation(data, "CPU:0", part, batch_size=8)
        fed = [
            block.arrays[0].shape[0] if block.tail else 8 * block.batches for block in feed.epoch(0)
        ]
        assert sum(fed) == rows
        assert data.has_rows(part)
    assert not make_dataset(10, batch_size=5).has_rows("validation")


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
    feed = loader.MapLoader(data, data.plan("CPU:0"), 4, 6, device_transform=device_transform)
    feed.capacity = 2
    rows = [row for block in feed.epoch(3) for row in block.arrays.numpy()[:, 0]]
    assert rows[:4] == [0, 2, 4, 6]
    assert len(set(keys)) == len(keys) == 4
    assert {epoch for epoch, _ in keys} == {3}


def test_a_function_of_the_users_takes_what_the_model_would_take():
    from gpukeras.training import predict

    keras, tf = runtime.keras(), runtime.tensorflow()
    data, rows = numbers(10, batch_size=5, shuffle=False), aligned_empty((10, 1), np.uint8)
    rows[...] = np.arange(10)[:, None]
    data.sources, data.map = (MemoryRows(rows),), lambda features: features * 2
    (block,) = open_loader(data).epoch(0)
    assert block.arrays.dtype == tf.float32
    np.testing.assert_array_equal(block.arrays[:, 0], 2 * np.arange(10))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
    values = predict.predict(model, data=data)["values"]
    np.testing.assert_array_equal(values.reshape(-1), 2 * np.arange(10))
    assert loader.sample_rows(data, 3)[0][2, 0] == 4
