import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fits import make_dataset

from gpukeras import DataError, SpecError
from gpukeras.data.dataset import map_dataset
from gpukeras.data.loader import loader
from gpukeras.data.reader.registry import open_features

pytestmark = pytest.mark.tf


def array(x, names=()):
    return {"kind": "array", "values": np.asarray(x), "names": list(names)}


def classes(codes, levels=("a", "b")):
    return {"kind": "factor", "values": np.array(codes), "levels": list(levels)}


def numbers(rows):
    return array(np.arange(rows, dtype=float).reshape(-1, 1))


def test_the_staged_copy_is_the_only_one():
    data = make_dataset(1000, 50)
    for staged, source in zip(data.arrays, data.sources, strict=True):
        assert np.asarray(memoryview(source.tensor("CPU:0"))).ctypes.data == staged.ctypes.data
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
    cache=st.sampled_from(["device", "host", "disk"]),
    shuffle=st.booleans(),
)
def test_every_row_is_fed_once_an_epoch(rows, batch_size, capacity, cache, shuffle):
    batch_size = min(batch_size, rows)
    options = {"batch_size": batch_size, "cache": cache, "shuffle": shuffle}
    data = map_dataset.build_dataset(numbers(rows), options)
    plan = data.plan("CPU:0")
    feed = loader.MapLoader(data, plan, batch_size, max(1, rows // batch_size))
    feed.capacity = capacity
    fed, steps = [], 0
    for block in feed.epoch(0):
        used = block.rows if block.tail else block.batches * batch_size
        fed.extend(block.arrays.numpy()[:used, 0])  # features alone are no tuple
        steps += block.batches
    assert sorted(fed) == list(range(rows))
    assert steps == plan.steps_per_epoch
    if not shuffle:
        assert fed == list(range(rows))


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
    data = map_dataset.build_dataset(
        array(np.zeros((4, 1))),
        {"batch_size": 1},
        classes([1, 1, 1, 2]),
        given_weights,
        class_weight=class_weight,
    )
    np.testing.assert_allclose(data.arrays[2], expected, rtol=1e-6)


def test_class_weights_spare_the_validation_rows():
    data = map_dataset.build_dataset(
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
        ({"options": {"batchsize": 1}}, SpecError, "Unknown option `batchsize`"),
        ({"options": {"validation": 0.01}}, DataError, "leaves no row to validate"),
        ({"options": {"cache": "tape"}}, SpecError, "`cache` must be one of"),
        ({"class_weight": "even"}, SpecError, "number named after each level. Levels are a, b"),
        ({"class_weight": {"a": 1.0}}, SpecError, "named after each level. Levels are a, b"),
        ({"features": array(np.zeros((0, 2)))}, DataError, "no rows"),
        ({"features": array([[np.inf]] * 10, ["w"])}, DataError, "`w` of `x`.*10 infinite"),
    ],
)
def test_bad_input_is_refused(change, error, message):
    args = {"features": numbers(10), "options": {}, "labels": classes([1, 2] * 5)}
    with pytest.raises(error, match=message):
        map_dataset.build_dataset(**{**args, **change})


def test_a_recipe_given_is_applied_not_learned():
    train = map_dataset.build_dataset(numbers(10), {"scale": True})
    test = map_dataset.build_dataset(array([[4.5]]), {"scale": True}, recipe=train.recipe)
    np.testing.assert_allclose(test.arrays[0], 0.0, atol=1e-6)


# Missing values ----------------------------------------------------------------------------------

NAN = np.nan
HOLES = array([[1.0], [NAN], [3.0], [4.0], [5.0]], ["w"])


def columns(*values):
    named = [{"name": f"c{i}", "kind": "numeric", "values": v} for i, v in enumerate(values)]
    return {"kind": "columns", "columns": named}


def test_dropped_rows_take_labels_and_weights_with_them():
    y = {"kind": "numeric", "values": np.array([10.0, 20.0, NAN, 40.0, 50.0]), "levels": []}
    weights = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    data = map_dataset.build_dataset(HOLES, {"na": "drop"}, y, weights)
    assert (data.na, data.dropped) == ("drop", 2)
    for staged, expected in zip(
        data.arrays, ([[1], [4], [5]], [10, 40, 50], [1, 4, 5]), strict=True
    ):
        np.testing.assert_array_equal(staged, expected)
    plan = data.plan("CPU:0")
    assert (plan.rows, plan.dropped_rows) == (3, 2)
    assert plan.na_reason == "dropped: 2 of 5 rows with missing values"


def test_dropping_is_by_all_features_and_split_afterwards():
    rng = np.random.default_rng(1)
    one, two = rng.normal(size=40), rng.normal(size=40)
    one[::4], two[1::4] = NAN, NAN
    data = map_dataset.build_dataset(columns(one, two), {"na": "drop", "validation": 0.5})
    assert (len(data.rows("train")), len(data.rows("validation")), data.dropped) == (10, 10, 20)
    kept = np.arange(40) % 4 > 1
    np.testing.assert_allclose(data.arrays[0], np.stack([one, two], axis=1)[kept], rtol=1e-6)


def test_a_dropped_array_is_standardised_by_the_training_rows_that_are_left():
    data = map_dataset.build_dataset(HOLES, {"na": "drop", "scale": True, "validation": 0.5})
    left = np.array([1.0, 3.0, 4.0, 5.0])
    np.testing.assert_allclose(data.recipe.features.center[0], left[data.rows("train")].mean())


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.none() | st.floats(-9, 9), st.integers(0, 2)), min_size=8, max_size=40),
    st.sampled_from(["impute", "drop"]),
    st.sampled_from([0.0, 0.25]),
)
def test_the_recipe_encodes_the_training_rows_as_the_dataset_did(rows, na, validation):
    x = np.array([NAN if value is None else value for value, _ in rows])
    codes = np.array([code for _, code in rows])
    # With eight rows more that lack nothing, a quarter for validation leaves some to learn from.
    frame = columns(np.append(x, [1.0] * 8))
    factor = {"name": "f", "kind": "factor", "values": np.append(codes, [1] * 8)}
    frame["columns"].append({**factor, "levels": ["a", "b"]})
    options = {"na": na, "validation": validation, "scale": True}
    data = map_dataset.build_dataset(frame, options)
    again = map_dataset.build_dataset(frame, {}, recipe=data.recipe)
    np.testing.assert_array_equal(again.arrays[0], data.arrays[0])
    assert (again.na, again.dropped) == (data.na, data.dropped)


