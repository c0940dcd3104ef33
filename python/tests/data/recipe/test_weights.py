"""Weights of rows, and of each of several outputs, as the loss gets them."""

from dataclasses import replace

import numpy as np
import pytest
from nightly import few
from streamed import array, stream, tfdata

from gpukeras import DataError, SpecError
from gpukeras.backend import runtime
from gpukeras.data.dataset import map_dataset
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.recipe.multi_output import pack_weights, weigh_outputs
from gpukeras.data.recipe.targets import NO_WEIGHTS
from gpukeras.data.saved import reader, writer
from gpukeras.training import evaluate, fit

ROWS, BATCH = 21, 8
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROWS, 6, 2)).astype(np.float32)
Y = {"step": RNG.integers(0, 3, (ROWS, 6)), "level": RNG.normal(size=ROWS).astype(np.float32)}
WEIGHTS = {
    "step": RNG.uniform(0.2, 2, (ROWS, 6)).astype(np.float32),
    "level": RNG.uniform(0.2, 2, ROWS).astype(np.float32),
}
SOME = {"level": WEIGHTS["level"]}
COMPARED = ("loss", "step_accuracy", "level_mae")
OPTIONS = {"batch_size": BATCH, "shuffle": False, "seed": 1}


def labels(rows=slice(None)):
    kinds = {"step": "matrix", "level": "numeric"}
    outputs = [
        {"name": name, "labels": {"kind": kind, "values": Y[name][rows], "levels": []}}
        for name, kind in kinds.items()
    ]
    return {"kind": "outputs", "outputs": outputs}


def weights(given=None, rows=slice(None)):
    given = WEIGHTS if given is None else given
    return {"outputs": [{"name": name, "values": given[name][rows]} for name in given]}


def in_memory(given=None, **options):
    return map_dataset.build_dataset(array(X), {**OPTIONS, **options}, labels(), weights(given))


def as_function(given=None, sizes=(5, 16), **options):
    def call(epoch, batch):
        if batch > len(sizes):
            return None
        start = sum(sizes[: batch - 1])
        rows = slice(start, start + sizes[batch - 1])
        return {"features": array(X[rows]), "labels": labels(rows), "weights": weights(given, rows)}

    return stream(call, **{**OPTIONS, **options})


def as_pipeline(given=None, batched=True, **options):
    given = WEIGHTS if given is None else given
    slices = runtime.tensorflow().data.Dataset.from_tensor_slices((X, Y, given))
    return tfdata(slices.batch(5) if batched else slices, **{**OPTIONS, **options})


MAKERS = {
    "memory": in_memory,
    "function": as_function,
    "pipeline": as_pipeline,
    "rows": lambda given=None: as_pipeline(given, batched=False),
    "function, kept": lambda given=None: as_function(given, cache=True),
    "pipeline, kept": lambda given=None: as_pipeline(given, cache=True),
}


def network(listed=False):
    keras = runtime.keras()
    keras.utils.set_random_seed(7)
    layers, given = keras.layers, keras.Input((6, 2))
    step = layers.Dense(3, "softmax", name="step")(given)
    level = layers.Dense(1, name="level")(layers.Flatten()(given))
    model = keras.Model(given, [level, step] if listed else {"step": step, "level": level})
    metrics = {"step": ["accuracy"], "level": ["mae"]}
    sparse = {"step": "sparse_categorical_crossentropy", "level": "mse"}
    model.compile("sgd", sparse, weighted_metrics=metrics)
    return model


def filled(given):
    """Keras' own fit() needs weights for each output."""
    return {name: given.get(name, np.ones(Y[name].shape, np.float32)) for name in Y}


def fit_keras(given):
    model = network()
    options = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
    history = model.fit(X, Y, sample_weight=filled(given), **options).history
    return history, model.get_weights()


