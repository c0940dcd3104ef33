"""Calls of scripts with acceleration on: who ran them, what they gave, and what is undone."""

import functools
import random
import threading

import numpy as np
import pytest
from children import run_script
from nightly import few
from small_fits import make_model

from gpukeras.accelerate import calls, switch
from gpukeras.accelerate.switch import State
from gpukeras.core.errors import DataError
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.models import model_recipes
from gpukeras.models.state import take_snapshot
from gpukeras.training import fit as training_fit

pytestmark = pytest.mark.tf

X = np.random.default_rng(1).normal(size=(3300, 5)).astype(np.float32)
Y = np.digitize(X[:, 0], [-0.5, 0.5])


@pytest.fixture(autouse=True)
def switched_on():
    switch.report(clear=True)
    switch.switch(True)
    yield
    switch.switch(False)


def reported():
    return [(call.function, call.engine) for call in switch.report(clear=True)]


def test_keras_functions_are_the_same_ones_afterwards():
    import keras

    kind = keras.Model
    assert "fit" in vars(kind)
    assert switch.switch(True)  # a second time changes nothing
    switch.switch(False)
    assert not set(switch.FUNCTIONS) & set(vars(kind))
    own = {name: getattr(kind, name) for name in switch.FUNCTIONS}
    assert not switch.switch(True)
    assert kind.fit is not own["fit"]
    assert kind.fit.__doc__ == own["fit"].__doc__
    switch.switch(False)
    assert {name: getattr(kind, name) for name in switch.FUNCTIONS} == own


