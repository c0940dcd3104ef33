"""Models whose loss needs no labels train as Keras' own `fit()` does: steps of their own, layers
that add losses; from arrays, functions and tf.data pipelines."""

import functools
import itertools

import numpy as np
import pytest
from keras_fits import assert_same_losses, fit_ours, fit_plain
from lazy_modules import keras, layers, tf
from nightly import few
from small_fits import make_model
from streamed import array, stream, tfdata

from gpukeras import DataError, ModelError
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.data.saved import reader, writer
from gpukeras.diagnostics import usage
from gpukeras.models import variables
from gpukeras.training import evaluate, fit, predict
from gpukeras.training.model_guard import untouched

pytestmark = pytest.mark.tf

ROWS, BATCH = 44, 8
X = np.random.default_rng(2).normal(size=(ROWS, 5)).astype(np.float32)


def make_gan():
    """Two networks, each with an optimizer; no call, as in Keras' guides."""
    layers, models, losses = keras.layers, keras.Sequential, keras.losses

    class Gan(keras.Model):
        def __init__(self):
            super().__init__()
            self.judge = models([keras.Input((5,)), layers.Dense(4, "tanh"), layers.Dense(1)])
            self.maker = models([keras.Input((5,)), layers.Dense(5, dtype="float32")])
            self.judge_loss = keras.metrics.Mean(name="judge_loss")
            self.maker_loss = keras.metrics.Mean(name="maker_loss")

        def compile(self, judge_optimizer, maker_optimizer):
            super().compile()
            self.judge_optimizer, self.maker_optimizer = judge_optimizer, maker_optimizer
            self.compare = losses.BinaryCrossentropy(from_logits=True)

        @property
        def metrics(self):
            return [self.judge_loss, self.maker_loss]

        def train_step(self, real):
            noise = real[:, ::-1] * 0.5  # no random numbers: XLA draws others
            made, rows = self.maker(noise), tf.shape(real)[0]
            both = tf.concat([made, real], 0)
            wanted = tf.concat([tf.ones((rows, 1)), tf.zeros((rows, 1))], 0)
            with tf.GradientTape() as tape:
                judged = self.compare(wanted, self.judge(both))
            weights = self.judge.trainable_weights
            self.judge_optimizer.apply(tape.gradient(judged, weights), weights)
            with tf.GradientTape() as tape:
                fooled = self.compare(tf.zeros((rows, 1)), self.judge(self.maker(noise)))
            weights = self.maker.trainable_weights
            self.maker_optimizer.apply(tape.gradient(fooled, weights), weights)
            self.judge_loss.update_state(judged)
            self.maker_loss.update_state(fooled)
            return {metric.name: metric.result() for metric in self.metrics}

    model = Gan()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1))
    return model


def make_vae(unpack=lambda data: data):
    """An encoder and a decoder; the step is told what it gets."""

    class Vae(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder = layers.Dense(4, dtype="float32")
            self.decoder = layers.Dense(5, dtype="float32")
            self.total = keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.total]

        def call(self, rows):
            mean, spread = tf.split(self.encoder(rows), 2, axis=-1)
            return self.decoder(mean + 0.1 * spread), mean, spread

        def loss_of(self, data):
            rows = unpack(data)
            assert rows.shape[1:] == (5,)
            again, mean, spread = self(rows)
            away = -0.5 * (1 + spread - mean**2 - tf.exp(spread))
            return tf.reduce_mean((rows - again) ** 2) + tf.reduce_mean(away)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.loss_of(data)
            weights = self.trainable_weights
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            self.total.update_state(loss)
            return {"loss": self.total.result()}

        def test_step(self, data):
            self.total.update_state(self.loss_of(data))
            return {"loss": self.total.result()}

    model = Vae()
    model.compile("adam")
    return model


def make_penalised():
    """A functional model whose only loss a layer adds."""

    class Penalty(keras.layers.Layer):
        def call(self, rows):
            self.add_loss(keras.ops.cast(keras.ops.mean(rows**2), "float32"))
            return rows

    given = keras.Input((5,))
    hidden = keras.layers.Dense(4, "tanh")(given)
    model = keras.Model(given, Penalty()(keras.layers.Dense(3, dtype="float32")(hidden)))
    model.compile("sgd")
    return model


