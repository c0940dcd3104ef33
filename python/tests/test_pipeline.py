import numpy as np
import pytest
from conftest import make_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import DataError, SpecError, pipeline

pytestmark = pytest.mark.tf


def array(x, names=()):
    return {"kind": "array", "values": np.asarray(x), "names": list(names)}


def classes(codes, levels=("a", "b")):
    return {"kind": "factor", "values": np.array(codes), "levels": list(levels)}


def numbers(rows):
    return array(np.arange(rows, dtype=float).reshape(-1, 1))


def test_the_staged_copy_is_the_only_one():
    data = make_dataset(1000, 50)
    tensors = data.tensors("CPU:0")
    for staged, tensor in zip(data.arrays, tensors, strict=True):
        assert np.asarray(memoryview(tensor)).ctypes.data == staged.ctypes.data
    assert not data.arrays[0].flags.writeable


def test_validation_rows_are_kept_apart():
    data = make_dataset(100, validation=0.2)
    assert (len(data.rows("train")), len(data.rows("validation"))) == (80, 20)
    np.testing.assert_array_equal(data.rows("all"), np.arange(100))


def test_the_plan_takes_another_batch_size():
    data = make_dataset(100)
    assert data.plan("CPU:0").batch_size == 32
    assert data.plan("CPU:0", 10).batch_size == 10


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 120),
    batch_size=st.integers(1, 50),
    capacity=st.integers(1, 5),
    cache=st.sampled_from(["device", "host"]),
    shuffle=st.booleans(),
)
def test_every_row_is_fed_once_an_epoch(rows, batch_size, capacity, cache, shuffle):
    batch_size = min(batch_size, rows)
    options = {"batch_size": batch_size, "cache": cache, "shuffle": shuffle}
    data = pipeline.build_dataset(numbers(rows), options)
    plan = data.plan("CPU:0")
    feed = pipeline.Feed(data, plan, batch_size, max(1, rows // batch_size))
    feed.capacity = capacity
    fed, steps = [], 0
    for block in feed.blocks(data.order(0)):
        used = len(block.arrays[0]) if block.tail else block.batches * batch_size
        fed.extend(block.arrays[0].numpy()[:used, 0])
        steps += block.batches
    assert sorted(fed) == list(range(rows))
    assert steps == plan.steps_per_epoch
    if not shuffle:
        assert fed == list(range(rows))


def test_a_block_has_one_shape_so_that_one_program_serves():
    data = pipeline.build_dataset(numbers(100), {"batch_size": 10})
    feed = pipeline.Feed(data, data.plan("CPU:0"), 10, 10)
    feed.capacity = 4
    shapes = [tuple(block.arrays[0].shape) for block in feed.blocks(data.order(0))]
    assert shapes == [(40, 1)] * 3


def test_leaving_an_epoch_early_is_clean():
    data = pipeline.build_dataset(numbers(100), {"batch_size": 10})
    feed = pipeline.Feed(data, data.plan("CPU:0"), 10, 10)
    feed.capacity = 1
    blocks = feed.blocks(data.order(0))
    next(blocks)
    blocks.close()


@pytest.mark.parametrize(
    ("weights", "class_weight", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0], None, [1, 2, 3, 4]),
        (None, {"a": 1.0, "b": 5.0}, [1, 1, 1, 5]),
        ([1.0, 1.0, 2.0, 2.0], {"a": 1.0, "b": 5.0}, [1, 1, 2, 10]),
        (None, "balanced", [2 / 3, 2 / 3, 2 / 3, 2]),
    ],
)
def test_weights(weights, class_weight, expected):
    given_weights = None if weights is None else np.array(weights)
    data = pipeline.build_dataset(
        array(np.zeros((4, 1))),
        {"batch_size": 1},
        classes([1, 1, 1, 2]),
        given_weights,
        class_weight,
    )
    np.testing.assert_allclose(data.arrays[2], expected, rtol=1e-6)


def test_class_weights_spare_the_validation_rows():
    data = pipeline.build_dataset(
        array(np.zeros((10, 1))),
        {"validation": 0.5},
        classes([1, 2] * 5),
        class_weight={"a": 3.0, "b": 3.0},
    )
    np.testing.assert_array_equal(data.arrays[2][data.rows("train")], 3.0)
    np.testing.assert_array_equal(data.arrays[2][data.rows("validation")], 1.0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"options": {"batch_size": 11}}, SpecError, "`batch_size` is 11"),
        ({"options": {"batchsize": 1}}, SpecError, "Unknown option `batchsize`"),
        ({"options": {"validation": 0.01}}, DataError, "leaves no row to validate"),
        ({"options": {"cache": "disk"}}, SpecError, "`cache` must be one of"),
        ({"labels": classes([1, 2])}, DataError, "`y` has 2 rows where `x` has 10"),
        ({"weights": np.full(10, -1.0)}, DataError, "`weights` must be finite"),
        ({"weights": np.ones(3)}, DataError, "`weights` has 3 rows"),
        ({"class_weight": "even"}, SpecError, "Levels are a, b"),
        ({"class_weight": {"a": 1.0}}, SpecError, "Levels are a, b"),
        ({"features": array(np.zeros((0, 2)))}, DataError, "no rows"),
        ({"features": array([[np.inf]] * 10, ["w"])}, DataError, "`w` of `x`.*10 infinite"),
    ],
)
def test_bad_input_is_refused(change, error, message):
    args = {"features": numbers(10), "options": {}, "labels": classes([1, 2] * 5)}
    with pytest.raises(error, match=message):
        pipeline.build_dataset(**{**args, **change})


def test_class_weights_need_classes():
    y = {"kind": "numeric", "values": np.arange(10.0), "levels": []}
    with pytest.raises(SpecError, match="labels that are classes, not a number"):
        pipeline.build_dataset(numbers(10), {}, y, class_weight="balanced")


def test_a_recipe_given_is_applied_not_learned():
    train = pipeline.build_dataset(numbers(10), {"scale": True})
    test = pipeline.build_dataset(array([[4.5]]), {"scale": True}, recipe=train.recipe)
    np.testing.assert_allclose(test.arrays[0], 0.0, atol=1e-6)