def test_another_package_may_wrap_keras_functions_too():
    import keras

    kind = keras.Model
    switch.switch(False)
    own = kind.fit
    assert switch.read_state() == State(
        False, False, "accelerate() is off: calls are not looked at."
    )

    def wrap(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    kind.fit = before = wrap(own)  # before accelerate(): it is there again afterwards
    try:
        switch.switch(True)
        assert switch.read_state() == State(True, False, "")
        switch.switch(False)
        assert kind.fit is before
        switch.switch(True)
        kind.fit = wrap(kind.fit)  # after it
        assert switch.read_state() == State(True, False, "")
        model = make_model()
        switch.switch(False)
        model.fit(X, Y, verbose=0)
        assert reported() == []
        switch.switch(True)
        model.fit(X, Y, verbose=0)
        assert reported() == [("fit", "gpukeras")]
        kind.fit = own  # lost, and said
        state = switch.read_state()
        assert (state.on, state.lost) == (True, True)
        assert state.note == "accelerate() is on, but another package has replaced Keras' fit()."
        switch.switch(True)
        assert switch.read_state() == State(True, False, "")
    finally:
        switch.switch(False)
        if "fit" in vars(kind):
            del kind.fit
    assert kind.fit is own


@pytest.mark.slow
def test_another_keras_is_not_taken_over_and_that_is_said():
    script = """
    import os, sys, warnings
    from gpukeras.accelerate import switch
    from gpukeras.core.errors import RuntimeMissingError
    from dataclasses import astuple
    was = switch.switch(True)
    states = [astuple(switch.read_state())]
    os.environ["KERAS_BACKEND"] = "numpy"  # as by keras3::use_backend()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        import keras
        sys.modules["tf_keras"] = keras
    states.append(astuple(switch.read_state()))
    del sys.modules["tf_keras"]
    said = [str(one.message) for one in told if "accelerate" in str(one.message)]
    try:
        switch.switch(True)
    except RuntimeMissingError as error:
        said.append(error.message)
    states.append(astuple(switch.read_state()))
    answer = [was, states, said]
    """
    was, states, said = run_script(script, CUDA_VISIBLE_DEVICES="-1")
    why = "gpukeras needs Keras 3 on the TensorFlow or JAX backend, found numpy."
    note = f"accelerate() is on, but takes over no call: {why}"
    assert was is False
    assert states == [
        [True, False, "accelerate() is on, and Keras is not imported yet."],
        [True, True, f"{note} {switch.KERAS_2}"],
        [False, False, "accelerate() is off: calls are not looked at."],
    ]
    assert said == [note, why]


def test_calls_are_reported_with_engine_reason_and_rows():
    model = make_model()
    model.fit(X, Y, verbose=0)
    model.predict(X[:8], verbose=0)
    fitted, predicted = switch.report()
    assert (fitted.function, fitted.engine, fitted.rows) == ("fit", "gpukeras", 3300)
    assert fitted.model == model.name
    assert fitted.seconds > 0
    assert (predicted.engine, predicted.reason) == ("keras", "a single batch")
    assert switch.report(clear=True)
    assert switch.report() == []


@pytest.mark.tensorflow
def test_rows_that_gpukeras_does_not_gather_come_in_keras_batches():
    holes = X.copy()
    holes[0, 0] = np.nan
    model = make_model()
    model.fit(holes, Y, verbose=0)
    assert model.evaluate(holes, Y, verbose=0)
    assert reported() == [("fit", "gpukeras"), ("evaluate", "gpukeras")]


def test_what_gpukeras_refuses_keras_takes():
    holes = X.copy()
    holes[0, 0] = np.nan
    assert make_model().predict(holes, verbose=0).shape == (3300, 3)
    (call,) = switch.report(clear=True)
    assert call.engine == "keras"
    why = "Column `1` of `newdata` has 1 missing value."
    assert call.reason == f"gpukeras takes no such rows: {why}"


def test_a_generator_that_fails_is_not_read_by_keras_too():
    read = []

    def batches():
        for place in range(5):
            read.append(place)
            yield X[:32], Y[:32]
        raise ValueError("the script's own")

    with pytest.raises(Exception, match="the script's own"):
        make_model().fit(batches(), steps_per_epoch=40, shuffle=False, verbose=0)
    assert read == [0, 1, 2, 3, 4]
    assert reported() == []


@pytest.mark.tensorflow
@pytest.mark.parametrize("kind", few(["arrays", "pipeline"], "pipeline"))
def test_a_script_draws_the_numbers_after_a_training_that_it_would_after_keras(kind):
    import keras
    import tensorflow as tf

    drawn = []
    for on in (False, True):
        switch.switch(on)
        model = make_model()
        keras.utils.set_random_seed(3)
        rows = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(99).batch(32)
        given = (X, Y) if kind == "arrays" else (rows,)
        model.fit(*given, shuffle=kind == "arrays", verbose=0)
        shuffled = [int(one) for one in tf.data.Dataset.range(9).shuffle(9)]
        drawn.append((random.random(), np.random.rand(), float(keras.random.normal(())), shuffled))
    assert drawn[0] == drawn[1]
    assert reported() == [("fit", "gpukeras")]


def test_what_keras_refuses_is_refused_by_keras():
    with pytest.raises(ValueError, match="Make sure all arrays contain the same number"):
        make_model().fit(X, Y[:-1], verbose=0)
    with pytest.raises(TypeError, match="unexpected keyword"):
        make_model().fit(X, Y, epoch=3)
    assert reported() == []


def test_an_error_of_a_callback_is_the_scripts_own():
    import keras

    class Mine(Exception):
        pass

    class Raiser(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise Mine

    with pytest.raises(Mine):
        make_model().fit(X, Y, verbose=0, callbacks=[Raiser()])


def test_an_interrupt_is_an_interrupt():
    import keras

    class Interrupter(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_model().fit(X, Y, verbose=0, callbacks=[Interrupter()])


def fail(at):
    """A step of the engine that fails at a call of it."""
    seen = []

    def advance(self, *arguments):
        seen.append(1)
        if len(seen) == at:
            raise DataError("made up") from OSError("the cause")
        return own(self, *arguments)

    own = EpochLoop.advance
    return advance


@pytest.mark.float32(reason="loss scaling leaves a step out")
def test_a_failure_before_the_first_update_is_trained_by_keras(monkeypatch):
    import keras

    known = make_model()
    keras.utils.set_random_seed(3)
    switch.switch(False)
    expected = known.fit(X, Y, verbose=0).history["loss"]
    switch.switch(True)
    monkeypatch.setattr(EpochLoop, "advance", fail(1))
    model = make_model()
    keras.utils.set_random_seed(3)
    assert model.fit(X, Y, verbose=0).history["loss"] == expected
    (call,) = switch.report()
    assert (call.engine, call.reason) == ("keras", "gpukeras takes no such rows: made up")
    assert int(model.optimizer.iterations) == 104


@pytest.mark.slow
def test_a_later_failure_is_raised_as_its_cause(monkeypatch):
    monkeypatch.setattr(EpochLoop, "advance", fail(2))
    with pytest.raises(OSError, match="the cause"):
        make_model().fit(X, Y, epochs=2, verbose=0)


@pytest.mark.slow
def test_callbacks_may_evaluate_the_model_that_trains():
    import keras

    seen = []
    for on in (False, True):
        switch.switch(on)
        model, values = make_model(), []

        def look(epoch, logs, model=model, values=values):
            values.append(model.evaluate(X[:99], Y[:99], verbose=0))
            values.append(float(model.predict(X[:9], verbose=0)[0, 0]))

        hook = keras.callbacks.LambdaCallback(on_epoch_end=look)
        fitted = model.fit(X, Y, epochs=2, verbose=0, validation_split=0.1, callbacks=[hook])
        seen.append((values, fitted.history["val_loss"]))
    np.testing.assert_allclose(np.hstack(seen[1][0]), np.hstack(seen[0][0]), rtol=1e-5)
    np.testing.assert_allclose(seen[1][1], seen[0][1], rtol=1e-5)
    nested = [("evaluate", "keras"), ("predict", "keras")]
    assert reported() == [*nested, *nested, ("fit", "gpukeras")]


@pytest.mark.slow
def test_only_one_thread_trains_through_gpukeras():
    import keras

    inside, done, engines = threading.Event(), threading.Event(), []

    def other():
        inside.wait(60)
        make_model().fit(X, Y, verbose=0)
        engines.extend(reported())
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    hook = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: (inside.set(), done.wait(60))
    )
    make_model().fit(X, Y, verbose=0, callbacks=[hook])
    thread.join(60)
    assert engines == [("fit", "keras")]
    assert reported() == [("fit", "gpukeras")]


def test_trainings_of_gpukeras_itself_are_not_calls():
    labels = {"kind": "integer", "values": Y, "levels": []}
    data = data_dataset.build_dataset({"kind": "array", "values": X}, {}, labels)
    training_fit.fit(make_model(), data, {"epochs": 1}, validation=data)
    assert reported() == []


def test_a_model_keeps_the_recipe_of_its_own_rows():
    model, labels = make_model(), {"kind": "integer", "values": Y, "levels": []}
    data = data_dataset.build_dataset({"kind": "array", "values": X}, {"scale": True}, labels)
    training_fit.fit(model, data, {"epochs": 1})
    recipe = model_recipes.recipe_of(model)
    model.fit(X, Y, verbose=0)
    assert reported() == [("fit", "gpukeras")]
    assert model_recipes.recipe_of(model) is recipe


def test_a_class_with_a_fit_of_its_own_is_keras_matter():
    import keras

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x):
            return self.dense(x)

        def fit(self, x, y):
            return super().fit(x, y, verbose=0, shuffle=False)

    model = Own()
    model.compile("sgd", "mse")
    model.fit(X, X[:, 0])
    (call,) = switch.report()
    assert (call.engine, call.reason) == ("keras", "the model's class has its own fit()")


def test_facts_that_cannot_be_read_leave_a_call_to_keras(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("no facts")

    monkeypatch.setattr(switch, "read_facts", broken)
    make_model().fit(X, Y, verbose=0)
    (call,) = switch.report()
    assert (call.engine, call.reason) == ("keras", "gpukeras could not: no facts")


def test_an_error_of_another_place_is_not_that_of_a_step():
    terms = calls.KerasTerms()
    terms.failed = ValueError("a step")
    assert switch.error_of(terms, terms.failed)
    assert not switch.error_of(terms, ValueError("a callback"))


def make_embedding():
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((2,)), layers.Embedding(21, 3), layers.Flatten(), layers.Dense(1)]
    )
    model.compile("adam", "mse")
    return model


