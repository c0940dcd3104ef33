"""Models of equal structure share programs, and train as if they had traced their own."""

import gc
import weakref

import numpy as np
import pytest
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras.engine import program_cache
from gpukeras.models.identity import list_state
from gpukeras.training import evaluate
from gpukeras.training import fit as training_fit

pytestmark = pytest.mark.tf


@pytest.fixture(autouse=True)
def nothing_shared():
    program_cache._kept.clear()


def with_dropout(rate=0.1, seed=2):
    import keras

    layers = [keras.layers.Dropout(rate, seed=seed)]
    return make_model(optimizer="adam", seed=seed, layers=layers)


def train(model, engine, data):
    training_fit.fit(model, data, {"epochs": 2, "engine": engine})
    return [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(["graph_loop", "compiled"], "graph_loop"))
def test_a_shared_program_trains_bit_by_bit_as_a_traced_one(engine):
    data, others = make_dataset(100, validation=0.2), make_dataset(100, seed=2, validation=0.2)
    traced = train(with_dropout(), engine, data)
    assert program_cache._kept
    before = list(program_cache._kept)
    model = with_dropout()
    shared = train(model, engine, data)
    assert list(program_cache._kept) == before
    again = train(model, engine, others)
    program_cache._kept.clear()
    fresh = with_dropout()
    for one, other in zip(shared, train(fresh, engine, data), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(again, train(fresh, engine, others), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(traced, shared, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(["graph_loop", "compiled"], "graph_loop"))
def test_a_model_of_another_seed_draws_its_own_numbers_in_a_shared_program(engine):
    data = make_dataset(100)
    first = train(with_dropout(), engine, data)
    before = list(program_cache._kept)
    shared = train(with_dropout(seed=9), engine, data)
    assert list(program_cache._kept) == before
    program_cache._kept.clear()
    for one, other in zip(shared, train(with_dropout(seed=9), engine, data), strict=True):
        np.testing.assert_array_equal(one, other)
    assert not all(np.array_equal(*pair) for pair in zip(first, shared, strict=True))


def normalized():
    import keras

    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    return make_model(optimizer="adam", layers=layers)


def residual():
    import keras

    layers = keras.layers
    keras.utils.set_random_seed(1)
    rows = keras.Input((5,))
    wide = layers.BatchNormalization()(layers.Dense(8, "relu")(rows))
    added = layers.Add()([wide, layers.Dropout(0.2)(layers.Dense(8)(wide))])
    model = keras.Model(rows, layers.Dense(3, "softmax")(added))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def recurrent():
    import keras

    layers = [keras.layers.Reshape((4, 2)), keras.layers.LSTM(3, recurrent_dropout=0.1, seed=1)]
    return make_model(optimizer="rmsprop", layers=layers)


def compiled_with(optimizer):
    model = with_dropout()
    model.compile(optimizer, model.loss, metrics=["accuracy"])
    return model


def frozen():
    model = normalized()
    model.layers[0].trainable = model.layers[1].trainable = False
    model.compile("adam", model.loss)
    return model


def scaling():
    import keras

    return compiled_with(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()))


def accumulating():
    import keras

    options = {"gradient_accumulation_steps": 2, "use_ema": True}
    return compiled_with(keras.optimizers.Adam(**options))


MODELS = [residual, normalized, recurrent, frozen, scaling, accumulating]


@pytest.mark.slow
@pytest.mark.parametrize("make", few(MODELS, residual))
def test_five_equal_models_train_as_if_each_was_alone(make):
    data = [make_dataset(100, seed=seed, validation=0.2) for seed in range(5)]
    together = [fit_and_evaluate(make(), each) for each in data]
    assert len(program_cache._kept) == 3  # to train, to validate, to evaluate
    for each, (weights, logs) in list(zip(data, together, strict=True))[4:]:
        program_cache._kept.clear()
        alone, said = fit_and_evaluate(make(), each)
        assert said == logs
        for one, other in zip(alone, weights, strict=True):
            np.testing.assert_array_equal(one, other)


def fit_and_evaluate(model, data):
    report = training_fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"})
    state = [variable.numpy() for variable in (*model.variables, *model.optimizer.variables)]
    return state, (report.history, evaluate.evaluate(model, data)["metrics"])


@pytest.mark.slow
def test_models_of_other_rates_share_programs_and_keep_their_rates():
    import keras

    data, found = make_dataset(100), []
    for clear in (False, True):
        for rate in (0.1, 0.01):
            if clear:
                program_cache._kept.clear()
            found.append(train(compiled_with(keras.optimizers.Adam(rate)), "graph_loop", data))
    assert len(program_cache._kept) == 1
    for one, other in zip((*found[0], *found[1]), (*found[2], *found[3]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_unlike_models_and_batches_share_nothing():
    train(with_dropout(), "graph_loop", make_dataset(100))
    found = len(program_cache._kept)
    train(with_dropout(0.2), "graph_loop", make_dataset(100))
    assert len(program_cache._kept) == 2 * found
    train(with_dropout(), "graph_loop", make_dataset(100, batch_size=20))
    assert len(program_cache._kept) == 3 * found


def test_a_step_of_the_users_is_not_shared():
    model = with_dropout()
    own = model.train_step
    model.train_step = lambda data: own(data)
    train(model, "graph_loop", make_dataset(100))
    assert not program_cache._kept


def test_averages_belong_to_one_training():
    training_fit.fit(with_dropout(), make_dataset(100), {"epochs": 1, "ema": 0.9})
    assert not program_cache._kept


@pytest.mark.slow
def test_a_shared_program_keeps_no_weights_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr(program_cache, "MOST", 1)
    model = with_dropout()
    train(model, "graph_loop", make_dataset(100))
    weights = weakref.ref(model.trainable_variables[0].value.handle)
    del model
    gc.collect()
    assert len(program_cache._kept) == 1
    assert weights() is None


def test_a_program_that_captures_other_numbers_is_not_shared():
    import tensorflow as tf

    model = with_dropout()
    numbers = tf.Variable([1.0])
    concrete = tf.function(lambda: numbers + 1).get_concrete_function()
    traced = program_cache.hold(concrete)
    state = list_state(model, None)
    assert program_cache._share("key", traced, state, 0.0) is traced
    assert not program_cache._kept
    assert float(traced()[0]) == 2.0
