import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from nightly import few
from small_fits import make_model
from sparse_slots import slots

from gpukeras import DataError
from gpukeras.data.dataset import map_dataset
from gpukeras.data.reader import memory
from gpukeras.data.recipe.columns import Learning
from gpukeras.models import model_recipes
from gpukeras.training import evaluate, fit, predict


def dense_features(values):
    return {"kind": "array", "values": np.asarray(values, dtype=np.float64)}


def classes(codes):
    return {"kind": "factor", "values": codes + 1, "levels": ["a", "b", "c"]}


def make_sparse(rows=207, columns=5, seed=1):
    random = np.random.default_rng(seed)
    x = random.normal(3.0, 2.0, (rows, columns)) * (random.random((rows, columns)) < 0.4)
    return x, np.digitize(x[:, 0], [0.5, 3.0]).astype(np.int32)


matrices = npst.arrays(
    np.float64,
    npst.array_shapes(min_dims=2, max_dims=2, max_side=9),
    elements=st.sampled_from([0.0, 0.0, 0.0, 1.0, -2.5, 1e-3]),
)


# Reading -----------------------------------------------------------------------------------------


@given(matrices, st.data())
def test_gathering_is_indexing(dense, data):
    rows = np.array(data.draw(st.lists(st.integers(0, len(dense) - 1))), dtype=np.int32)
    given_matrix = memory.open_sparse(slots(dense), "x")
    source = given_matrix.encode(given_matrix.learn(Learning(np.ones(len(dense), bool), plain())))
    np.testing.assert_array_equal(source.gather(rows), dense.astype(np.float32)[rows])
    np.testing.assert_array_equal(source.gather(slice(1, 4)), dense.astype(np.float32)[1:4])
    assert source.gather(slice(1)).ctypes.data % 64 == 0


def plain(**options):
    return map_dataset.DatasetSpec(**options)


@given(matrices)
def test_scaled_by_the_standard_deviation_without_centring(dense):
    found = memory.open_sparse(slots(dense), "x")
    keep = np.arange(len(dense)) % 3 != 1
    recipe = found.learn(Learning(keep, plain(scale=True)))
    spread = dense[keep].std(axis=0)
    spread = np.where(spread > 1e-12, spread, dense[keep].any(axis=0))
    assert recipe.center is None
    np.testing.assert_allclose(recipe.scale, spread, rtol=1e-9)
    source = found.encode(recipe)
    np.testing.assert_allclose(
        source.gather(slice(None)), dense / np.where(spread, spread, np.inf), rtol=1e-6
    )


def test_a_centre_that_dense_rows_taught_is_applied():
    x, _ = make_sparse(50)
    train = map_dataset.build_dataset(dense_features(x), {"scale": True})
    data = map_dataset.build_dataset(slots(x), {}, recipe=train.recipe)
    np.testing.assert_allclose(data.arrays[0], train.arrays[0], rtol=1e-5, atol=1e-6)


@pytest.mark.tf
def test_the_plan_says_what_is_expanded():
    x, _ = make_sparse(100)
    data = map_dataset.build_dataset(slots(x), {})
    plan = data.plan("GPU:0")
    assert plan.mode == "streamed"
    assert "% of the values are stored" in plan.reason
    assert plan.staged_bytes == data.sources[0].resident_bytes


def test_dimensions_beyond_32_bits():
    rows = columns = 100_000
    features = {"kind": "sparse", "dim": [float(rows), float(columns)], "names": []}
    features["p"] = np.minimum(np.arange(columns + 1), 2).astype(np.int32)
    features["i"], features["x"] = np.array([rows - 1, 5], dtype=np.int32), np.array([1.0, 2.0])
    data = map_dataset.build_dataset(features, {"batch_size": 4})
    found = data.sources[0].gather(np.array([rows - 1, 5, 0]))
    assert (found[0, 0], found[1, 1], found.sum()) == (1.0, 2.0, 3.0)
    assert len(data) * data.row_bytes > 2**35
    assert data.plan("CPU:0").staged_bytes < 2**20


@pytest.mark.parametrize("cache", ["device", "host"])
def test_a_cache_that_is_asked_for_holds_all_rows(cache):
    x, _ = make_sparse(100)
    data = map_dataset.build_dataset(slots(x), {"cache": cache})
    assert data.plan("CPU:0").mode == {"device": "resident", "host": "staged"}[cache]
    np.testing.assert_array_equal(data.arrays[0], x.astype(np.float32))


