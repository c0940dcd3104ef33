import numpy as np
import pytest
from small_fits import make_model

from gpukeras.accelerate.facts import read_facts

pytestmark = pytest.mark.tf

X, Y = np.ones((70, 5), np.float32), np.ones(70)
DEFAULTS = {"x": X, "y": Y, "batch_size": None, "epochs": 3, "callbacks": None, "shuffle": True}


def read(model, function="fit", **given):
    return read_facts(model, function, {**DEFAULTS, **given})


def test_batches_are_counted_as_keras_does(model):
    found = read(model)
    assert (found.rows, found.count, found.batches, found.whole) == ("arrays", 70, 9, False)
    assert read(model, batch_size=35).whole
    assert read(model, initial_epoch=1).batches == 6
    assert read(model, validation_split=0.5).count == 35


def test_validation_rows_are_looked_at(model):
    assert read(model).held == ""
    assert read(model, validation_split=0.5).held == "arrays"
    assert read(model, validation_data=(X, Y)).held == "arrays"
    once = read(model, validation_data=iter([(X, Y)]))
    assert (once.held, once.held_once) == ("sequence", True)


def test_types_that_float32_cannot_hold_are_told(model):
    import tensorflow as tf

    large = np.full((4, 5), 2**24 + 1)
    assert read(model, x=large, y=Y[:4]).large
    assert not read(model, x=large - 1, y=Y[:4]).large
    assert read(model, x=np.full((4, 1), "a"), y=Y[:4]).text
    assert read(model, x=tf.constant([["a"]] * 4), y=Y[:4]).text
    assert not read(model, x=np.ones((4, 5), np.uint8), y=Y[:4]).integers


def test_what_a_class_has_of_its_own_is_named():
    import keras

    class Own(keras.Model):
        def call(self, x):
            return x

        def make_train_function(self, force=False):
            return super().make_train_function(force)

        def predict_step(self, data):
            return super().predict_step(data)

    model = Own()
    model.compile("sgd", "mse")
    assert read(model).own_method == "make_train_function"
    assert read(model, "evaluate").own_method == ""
    assert read(model, "predict").own_method == "predict_step"
    assert read(model, x=np.ones((70, 5), int)).integers


def test_callbacks_that_see_batches_are_named(model):
    import keras

    class Mine(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    class Test(keras.callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            pass

    class Predict(keras.callbacks.Callback):
        def on_predict_batch_begin(self, batch, logs=None):
            pass

    stopping = keras.callbacks.EarlyStopping()
    assert read(model, callbacks=[stopping, Mine()]).batch_hook == "Mine"
    assert read(model, callbacks=[Test()]).test_hook == "Test"
    assert read(model, callbacks=[stopping]).batch_hook == ""
    evaluation = read(model, "evaluate", callbacks=[stopping])
    assert (evaluation.batch_hook, evaluation.callbacks) == ("", True)
    assert read(model, "evaluate", callbacks=[Mine(), Test()]).batch_hook == "Test"
    assert read(model, "predict", callbacks=[Test(), Predict()]).batch_hook == "Predict"
    assert read(model, callbacks=keras.callbacks.CallbackList([stopping])).own_list
    assert read(model, callbacks=[keras.callbacks.ProgbarLogger()]).own_list


def test_pipelines_are_looked_at(model):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    plain = read(model, x=rows.batch(8), y=None)
    found = (plain.rows, plain.count, plain.batches, plain.unsteady, plain.alone)
    assert found == ("pipeline", None, 27, False, "")
    assert read(model, x=rows.repeat().batch(8), y=None, steps_per_epoch=5).batches == 15
    assert read(model, x=rows.repeat().batch(8), y=None).batches is None
    assert read(model, x=rows.batch(8), y=None, validation_split=0.5).splits
    assert read(model, x=rows.shuffle(9).batch(8), y=None).unsteady
    assert read(model, x=rows.batch(8), y=None, validation_data=rows.shuffle(9).batch(8)).unsteady
    noise = rows.map(lambda x, y: (x + tf.random.normal([5]), y)).batch(8)
    assert read(model, x=noise, y=None).unsteady
    python = rows.map(lambda x, y: (tf.py_function(lambda v: v, [x], tf.float32), y))
    assert read(model, x=python.batch(8), y=None).unsteady
    texts = tf.data.Dataset.from_tensors((["a", "b"], [1, 2]))
    assert read(model, x=texts, y=None).alone == "text"
    assert read(model, x=iter([(X, Y)])).batches is None


@pytest.mark.tensorflow
def test_a_model_of_a_strategy_is_told():
    import tensorflow as tf

    with tf.distribute.get_strategy().scope():
        assert not read(make_model()).strategy
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        assert read(make_model()).strategy


def test_limits_of_keras_are_told(model, monkeypatch):
    import keras

    assert not read(model).limited
    monkeypatch.setattr(keras.config, "max_epochs", lambda: 2)
    assert read(model).limited
