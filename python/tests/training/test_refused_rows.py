"""Rows that Keras' own fit() refuses are refused by each engine, and those that it takes trained.

Keras on TensorFlow without XLA is the reference: its kernels check the values that they are given.
"""

import functools

import numpy as np
import pytest
from jax_runs import needs_jax, run_part
from nightly import few
from refused_rows import BATCH, CASES

from gpukeras.accelerate.rows import CallRows, dataset_of
from gpukeras.backend import runtime
from gpukeras.core.errors import RefusedRowsError
from gpukeras.core.messages import find_reason
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.models.state import take_snapshot
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf

OPTIONS = {"shuffle": False, "batch_size": BATCH}


@functools.cache
def by_keras(name, bad):
    """The losses of Keras' own fit(), or the sentence of its error."""
    case = CASES[name]
    try:
        kept = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0}
        return case.compiled(jit_compile=False).fit(*case.rows(bad), **kept).history
    except runtime.tensorflow().errors.InvalidArgumentError as error:
        return find_reason(error)


def data_of(case, model, bad):
    return dataset_of(CallRows(*case.rows(bad)), model, OPTIONS)


def trained(name, bad, engine):
    model = CASES[name].compiled()
    engine = "auto" if engine == "compiled" and not CASES[name].xla else engine
    return fit.fit(model, data_of(CASES[name], model, bad), {"epochs": 2, "engine": engine})


@pytest.mark.varies
@pytest.mark.parametrize("engine", few(["graph_loop", "keras", "compiled"], "compiled"))
@pytest.mark.parametrize("name", CASES)
def test_rows_that_keras_trains_give_the_same_losses(name, engine):
    bad = CASES[name].takes
    history = trained(name, bad, engine).history
    for metric, values in by_keras(name, bad).items():
        assert history[metric] == pytest.approx(values, rel=1e-4), metric


@pytest.mark.tensorflow
@pytest.mark.varies
@pytest.mark.parametrize("engine", few(["graph_loop", "keras", "compiled"], "compiled"))
@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].takes])
def test_rows_that_keras_refuses_are_refused(name, engine):
    said = by_keras(name, True)
    with pytest.raises(RefusedRowsError) as caught:
        trained(name, True, engine)
    assert told(said) in str(caught.value) or caught.value.origin is None


def told(sentence):
    """What two programs say alike: without the name of a node."""
    return sentence.partition(", node name")[0]


def test_the_state_is_that_of_before_the_call():
    case = CASES["Embedding"]
    model = case.compiled()
    good, bad = (data_of(case, model, each) for each in (False, True))
    fit.fit(model, good, {"epochs": 1, "engine": "graph_loop"})
    before = take_snapshot(model)
    for call in (
        lambda: fit.fit(model, bad, {"epochs": 2, "engine": "graph_loop"}),
        lambda: fit.fit(model, good, {"epochs": 2, "engine": "graph_loop"}, validation=bad),
    ):
        with pytest.raises(RefusedRowsError) as caught:
            call()
        after = take_snapshot(model)
        for name, array in before.arrays.items():
            np.testing.assert_array_equal(after.arrays[name], array, err_msg=name)
        assert caught.value.details["found"] == 21
        assert "0 to 20" in caught.value.message
        assert "R counts from 1" in caught.value.hint


@pytest.mark.varies
@pytest.mark.parametrize("name", ["Embedding", "IntegerLookup", "assert in a layer", "gather"])
def test_rows_are_refused_in_evaluate_too(name):
    case = CASES[name]
    model = case.compiled()
    with pytest.raises(RefusedRowsError):
        evaluate.evaluate(model, data_of(case, model, True))
    found = evaluate.evaluate(model, data_of(case, model, False))["metrics"]["loss"]
    assert found == pytest.approx(case.compiled().evaluate(case.x, case.y, verbose=0), rel=1e-5)


