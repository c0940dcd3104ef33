"""What stages of a pipeline are told apart, and that looking changes no row."""

import time

import numpy as np
import pytest
from pictures import make_folder
from small_fits import make_dataset
from sparse_slots import slots

from gpukeras import DataError, SpecError
from gpukeras.data import builder
from gpukeras.data.loader import loader, profile
from gpukeras.data.stage_timer import Clock, end_stage, heard_by, is_watched

pytestmark = pytest.mark.tf

ROWS = 200
X = np.random.default_rng(1).normal(size=(ROWS, 6))
Y = {"kind": "numeric", "values": X[:, 0], "levels": []}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(profile, "MOST_S", 0.05)


def array(values=X):
    return {"kind": "array", "values": values, "names": []}


def npy(folder, values=X):
    np.save(folder / "x.npy", values)
    return {"kind": "npy", "path": str(folder / "x.npy")}


def images(folder):
    make_folder(folder / "images", per_class=8)
    return {"kind": "images", "paths": [str(folder / "images")], "image_size": (8, 8)}


def tfdata(values):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((values, np.ones(len(values)))).batch(8)
    return {"kind": "tfdata", "dataset": rows, "steps": None, "batched": None}


def function():
    def batches(epoch, batch):
        return {"features": array(np.ones((8, 2))), "labels": {**Y, "values": np.ones(8)}}

    return {"kind": "generator", "call": batches, "steps": 6}


def inputs():
    halves = {"a": X[:, :2], "b": X[:, 2:]}
    parts = [{"name": name, "features": array(values)} for name, values in halves.items()]
    return {"kind": "inputs", "inputs": parts}


def saved(folder):
    from gpukeras.data.saved.writer import save_dataset

    path = save_dataset(make_dataset(ROWS), str(folder / "saved"))["path"]
    return builder.assemble({"kind": "saved", "path": path}, {"cache": "none"})


PIPELINES = {  # what stages are to be told apart, for each kind of source
    "memory": (lambda folder: builder.assemble(array(), {}, Y), "gather send"),
    "scratch file": (
        lambda folder: builder.assemble(array(), {"cache": "disk"}, Y),
        "read gather send",
    ),
    "npy": (lambda folder: builder.assemble(npy(folder), {}, Y), "read gather send"),
    "npy, scaled": (
        lambda folder: builder.assemble(npy(folder), {"scale": True}, Y),
        "read decode gather send",
    ),
    "sparse": (lambda folder: builder.assemble(slots(X * (X > 0)), {}, Y), "decode gather send"),
    "saved": (saved, "read gather send"),
    "images": (lambda folder: builder.assemble(images(folder), {}), "gather send cast"),
    "images, decoded anew": (
        lambda folder: builder.assemble(images(folder), {"cache": "none"}),
        "read decode gather send cast",
    ),
    "images, varied": (
        lambda folder: builder.assemble(
            images(folder), {}, augment={"flip": "both"}, map=lambda rows: rows / 2
        ),
        "gather send augment map",
    ),
    "several inputs": (lambda folder: builder.assemble(inputs(), {}, Y), "gather send unpack"),
    "tf.data": (
        lambda folder: builder.assemble(tfdata(np.ones((40, 3), np.float32)), {}),
        "pull send",
    ),
    "tf.data of bytes": (
        lambda folder: builder.assemble(tfdata(np.ones((40, 3), np.uint8)), {}),
        "pull send cast",
    ),
    "function, kept": (
        lambda folder: builder.assemble(function(), {"cache": True}),
        "gather send",
    ),
}


def drawn(feed):
    return [np.asarray(block.arrays[0]) for block in feed.epoch(0)]


@pytest.mark.varies
@pytest.mark.parametrize(("build", "stages"), PIPELINES.values(), ids=PIPELINES)
def test_each_stage_that_can_be_told_apart_is_measured(build, stages, tmp_path):
    found = profile.measure_costs(build(tmp_path))
    assert [cost.stage for cost in found] == stages.split()
    assert all(cost.row_s > 0 for cost in found)
    assert all(cost.what == profile.WHAT[cost.stage] for cost in found)


@pytest.mark.parametrize("name", ["npy, scaled", "sparse", "images, decoded anew", "saved"])
def test_looking_changes_no_row_and_no_order(name, tmp_path):
    data = PIPELINES[name][0](tmp_path)
    feed = loader.open_loader(data, data.plan("CPU:0"))
    plain = drawn(feed)
    clock, began = profile.StageClock(), time.perf_counter()
    feed.clock = clock
    for seen, block in zip(drawn(feed), plain, strict=True):
        np.testing.assert_array_equal(seen, block)
    assert sum(clock.spent_s.values()) <= time.perf_counter() - began  # no second counts twice
    assert clock.rows == sum(len(block) for block in plain)
    assert [*profile.order_stages(clock.spent_s)] == PIPELINES[name][1].split()


@pytest.mark.parametrize("buffer", ["auto", 20])
def test_a_function_is_told_from_what_is_made_of_its_batches(buffer):
    data = builder.assemble(function(), {"buffer": buffer})
    feed = loader.open_loader(data, data.plan("CPU:0"))
    feed.clock = profile.StageClock()
    drawn(feed)
    assert [*profile.order_stages(feed.clock.spent_s)] == ["read", "decode", "gather", "send"]


def test_a_costly_function_is_seen_where_it_is():
    import tensorflow as tf

    def sleep(rows):
        time.sleep(0.05)
        return rows

    def slow(rows):
        return tf.ensure_shape(tf.numpy_function(sleep, [rows], rows.dtype), rows.shape)

    x = np.random.default_rng(1).normal(size=(500, 16))
    data = builder.assemble(array(x), {"batch_size": 50}, map=slow)
    found = {cost.stage: cost.row_s for cost in profile.measure_costs(data)}
    assert [*found] == ["gather", "send", "map"]
    assert found["map"] >= 0.05 / 500  # whoever sleeps, sleeps at least so long


def test_a_file_that_is_gone_is_named_while_stages_are_measured(tmp_path):
    data = builder.assemble(images(tmp_path), {"cache": "none"})
    next((tmp_path / "images").rglob("*.jpg")).unlink()
    with pytest.raises(DataError, match="is gone"):
        profile.measure_costs(data)


def test_a_function_that_is_called_in_each_epoch_is_refused():
    with pytest.raises(SpecError, match="cannot be measured for a function"):
        profile.measure_costs(builder.assemble(function(), {}))


def test_stages_report_to_the_clock_of_their_block_only():
    class Heard(Clock):
        looks = True
        stages = ()

        def stop(self, stage, arrays):
            self.stages += (stage,)

    clock = Heard()
    end_stage("read")
    with heard_by(clock):
        assert is_watched()
        end_stage("decode")
        with heard_by(Clock()):
            assert not is_watched()
            end_stage("map")
        end_stage("gather")
    assert not is_watched()
    assert clock.stages == ("decode", "gather")
