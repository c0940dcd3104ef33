from itertools import product

import numpy as np
import pytest
from grouped import array
from lazy_modules import keras
from nightly import few

from gpukeras.data.dataset import map_dataset
from gpukeras.models import losses
from gpukeras.training import evaluate, fit

pytestmark = pytest.mark.tf

ENGINES = ["keras", "graph_loop", "compiled"]


def build(rows=35, validation=0.0, batch_size=8):
    options = {"batch_size": batch_size, "shuffle": False, "validation": validation}
    x, y = make_rows(rows)
    labels = {"kind": "numeric", "values": y, "levels": []}
    return map_dataset.build_dataset(array(x), options, labels)


def make_rows(rows=35):
    rng = np.random.default_rng(5)
    return rng.normal(size=(rows, 3)).astype(np.float32), rng.normal(size=rows)


def make_model(loss, *between):
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((3,)), *between, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.001), loss)
    return model


# Losses of outputs --------------------------------------------------------------------------------


def make_heads():
    keras.utils.set_random_seed(2)
    given = keras.Input((3,), name="table")
    outputs = [keras.layers.Dense(1, name=name)(given) for name in ("a", "b")]
    model = keras.Model(given, outputs)
    model.compile(keras.optimizers.SGD(0.001), {"a": "mse", "b": "mae"})
    return model


def heads_rows(validation=0.0):
    x, a = make_rows()
    values = {"a": 100 * a**2, "b": 10 * a}
    of = {
        name: {"kind": "numeric", "values": value, "levels": []} for name, value in values.items()
    }
    labels = {"kind": "outputs", "outputs": [{"name": name, "labels": of[name]} for name in of]}
    options = {"batch_size": 8, "shuffle": False, "validation": validation}
    return map_dataset.build_dataset(array(x), options, labels), (x, values)


@pytest.mark.slow
@pytest.mark.parametrize("engine", few(ENGINES, "graph_loop"))
def test_losses_of_outputs_are_means_over_rows_and_add_up(engine):
    data, (x, values) = heads_rows()
    model, other = make_heads(), make_heads()
    found = fit.fit(model, data, {"epochs": 3, "engine": engine}).history
    sums = np.zeros((3, 2))
    for epoch in range(3):
        for start in range(0, 35, 8):
            rows = slice(start, start + 8)
            batch = x[rows], {name: value[rows, None] for name, value in values.items()}
            predicted = other.predict_on_batch(batch[0])
            sums[epoch] += len(batch[0]) * np.array(
                [
                    np.mean((predicted[0] - batch[1]["a"]) ** 2),
                    np.mean(np.abs(predicted[1] - batch[1]["b"])),
                ]
            )
            other.train_on_batch(*batch)
    np.testing.assert_allclose(found["a_loss"], sums[:, 0] / 35, rtol=1e-4)
    np.testing.assert_allclose(found["b_loss"], sums[:, 1] / 35, rtol=1e-4)
    total = np.add(found["a_loss"], found["b_loss"])
    np.testing.assert_allclose(found["loss"], total, rtol=1e-5)
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5)


@pytest.mark.slow
def test_they_add_up_in_evaluations_and_keras_fit_is_as_before():
    data, (x, values) = heads_rows(validation=0.5)
    model = make_heads()
    before = model.compute_loss
    for size in (None, 4):
        found = evaluate.evaluate(model, data, batch_size=size)["metrics"]
        assert found["a_loss"] + found["b_loss"] == pytest.approx(found["loss"], rel=1e-5)
    history = fit.fit(model, data, {"epochs": 2, "engine": "keras"}).history
    total = np.add(history["val_a_loss"], history["val_b_loss"])
    np.testing.assert_allclose(history["val_loss"], total, rtol=1e-5)
    assert model.compute_loss == before
    assert "call" not in vars(model._compile_loss)
    assert not any("update_state" in vars(metric) for metric in model._compile_loss.metrics)
    model.fit(x, values, verbose=0)


# Losses that depend on the batch ------------------------------------------------------------------


class Adding:
    """A layer that adds a sum to the loss."""

    def __new__(cls):
        class AddingLayer(keras.layers.Layer):
            def call(self, x):
                self.add_loss(keras.ops.cast(keras.ops.sum(keras.ops.square(x)), "float32"))
                return x

        return AddingLayer()


def make_sum(reduction="sum"):
    return make_model(keras.losses.MeanSquaredError(reduction=reduction))


def own_loss(y, predicted):
    return keras.ops.sqrt(keras.ops.mean((y - predicted) ** 2))


def make_own():
    return make_model(own_loss)


def make_adding():
    return make_model("mse", Adding())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "engine"),
    few(
        product((make_sum, make_own, make_adding), ("keras", "graph_loop")),
        (make_adding, "graph_loop"),
    ),
)
def test_the_validation_loss_is_that_of_batches_as_in_training(make, engine):
    x, y = make_rows()
    model, other = make(), make()
    data = build(validation=0.4)
    rows, kept = data.rows("train"), data.rows("validation")
    expected = other.fit(
        x[rows],
        y[rows, None],
        batch_size=8,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=(x[kept], y[kept, None]),
    ).history
    found = fit.fit(model, data, {"epochs": 2, "engine": engine}).history
    np.testing.assert_allclose(found["val_loss"], expected["val_loss"], rtol=1e-4)
    whole = evaluate.evaluate(model, data)["metrics"]["loss"]
    assert whole == pytest.approx(model.evaluate(x, y[:, None], verbose=0), rel=1e-4)
    parts = evaluate.evaluate(model, data, batch_size=5)["metrics"]["loss"]
    expected = model.evaluate(x, y[:, None], batch_size=5, verbose=0)
    assert parts == pytest.approx(expected, rel=1e-4)


def test_weights_by_name_are_arranged_as_the_outputs():
    class Losses:
        output_names = ("b", "a")

    given = {"a": 1, "b": 2}
    assert losses.arrange_weights(Losses, [0, 0], given) == [2, 1]
    assert losses.arrange_weights(Losses, (0, 0), {"a": 1}) == [None, 1]
    assert losses.arrange_weights(Losses, {"b": 0, "a": 0}, {"a": 1}) == {"a": 1, "b": None}
    assert losses.arrange_weights(Losses, [0, 0], 3) == 3