def coded(levels, codes, recipe=None):
    """Codes of a factor with labels; levels that training did not see have the code after them."""
    column = {"name": "f", "kind": "factor", "values": np.array(codes, np.int32), "levels": levels}
    labels = {"kind": "numeric", "values": np.arange(len(codes), dtype=float), "levels": []}
    options = {"encode": "codes", "new_levels": "own", "batch_size": 3, "shuffle": False}
    features = {"kind": "columns", "columns": [column]}
    return build_dataset(features, options, labels, recipe=recipe)


@pytest.mark.varies
@pytest.mark.parametrize("engine", ["graph_loop", "keras", "compiled"])
@pytest.mark.parametrize("jit", [False, True])
def test_a_new_level_needs_an_embedding_of_one_code_more(engine, jit):
    import keras

    train = coded(["a", "b", "c"], [1, 2, 3, 1, 2, 3])
    new = coded(["c", "d", "a"], [1, 2, 3], train.recipe)
    np.testing.assert_array_equal(new.sources[0].gather(slice(None))[:, 0], [2, 3, 0])
    for size in (3, 4):
        layers = [keras.layers.Embedding(size, 1), keras.layers.Flatten()]
        model = keras.Sequential([keras.layers.Input((1,)), *layers])
        model.compile("sgd", "mse", jit_compile=jit)
        fit.fit(model, train, {"epochs": 1, "engine": engine})
        if size == 3:
            with pytest.raises(RefusedRowsError, match="takes the codes 0 to 2, but") as caught:
                evaluate.evaluate(model, new)
            assert caught.value.details["found"] == 3
        else:
            found = evaluate.evaluate(model, new)["metrics"]["loss"]
            values = model.layers[0].get_weights()[0][[2, 3, 0], 0]
            assert found == pytest.approx(float(np.mean((values - [0, 1, 2]) ** 2)), rel=1e-5)


@pytest.mark.tensorflow
@pytest.mark.varies
@pytest.mark.parametrize(
    "name", ["Embedding", "Embedding of a column", "gather", "labels", "assert in a layer"]
)
def test_xla_runs_what_checks_nothing_that_the_rows_leave_open(name):
    assert trained(name, False, "compiled").engine.engine == "compiled"


@pytest.mark.tensorflow
@pytest.mark.varies
@pytest.mark.parametrize("name", ["inverse", "check_numerics"])
def test_xla_does_not_run_what_would_lose_a_check(name):
    chosen = trained(name, False, "compiled").engine
    assert chosen.engine == "graph_loop"
    assert "XLA would drop a check of the rows" in chosen.reason
    assert '"compiled" was asked' in chosen.reason


@pytest.mark.varies
@pytest.mark.parametrize("name", ["Embedding", "Embedding in a layer", "gather", "division"])
def test_predictions_of_such_rows_are_refused_too(name):
    case = CASES[name]
    model = case.compiled()
    with pytest.raises(RefusedRowsError):
        predict.predict(model, data=data_of(case, model, True))
    found = predict.predict(model, data=data_of(case, model, False))["values"]
    own = case.compiled().predict(case.x, verbose=0)
    np.testing.assert_allclose(np.reshape(found, own.shape), own, rtol=1e-4, atol=1e-6)


def test_a_compiled_prediction_checks_codes():
    case = CASES["Embedding"]
    model = case.compiled(jit_compile=True)
    with pytest.raises(RefusedRowsError, match="takes the codes 0 to 20, but the rows have"):
        predict.predict(model, data=data_of(case, model, True))


@pytest.mark.slow
@needs_jax
@pytest.mark.process
def test_codes_are_refused_on_jax_too():
    found = run_part("jax_tools", "codes")
    right = found.pop("Embedding beside numbers")  # where another column has such a number
    assert right == []
    assert len(found) == 5
    for name, layers in found.items():
        assert len(layers) == 4, name  # training, validation, evaluation, predictions
        assert all(layer.startswith("embedding") for layer in layers), name


@pytest.mark.slow
@needs_jax
@pytest.mark.process
def test_codes_of_rows_in_sequence_are_refused_on_jax_too():
    found = run_part("jax_tools", "codes_in_sequence")
    assert len(found["layers"]) == 4  # training, validation, evaluation, predictions
    assert all(layer.startswith("embedding") for layer in found["layers"])
    assert found["moved"] == 0