def make_compared():
    """A model with a loss in `compute_loss()`, and a compiled one that it does not ask."""

    class Compared(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return tf.reduce_mean((x - y_pred) ** 2)

    model = Compared([keras.Input((5,)), keras.layers.Dense(5, dtype="float32")])
    model.compile("sgd", "mse")
    return model


def dataset(**options):
    options = {"batch_size": BATCH, "shuffle": False, "seed": 3, **options}
    return data_dataset.build_dataset(array(X), options)


def as_pipeline(wrapped=False, **options):
    given = tf.data.Dataset.from_tensor_slices((X,) if wrapped else X)
    return tfdata(given.batch(BATCH), **{"batch_size": BATCH, "shuffle": False, **options})


def as_function(**options):
    at = [0]

    def call(epoch, batch):
        start, at[0] = at[0], at[0] + 11
        if start == ROWS:
            at[0] = 0
            return None
        return {"features": array(X[start : start + 11])}

    return stream(call, **{"batch_size": BATCH, "shuffle": False, **options})


MODELS = {"GAN": make_gan, "VAE": make_vae, "add_loss": make_penalised, "compute": make_compared}


@functools.cache
def fit_by_keras(name):
    tensors = tf.data.Dataset.from_tensor_slices(X)
    return fit_plain(MODELS[name], tensors.batch(BATCH))


@pytest.mark.parametrize(
    ("name", "engine"),
    few(
        itertools.product(MODELS, ("keras", "graph_loop", "compiled")),
        ("GAN", "graph_loop"),
        ("add_loss", "keras"),
    ),
)
def test_models_without_labels_train_as_in_keras(name, engine):
    history, expected = fit_by_keras(name)
    by_pipeline = (name, engine) == ("GAN", "keras")
    found, ours = fit_ours(MODELS[name], as_pipeline if by_pipeline else dataset, engine)
    assert_same_losses(found, history)
    if engine == "keras":
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("cache", few(["auto", True], "auto"))
def test_a_step_gets_what_keras_would_give_it(cache):
    """`x` of arrays and of pipelines of `x`; `(x,)` where a pipeline or a function gives that."""
    alone, first = make_vae, functools.partial(make_vae, lambda data: data[0])
    given = tf.data.Dataset.from_tensor_slices((X,)).batch(BATCH)
    history, expected = fit_plain(first, given)
    for build, make in (
        (alone, as_pipeline),
        (first, functools.partial(as_pipeline, wrapped=True)),
        (first, as_function),
    ):
        data = make(cache=cache)
        _, ours = fit_ours(build, data, "keras")
        np.testing.assert_array_equal(ours, expected)
        found, _ = fit_ours(build, make(cache=cache), "graph_loop")
        assert_same_losses(found, history)


@pytest.mark.slow
def test_rows_without_labels_validate_evaluate_and_predict():
    data = dataset(validation=0.25)
    model = make_vae()
    report = fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"})
    own = {"verbose": 0, "return_dict": True}
    expected = model.evaluate(X[data.validation_rows], batch_size=BATCH, **own)
    assert report.history["val_loss"][-1] == pytest.approx(expected["loss"], rel=1e-5)
    for given, size in ((dataset(), 32), (as_pipeline(), BATCH)):
        found = evaluate.evaluate(model, given)["metrics"]
        expected = model.evaluate(X, batch_size=size, **own)
        assert found == pytest.approx(expected, rel=1e-5)
    predicted = model.predict(X, verbose=0)
    for given in ({"features": array(X)}, {"data": dataset()}, {"data": as_pipeline()}):
        found = predict.predict(model, **given)["outputs"]
        for one, other in zip(found, predicted, strict=True):
            np.testing.assert_allclose(one["values"], other, rtol=1e-5, atol=1e-6)


def test_a_saved_dataset_without_labels_trains(tmp_path):
    path = writer.save_dataset(dataset(), str(tmp_path / "saved"))["path"]
    data = reader.build_saved({"kind": "saved", "path": path}, Request({"batch_size": BATCH}))
    report = fit.fit(make_penalised(), data, {"epochs": 1})
    assert report.stopped == "completed"


@pytest.mark.slow
def test_a_checkpoint_holds_all_optimizers_of_a_model(tmp_path):
    options = {"engine": "graph_loop", "checkpoint": {"folder": str(tmp_path), "every_s": 0}}
    keras.utils.set_random_seed(7)
    whole = make_gan()
    fit.fit(whole, dataset(), {**options, "epochs": 3, "checkpoint": None})
    for epochs in (1, 3):
        keras.utils.set_random_seed(7)
        model = make_gan()
        report = fit.fit(model, dataset(), {**options, "epochs": epochs})
    assert "Resumed after epoch 1, from its checkpoint." in report.notes
    for one, other in zip(model.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    ours = [each.iterations.numpy() for each in variables.other_optimizers(model)]
    assert ours == [18, 18]


@pytest.mark.slow
def test_a_model_is_as_before_with_all_its_optimizers():
    model, data = make_gan(), dataset()
    fit.fit(model, data, {"epochs": 1})
    before = [each.numpy() for one in variables.other_optimizers(model) for each in one.variables]
    with untouched(model, data.batch):
        model.train_step(tf.constant(X[:8]))
    after = [each.numpy() for one in variables.other_optimizers(model) for each in one.variables]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_labels_are_missed_where_the_compiled_loss_needs_them():
    with pytest.raises(DataError, match="`data` has no labels") as error:
        fit.fit(make_model(), dataset(), {"epochs": 1})
    assert "the loss that `model` was compiled with" in error.value.hint
    with pytest.raises(DataError, match="`data` has no labels"):
        evaluate.evaluate(make_model(), dataset())


@pytest.mark.tensorflow
def test_a_loss_of_layers_is_missed_in_words():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    model.compile("sgd")
    with pytest.raises(ModelError, match="compiled without a loss, and its layers add none"):
        fit.fit(model, dataset(), {"epochs": 1})


def test_a_model_without_a_call_says_what_it_cannot_do():
    model = make_gan()
    with pytest.raises(ModelError, match=r"neither a `call\(\)` nor a `test_step\(\)` of its own"):
        evaluate.evaluate(model, dataset())
    with pytest.raises(ModelError, match=r"nor a `predict_step\(\)`"):
        predict.predict(model, features=array(X))
    with pytest.raises(ModelError, match=r"nor a `test_step\(\)`"):
        fit.fit(model, dataset(validation=0.25), {"epochs": 1})


@pytest.mark.slow
@pytest.mark.parametrize("wrapped", few([False, True], True))
def test_the_use_of_a_gpu_is_read_from_rows_without_labels(wrapped):
    model = make_vae((lambda data: data[0]) if wrapped else (lambda data: data))
    use = usage.read_use(model, as_pipeline(wrapped=wrapped), "CPU:0", 2)
    assert use["median_s"] > 0


@pytest.mark.parametrize("loss", [["mse", "mae"], "mse"], ids=["a list of losses", "one loss"])
def test_several_labels_of_a_model_without_names_for_its_outputs_are_refused(loss):
    class Two(keras.Model):
        def __init__(self, named):
            super().__init__()
            self.heads, self.named = [keras.layers.Dense(1), keras.layers.Dense(1)], named

        def call(self, x):
            found = [head(x) for head in self.heads]
            return dict(zip("ba", found, strict=True)) if self.named else found

    rng = np.random.default_rng(1)
    x, parts = rng.normal(size=(40, 3)), {name: rng.normal(size=40) for name in "ba"}
    outputs = [
        {"name": name, "labels": {"name": "y", "kind": "numeric", "values": values, "levels": []}}
        for name, values in parts.items()
    ]
    features = {"kind": "array", "values": x, "names": []}
    data = data_dataset.build_dataset(
        features, {"batch_size": 8}, {"kind": "outputs", "outputs": outputs}
    )
    model = Two(named=False)
    model.compile("sgd", loss=loss)
    with pytest.raises(ModelError, match="no names for its outputs that the labels b, a would"):
        fit.fit(model, data, {"epochs": 1})
    named = Two(named=True)
    named.compile("sgd", loss={"a": "mse", "b": "mse"})
    assert fit.fit(named, data, {"epochs": 1}).epochs == 1
