import gc
import weakref

import numpy as np
import pytest
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras import ModelError
from gpukeras.backend import runtime
from gpukeras.data.dataset import map_dataset
from gpukeras.training import evaluate, fit, predict
from gpukeras.training.batch_size import remember_batch_size, remembered_size

pytestmark = pytest.mark.tf


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(["keras", "graph_loop"], "graph_loop"))
def test_more_rows_a_batch_than_there_are_make_one_batch_as_in_keras(engine):
    data, model, other = make_dataset(60, shuffle=False), make_model(), make_model()
    history = other.fit(*data.arrays, batch_size=500, epochs=3, shuffle=False, verbose=0).history
    report = fit.fit(model, data, {"epochs": 3, "engine": engine}, batch_size=500)
    np.testing.assert_allclose(report.history["loss"], history["loss"], rtol=1e-5)
    assert report.plan.batch_size == 60
    assert report.reasons["batch_size"] == "all rows, which are fewer than the 500 asked for"
    note = "`batch_size` is 500, but there are 60 rows: all make one batch."
    assert report.notes == (note,)
    more = make_dataset(60, batch_size=61)
    assert "there are 60 rows" in fit.fit(make_model(), more, {"epochs": 1}).notes[0]
    assert fit.fit(make_model(), data, {"epochs": 1}).notes == ()


# Batches of a fixed length ------------------------------------------------------------------------


def make_rnn(batch=8, stateful=True):
    keras = runtime.keras()
    keras.utils.set_random_seed(4)
    layers = [
        keras.Input(batch_shape=(batch, 5, 3)),
        keras.layers.GRU(4, stateful=stateful),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def make_sequences(rows=40, **options):
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(rows, 5, 3)).astype(np.float32), rng.normal(size=rows)
    features = {"kind": "array", "values": np.asfortranarray(x)}
    labels = {"kind": "numeric", "values": y, "levels": []}
    return map_dataset.build_dataset(features, {"shuffle": False, **options}, labels), x, y[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(["auto", "keras", "graph_loop", "compiled"], "graph_loop"))
def test_a_stateful_model_trains_and_predicts_as_by_keras(engine):
    data, x, y = make_sequences()
    model, other = make_rnn(), make_rnn()
    history = other.fit(
        x, y, batch_size=8, epochs=2, shuffle=False, verbose=0, validation_data=(x[:16], y[:16])
    ).history
    report = fit.fit(model, data, {"epochs": 2, "engine": engine}, validation=make_sequences(40)[0])
    assert report.plan.batch_size == 8
    assert report.reasons["batch_size"] == "as the model takes them"
    assert report.history["loss"][0] == pytest.approx(history["loss"][0], rel=1e-4)
    model, other = make_rnn(), make_rnn()
    history = other.fit(x, y, batch_size=8, epochs=3, shuffle=False, verbose=0).history
    report = fit.fit(model, data, {"epochs": 3, "engine": engine})
    np.testing.assert_allclose(report.history["loss"], history["loss"], rtol=1e-4)
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-5)
    found = evaluate.evaluate(model, data)["metrics"]["loss"]
    assert found == pytest.approx(other.evaluate(x, y, batch_size=8, verbose=0), rel=1e-4)
    expected = other.predict(x, batch_size=8, verbose=0)
    found = predict.predict(model, {"kind": "array", "values": np.asfortranarray(x)})["values"]
    np.testing.assert_allclose(np.ravel(found), expected[:, 0], atol=1e-5)


@pytest.mark.slow
def test_rows_that_do_not_fill_the_last_batch_are_refused_or_dropped_and_predicted():
    model = make_rnn()
    with pytest.raises(ModelError, match="takes batches of 8 rows .* but the last one has 3"):
        fit.fit(model, make_sequences(35)[0], {"epochs": 1})
    with pytest.raises(ModelError, match="the last one has 35"):
        evaluate.evaluate(model, make_sequences(35)[0])
    report = fit.fit(model, make_sequences(35, drop_last=True)[0], {"epochs": 1})
    assert report.rows == 32
    _, x, _ = make_sequences(35)
    found = predict.predict(model, {"kind": "array", "values": np.asfortranarray(x)})["values"]
    assert len(found) == 35


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(["keras", "graph_loop"], "graph_loop"))
def test_a_model_without_states_takes_any_batch_however_it_was_built(engine):
    keras = runtime.keras()
    data, x, y = make_sequences(35, batch_size=10)
    made = keras.Sequential([keras.layers.GRU(4), keras.layers.Dense(1)])  # its first batch tells
    made.compile("sgd", "mse")
    for model in (made, make_rnn(stateful=False)):
        for _ in range(2):
            report = fit.fit(model, data, {"epochs": 1, "engine": engine}, batch_size=9)
            assert report.plan.batch_size == 9
        assert len(predict.predict(model, data=data)["values"]) == 35
        evaluate.evaluate(model, data)


def test_another_batch_size_than_the_models_is_refused():
    with pytest.raises(ModelError, match="takes batches of 8 rows .* but `batch_size` is 16") as e:
        fit.fit(make_rnn(), make_sequences()[0], {"epochs": 1}, batch_size=16)
    assert e.value.hint == "Use `batch_size = 8`, or leave it."
    with pytest.raises(ModelError, match="`batch_size` is 10"):
        fit.fit(make_rnn(), make_sequences(batch_size=10)[0], {"epochs": 1})


# Sizes that a search found ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_size_is_kept_while_its_model_lives():
    model, data = type("Model", (), {})(), make_dataset(200)
    assert remembered_size(model, data) is None
    remember_batch_size(model, 64)
    remember_batch_size(model, 128)
    assert remembered_size(model, data) == 128
    lives = weakref.ref(model)
    del model
    gc.collect()
    assert lives() is None


def test_no_batch_is_larger_than_the_rows_for_training():
    model, data = type("Model", (), {})(), make_dataset(100)
    assert remembered_size(model, data) is None
    remember_batch_size(model, 40)
    assert remembered_size(model, data) == 40
    remember_batch_size(model, 4000)
    assert remembered_size(model, data) == 100