# Refusing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.array([1.0, np.nan, 1.0])}, "Column `b` of `x` has 1 missing value"),
        ({"x": np.array([np.inf, np.inf, 1.0])}, "Column `a` of `x` .*: 1 infinite"),
        ({"x": np.array([1.0, 1.0, 1e300])}, "Column `3` of `x` .*: 1 too large for float32"),
        ({"dim": [0, 3]}, "slots do not fit together"),
        ({"dim": [3, 0]}, "`x` has no columns"),
        ({"dim": [2, 3]}, "slots do not fit together"),
        ({"dim": [3, 4]}, "slots do not fit together"),
        ({"i": np.array([0, -1, 2])}, "slots do not fit together"),
        ({"p": np.array([0, 2, 1, 3])}, "slots do not fit together"),
        ({"p": np.array([1, 1, 2, 3])}, "slots do not fit together"),
        ({"x": np.array([1.0, 2.0])}, "slots do not fit together"),
    ],
)
def test_bad_matrices_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        map_dataset.build_dataset({**slots(np.eye(3), ["a", "b"]), **change}, {})


def test_another_width_than_in_training_is_refused():
    train = map_dataset.build_dataset(slots(np.eye(3)), {})
    with pytest.raises(DataError, match=r"must have shape \(3,\), not \(4,\)"):
        map_dataset.build_dataset(slots(np.eye(4)), {}, recipe=train.recipe)
    frame = {
        "kind": "columns",
        "columns": [{"name": "a", "kind": "numeric", "values": np.zeros(3), "levels": []}],
    }
    train = map_dataset.build_dataset(frame, {})
    with pytest.raises(DataError, match="must be a data frame, as in training"):
        map_dataset.build_dataset(slots(np.eye(3)), {}, recipe=train.recipe)


# Training ----------------------------------------------------------------------------------------


def run(features, codes, engine, newdata):
    options = {"batch_size": 16, "validation": 0.25, "seed": 4}
    data, model = map_dataset.build_dataset(features, options, classes(codes)), make_model()
    history = fit.fit(model, data, {"epochs": 3, "engine": engine}).history
    found = [predict.predict(model, one)["values"] for one in newdata]
    return history, [*found, predict.predict(model, data=data)["values"]]


@pytest.mark.tf
@pytest.mark.parametrize("engine", few(["keras", "graph_loop"], "graph_loop"))
def test_a_sparse_matrix_trains_as_the_dense_one(engine):
    x, codes = make_sparse()
    newdata = [slots(x), dense_features(x)]
    history, expected = run(dense_features(x), codes, engine, newdata)
    own_history, found = run(slots(x), codes, engine, newdata)
    for name, losses in history.items():
        np.testing.assert_allclose(own_history[name], losses, rtol=1e-5, err_msg=name)
    for values in [*found, *expected[1:]]:
        np.testing.assert_allclose(values, expected[0], atol=1e-5)


@pytest.mark.tf
def test_evaluation_takes_either_form():
    x, codes = make_sparse()
    options = {"batch_size": 16, "scale": True}
    train, model = map_dataset.build_dataset(slots(x), options, classes(codes)), make_model()
    fit.fit(model, train, {"epochs": 1})
    recipe = model_recipes.recipe_of(model)
    metrics = [
        evaluate.evaluate(
            model, map_dataset.build_dataset(form, {}, classes(codes), recipe=recipe)
        )["metrics"]
        for form in (slots(x), dense_features(x))
    ]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-5)
    assert metrics[0] == pytest.approx(evaluate.evaluate(model, train)["metrics"], rel=1e-5)


@pytest.mark.tf
def test_a_model_that_gpukeras_did_not_train_predicts_sparse_rows():
    x, _ = make_sparse()
    model = make_model()
    found = predict.predict(model, slots(x))["values"]
    np.testing.assert_allclose(found, model.predict(x, verbose=0), atol=1e-5)


def test_whole_numbers_that_lose_digits_are_noted_as_in_a_matrix():
    dense = np.array([[2.0**24 + 1, 0.0, 5.0], [2.0**24 + 3, 0.0, 2.0**30 + 1], [0.0, 1.0, 0.5]])
    found = map_dataset.build_dataset({"kind": "sparse", **slots(dense)}, {})
    expected = map_dataset.build_dataset({**dense_features(dense), "names": []}, {})
    assert found.notes == expected.notes
    assert len(found.notes) == 2