def test_an_imputed_dataset_names_the_columns_with_indicators():
    data = map_dataset.build_dataset(HOLES, {"na": "impute"})
    assert data.arrays[0].shape == (5, 2)
    assert data.plan("CPU:0").na_reason.endswith("indicators for w")
    test = map_dataset.build_dataset(array([[NAN]]), {}, recipe=data.recipe)
    np.testing.assert_array_equal(test.arrays[0], [[3.5, 1]])


def test_rows_may_be_dropped_though_the_recipe_imputes():
    train = map_dataset.build_dataset(HOLES, {"na": "impute"})
    test = map_dataset.build_dataset(HOLES, {"na": "drop"}, recipe=train.recipe)
    assert (test.na, test.dropped, len(test.arrays[0])) == ("drop", 1, 4)


def test_columns_that_the_recipe_does_not_take_drop_nothing():
    train = map_dataset.build_dataset(columns(np.arange(4.0)), {"na": "drop"})
    more = columns(np.arange(4.0), np.full(4, NAN))
    assert map_dataset.build_dataset(more, {}, recipe=train.recipe).dropped == 0


@pytest.mark.parametrize(
    ("options", "values", "labels", "message"),
    [
        ({}, [1.0, NAN], [1.0, 2.0], "Column `1` of `x` has 1 missing value"),
        ({}, [1.0, 2.0], [1.0, NAN], "`y` has 1 missing value"),
        ({"na": "impute"}, [1.0, 2.0], [1.0, NAN], "labels are never imputed"),
        ({"na": "impute"}, [NAN, NAN], [1.0, 2.0], "missing in all training rows"),
        ({"na": "drop"}, [1.0, NAN], [NAN, 2.0], "leaves no row"),
    ],
)
def test_missing_values_are_refused(options, values, labels, message):
    y = {"kind": "numeric", "values": np.array(labels), "levels": []}
    with pytest.raises(DataError, match=message):
        map_dataset.build_dataset(array(np.array([values]).T), options, y)


def test_a_file_does_for_no_model_that_takes_indicators(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.ones((6, 2), np.float32))
    holey = np.array([[1.0, np.nan], [2.0, 3.0], [3.0, 4.0]])
    options = {"na": "impute"}
    trained = map_dataset.build_dataset({"kind": "array", "values": holey}, options)
    with pytest.raises(DataError, match="imputed missing values and marked them"):
        open_features({"kind": "npy", "path": str(path)}, "newdata").encode(trained.recipe.features)


def test_an_order_that_is_drawn_is_drawn_once_an_epoch():
    data, drawn = make_dataset(rows=8), iter(([3, 1, 0, 2, 4, 5, 6, 7], list(range(8))))
    data.draw = lambda: np.array(next(drawn))
    first = data.order(0)
    np.testing.assert_array_equal(data.order(0), first)  # the epoch begins again
    np.testing.assert_array_equal(first, [3, 1, 0, 2, 4, 5, 6, 7])
    np.testing.assert_array_equal(data.order(1), range(8))