@pytest.mark.cpu(reason="Keras refuses no codes on a GPU")
@pytest.mark.parametrize("row", [3, 3000])
def test_rows_that_keras_refuses_are_refused_by_keras_own_error(row):
    import tensorflow as tf

    codes = np.random.default_rng(1).integers(0, 21, (3300, 2)).astype(np.float32)
    codes[row, 1] = 21
    model = make_embedding()
    model.optimizer.build(model.trainable_variables)
    before = take_snapshot(model)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 21 is not in \[0, 21\)"):
        model.fit(codes, X[:, :1], epochs=2, shuffle=False, verbose=0)
    after = take_snapshot(model)
    for name in before.arrays:
        np.testing.assert_array_equal(after.arrays[name], before.arrays[name], err_msg=name)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 21 is not in \[0, 21\)"):
        model.evaluate(codes, X[:, :1], verbose=0)
    good = np.minimum(codes, 20)
    given = {"epochs": 2, "shuffle": False, "verbose": 0}
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"= 21 is not in \[0, 21\)"):
        model.fit(good, X[:, :1], validation_data=(codes, X[:, :1]), **given)


@pytest.mark.cpu(reason="Keras refuses no labels on a GPU")
def test_labels_outside_their_classes_are_refused_by_keras_own_error():
    import tensorflow as tf

    wrong = Y.copy()
    wrong[3000] = 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside the valid range"):
        make_model().fit(X, wrong, shuffle=False, verbose=0)
