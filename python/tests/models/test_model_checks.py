import numpy as np
import pytest
from lazy_modules import keras
from small_fits import label_dataset, make_dataset, make_model

from gpukeras import DataError, ModelError, SpecError
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.data.loader import loader
from gpukeras.diagnostics import check
from gpukeras.export import transfer
from gpukeras.models import model_checks, model_recipes
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf


def old_model():
    """A model of Keras 2, with one weight file of it."""
    old = pytest.importorskip("tf_keras", reason="tf_keras is not installed")
    model = old.Sequential([old.layers.Dense(1, input_shape=(4,))])
    model.compile("adam", "mse")
    return model


def test_a_model_of_keras_2_is_refused_everywhere(tmp_path):
    model, data = old_model(), label_dataset("numeric", np.arange(6.0))
    for refused in (
        lambda: fit.fit(model, data, {"epochs": 1}),
        lambda: evaluate.evaluate(model, data),
        lambda: predict.predict(model, data=data),
        lambda: model_recipes.recipe_of(model),
        lambda: check.check(model=model, data=data),
        lambda: transfer.save_model(model, str(tmp_path / "old.keras")),
    ):
        with pytest.raises(ModelError, match="is a Keras 2 model.*the R package keras3"):
            refused()


def test_the_weights_of_keras_2_are_read_by_keras_3(tmp_path):
    model, file = old_model(), str(tmp_path / "old.h5")
    model.save_weights(file)
    new = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    new.load_weights(file)
    np.testing.assert_array_equal(new.get_weights()[0], model.get_weights()[0])


def test_classes_of_keras_2_are_known_by_their_modules():
    class Model:
        __module__ = "keras.src.engine.training"

    class Mine(Model):
        __module__ = "somebody"

    with pytest.raises(ModelError, match="`net` is a Keras 2 model"):
        model_checks.refuse_old(Mine(), "net")
    model_checks.refuse_old(make_model())
    model_checks.refuse_old("no model at all")


LOSS = {"loss": "sparse_categorical_crossentropy"}


@pytest.mark.float32(reason="compares with the inner optimizer")
def test_an_uncompiled_model_is_compiled():
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, "softmax")])
    with pytest.raises(ModelError, match="not compiled"):
        fit.fit(model, make_dataset(), {"epochs": 1})
    given = {**LOSS, "optimizer": keras.optimizers.SGD(0.1), "metrics": ["accuracy"]}
    report = fit.fit(model, make_dataset(), {"epochs": 1}, compiling=given)
    assert list(report.history) == ["loss", "accuracy"]
    assert model.optimizer is given["optimizer"]
    again = {**LOSS, "metrics": [keras.metrics.SparseCategoricalCrossentropy(name="same")]}
    report = fit.fit(model, make_dataset(), {"epochs": 1}, compiling=again)
    assert report.history["same"] == pytest.approx(report.history["loss"], rel=1e-5)
    assert type(model.optimizer) is keras.optimizers.Adam


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optimizer": "sgd"}, "`loss` must be given beside `optimizer`"),
        ({"loss": "mse", "optimizer": "sgdd"}, "Keras refused to compile"),
    ],
)
def test_what_cannot_be_compiled(given, message):
    with pytest.raises(SpecError, match=message):
        model_checks.compile_model(make_model(), given)


def test_a_model_without_a_loss_is_told():
    data = make_dataset()
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile("adam")
    for run in (
        lambda: fit.fit(model, data, {"epochs": 1, "engine": "graph_loop"}),
        lambda: fit.fit(model, data, {"epochs": 1, "engine": "keras"}),
        lambda: evaluate.evaluate(model, data),
    ):
        with pytest.raises(ModelError, match="compiled without a loss"):
            run()


def test_a_loss_that_layers_add_is_one():
    class Penalty(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.mean(inputs**2))
            return inputs

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3), Penalty()])
    model.compile("adam")
    report = fit.fit(model, make_dataset(), {"epochs": 1})
    assert report.history["loss"][0] > 0


def test_labels_of_a_loss_of_ones_own_are_its_own_business():
    def pinball(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(keras.ops.expand_dims(y_true, -1) - y_pred))

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", pinball)
    data = label_dataset("numeric", np.arange(6.0))
    assert fit.fit(model, data, {"epochs": 1}).epochs == 1


@pytest.mark.parametrize("place", [0, 69, 70, 99])
def test_a_code_without_a_row_is_found_wherever_it_is(monkeypatch, place):
    monkeypatch.setattr(loader, "ROWS_AT_ONCE", 70)
    codes = np.ones((100, 1))
    layers = [keras.layers.Embedding(4, 1), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((1,)), *layers])
    model.compile("sgd", "mse", jit_compile=True)  # else TensorFlow itself checks, on a CPU
    model_checks.check_rows(model, numbers_of(codes))
    codes[place] = 4
    with pytest.raises(DataError, match="takes the codes 0 to 3, but"):
        model_checks.check_rows(model, numbers_of(codes))


def numbers_of(values):
    labels = {"kind": "numeric", "values": np.zeros(len(values)), "levels": []}
    features = {"kind": "array", "values": values}
    return build_dataset(features, {"batch_size": 10, "scale": False}, labels)
