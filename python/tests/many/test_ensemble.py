"""The mean of many models' predictions, and their spread."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from lazy_modules import keras
from small_fits import make_dataset, make_model

from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.many.fits import ModelHistory

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def fits():
    from gpukeras.many.fit_many import fit_many

    return fit_many([make_model()], make_dataset(rows=64), {"epochs": 1}, seeds=[1, 2, 3])


@pytest.mark.slow
def test_the_mean_and_the_spread_are_those_of_the_models(fits):
    from gpukeras.many.ensemble import predict_many

    rows = make_dataset(rows=20, seed=5)
    record = predict_many(fits, data=rows, interval=0.5)
    x = rows.sources[0].gather(slice(None))
    each = np.stack([fits.model(number).predict(x, verbose=0) for number in (1, 2, 3)])
    np.testing.assert_allclose(record["values"], each.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(record["sd"], each.std(axis=0, ddof=1), atol=1e-6)
    np.testing.assert_allclose(record["upper"], np.quantile(each, 0.75, axis=0), atol=1e-6)
    assert record["names"] == ["a", "b", "c"]


@pytest.mark.slow
def test_models_that_trained_alone_count_too():
    from gpukeras.many.ensemble import predict_many
    from gpukeras.many.fit_many import fit_many

    eager = make_model()
    eager.run_eagerly = True
    fits = fit_many([eager, make_model()], make_dataset(rows=64), {"epochs": 1})
    assert (fits.plan.stacks, fits.plan.alone) == (((1,),), (0,))
    rows = make_dataset(rows=20, seed=5)
    x = rows.sources[0].gather(slice(None))
    each = np.stack([fits.model(number).predict(x, verbose=0) for number in (1, 2)])
    np.testing.assert_allclose(
        predict_many(fits, data=rows)["values"], each.mean(axis=0), atol=1e-6
    )


@pytest.mark.parametrize("alone", [False, True])
def test_models_without_an_epoch_do_not_count(fits, alone):
    from gpukeras.many.ensemble import predict_many

    rows = make_dataset(rows=20, seed=5)
    failed = replace(fits.fitted[1], history=ModelHistory(stopped="failed"), error="it was killed")
    some = copy.copy(fits)
    some.fitted = [fits.fitted[0], failed, fits.fitted[2]]
    if alone:
        some.plan = replace(fits.plan, stacks=(), alone=(0, 1, 2))
    record = predict_many(some, data=rows)
    x = rows.sources[0].gather(slice(None))
    each = np.stack([fits.model(number).predict(x, verbose=0) for number in (1, 3)])
    np.testing.assert_allclose(record["values"], each.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(record["sd"], each.std(axis=0, ddof=1), atol=1e-6)
    assert record["models"] == 2
    some.fitted = [failed] * 3
    with pytest.raises(ModelError, match="No model has trained a whole epoch"):
        predict_many(some, data=rows)


def test_classes_are_those_of_the_mean_probability(fits):
    from gpukeras.many.ensemble import predict_many

    rows = make_dataset(rows=20, seed=5)
    classes = predict_many(fits, data=rows, type="class")
    mean = predict_many(fits, data=rows)["values"]
    assert (np.asarray(classes["values"]) == mean.argmax(axis=1) + 1).all()


def make_logit(bias, activation=None):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, activation, name="out")])
    model.set_weights([np.zeros((5, 1)), np.array([bias])])
    loss = keras.losses.BinaryCrossentropy(from_logits=activation is None)
    model.compile(keras.optimizers.SGD(0.0), loss)
    return model


def test_the_mean_of_classes_is_that_of_probabilities_where_outputs_are_logits():
    from gpukeras.many.ensemble import predict_many
    from gpukeras.many.fit_many import fit_many

    logits = 4.0, -2.0, -1.0
    fits = fit_many(
        [make_logit(bias) for bias in logits], make_dataset(rows=64, classes=2), {"epochs": 1}
    )
    found = predict_many(fits, data=make_dataset(rows=4, classes=2), type="class")
    assert np.mean(logits) > 0
    assert np.mean(1 / (1 + np.exp(-np.array(logits)))) < 0.5
    assert (found["levels"], found["values"].tolist()) == (["a", "b"], [1] * 4)


def test_classes_are_read_by_the_loss_of_each_model():
    from gpukeras.many.ensemble import predict_many
    from gpukeras.many.fit_many import fit_many

    models = [make_logit(0.3), make_logit(-1.0, "sigmoid")]
    fits = fit_many(models, make_dataset(rows=64, classes=2), {"epochs": 1})
    rows = make_dataset(rows=4, classes=2)
    read = [
        predict_many(fits, data=rows, type="class", models=chosen)["values"][0]
        for chosen in ([1], [2], [1, 2])
    ]
    assert read == [2, 1, 1]  # of the probabilities 0.57 and 0.27


def test_new_rows_are_mapped_as_those_of_the_training():
    from gpukeras.many.ensemble import predict_many
    from gpukeras.many.fit_many import fit_many

    data = make_dataset(rows=64)
    data.map = lambda rows: 10 * rows
    fits = fit_many([make_model()], data, {"epochs": 1}, seeds=[1, 2])
    assert fits.plan.stacks
    x = data.sources[0].gather(slice(None))
    each = [fits.model(number).predict(10 * x, verbose=0) for number in (1, 2)]
    found = predict_many(fits, data=data)["values"]
    np.testing.assert_allclose(found, np.mean(each, axis=0), atol=1e-6)


def test_families_of_numbers_have_no_classes():
    from familied import dataset, model_of

    from gpukeras.many.ensemble import predict_many
    from gpukeras.many.fit_many import fit_many

    data = dataset("poisson")
    fits = fit_many([model_of("poisson", data)], data, {"epochs": 1})
    with pytest.raises(SpecError, match='is not known for a model of the family "poisson"'):
        predict_many(fits, data=data, type="class")


@pytest.mark.parametrize("type_", ["quantile", "classes"])
def test_types_that_have_no_mean_are_refused(fits, type_):
    from gpukeras.many.ensemble import predict_many

    with pytest.raises(SpecError, match=f'`type` must be one of "response", "class", not "{type_}'):
        predict_many(fits, data=make_dataset(), type=type_)


def test_new_rows_are_encoded_as_in_training(fits):
    from gpukeras.many.ensemble import predict_many

    x = np.random.default_rng(1).normal(size=(4, 5))
    record = predict_many(fits, {"kind": "array", "values": x})
    assert record["values"].shape == (4, 3)


def test_the_interval_is_a_share(fits):
    from gpukeras.many.ensemble import predict_many

    with pytest.raises(SpecError, match="`interval` must lie between 0 and 1"):
        predict_many(fits, data=make_dataset(), interval=1.0)


def test_what_cannot_be_joined_is_named(fits, monkeypatch):
    from gpukeras.many import ensemble

    monkeypatch.setattr(ensemble, "predict_outputs", lambda *_, **__: {"one": 1, "two": 2})
    with pytest.raises(
        ModelError, match="The models have several outputs, whose predictions cannot be joined."
    ):
        ensemble.predict_many(fits, data=make_dataset())
    monkeypatch.setattr(ensemble, "open_rows", lambda *_: (None, object(), None))
    with pytest.raises(
        DataError, match="Many models predict rows with numbers, and `newdata` gives its rows"
    ):
        ensemble.predict_many(fits, data=make_dataset())