@pytest.fixture(scope="module")
def expected():
    return {"all": fit_keras(WEIGHTS), "some": fit_keras(SOME)}


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize(
    ("make", "engine", "which", "listed"),
    few(
        [
            ("memory", "keras", "some", True),
            ("memory", "graph_loop", "all", True),
            ("function", "graph_loop", "some", False),
            ("pipeline", "keras", "all", False),
        ],
        ("memory", "graph_loop", "all", True),
        ("function", "graph_loop", "some", False),
    ),
)
def test_weights_of_each_output_train_as_in_keras(expected, make, engine, which, listed):
    """`listed` models give a list of outputs, where Keras itself fails on a dict of weights."""
    history, after = expected[which]
    model, given = network(listed), {"all": WEIGHTS, "some": SOME}[which]
    report = fit.fit(model, MAKERS[make](given), {"epochs": 2, "engine": engine})
    assert report.engine.engine == engine
    for name in COMPARED:
        np.testing.assert_allclose(report.history[name], history[name], rtol=1e-5, err_msg=name)
    found = sorted(model.get_weights(), key=np.size)
    for own, theirs in zip(found, sorted(after, key=np.size), strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.tf
def test_validation_rows_and_evaluation_have_them_too():
    data, model = in_memory(SOME, validation=0.3), network()
    report = fit.fit(model, data, {"epochs": 1, "engine": "keras"})
    rows = data.validation_rows
    y, given = ({name: part[rows] for name, part in of.items()} for of in (Y, filled(SOME)))
    theirs = model.evaluate(X[rows], y, sample_weight=given, return_dict=True, verbose=0)
    found = evaluate.evaluate(model, data, "validation")["metrics"]
    for name in COMPARED:
        assert found[name] == pytest.approx(theirs[name], rel=1e-5)
        assert report.history[f"val_{name}"][-1] == pytest.approx(theirs[name], rel=1e-5)


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("name", [name for name in MAKERS if name != "memory"])
def test_rows_in_sequence_hold_the_same_weights(name):
    one, other = in_memory(SOME), MAKERS[name](SOME)
    assert other.recipe.label.weighed
    rows = min(len(source) for source in other.sources)
    for mine, theirs in zip(one.batch(rows), other.batch(rows), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_saved_dataset_keeps_them(tmp_path):
    data = in_memory(SOME)
    path = writer.save_dataset(data, str(tmp_path / "saved"))["path"]
    again = reader.build_saved({"kind": "saved", "path": path}, Request({"batch_size": BATCH}))
    assert again.recipe.label == data.recipe.label
    np.testing.assert_array_equal(again.arrays[2], data.arrays[2])


def test_packed_weights_have_a_column_for_each_that_is_given():
    rule = in_memory(SOME).recipe.label
    assert [output.weight_shape for output in rule.outputs] == [NO_WEIGHTS, ()]
    np.testing.assert_array_equal(pack_weights(rule, weights(SOME))[:, 0], WEIGHTS["level"])
    both = weigh_outputs(rule, weights())
    assert [output.weight_shape for output in both.outputs] == [(6,), ()]
    complete = np.arange(ROWS) % 2 == 0
    packed = pack_weights(both, weights(), complete)
    np.testing.assert_array_equal(packed[:, :6], WEIGHTS["step"][complete])
    np.testing.assert_array_equal(packed[:, 6], WEIGHTS["level"][complete])
    assert not weigh_outputs(both, np.ones(ROWS)).weighed
    with pytest.raises(DataError, match="has no names and 1 elements, but `y` has 2"):
        weigh_outputs(replace(rule, listed=True), weights(SOME))


LEVELS = {"kind": "numeric", "values": Y["level"], "levels": []}


@pytest.mark.parametrize(
    ("y", "given", "message"),
    [
        (labels(), {"cut": SOME["level"]}, "weights for `cut`, but `y` has labels for step, level"),
        (LEVELS, SOME, "weights for `level`, but `y` has labels of a single output"),
        (labels(), {"level": SOME["level"][:3]}, r"`weights\$level` has 3 rows where `x` has 21"),
        (labels(), {"level": -SOME["level"]}, r"`weights\$level` must be finite and at least 0"),
        (labels(), {}, "it is empty"),
    ],
)
def test_weights_that_do_not_fit_are_named(y, given, message):
    with pytest.raises(DataError, match=message):
        map_dataset.build_dataset(array(X), OPTIONS, y, weights(given))


def test_class_weights_of_several_outputs_are_refused():
    with pytest.raises(SpecError, match="several outputs"):
        map_dataset.build_dataset(array(X), OPTIONS, labels(), class_weight="balanced")


@pytest.mark.tf
def test_weights_of_another_shape_than_the_losses_are_named():
    wrong = {**WEIGHTS, "level": WEIGHTS["step"]}
    with pytest.raises(DataError, match=r"`weights\$level` has 6 a row, but a row has 1 losses"):
        fit.fit(network(), in_memory(wrong), {"epochs": 1})


@pytest.mark.tf
def test_weights_of_a_pipeline_for_unknown_outputs_are_refused():
    with pytest.raises(DataError, match="weights for `cut`, but `y` has step, level"):
        as_pipeline({"cut": SOME["level"]})


def test_batches_of_a_function_have_the_weights_of_the_first():
    given = [weights(rows=slice(5)), weights(SOME, slice(5))]

    def call(epoch, batch):
        rows = {"features": array(X[:5]), "labels": labels(slice(5))}
        return {**rows, "weights": given[batch - 1]}

    with pytest.raises(DataError, match=r"Batch 2 .* has the shape \(\) of `weights\$level` a row"):
        stream(call, steps=2, cache=True)
