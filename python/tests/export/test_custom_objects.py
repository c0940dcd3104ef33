"""What files of models need besides Keras: told at saving, given at loading."""

import numpy as np
import pytest
from lazy_modules import keras, tf
from small_fits import label_dataset

from gpukeras.core.errors import ModelError
from gpukeras.export.archive import load_archive, save_archive
from gpukeras.export.custom_objects import Needs, parse_needs, spread_names
from gpukeras.export.transfer import load_model, save_model
from gpukeras.training import fit
from gpukeras.training.predict import predict

pytestmark = pytest.mark.tf


def make_classes():
    """A layer and a loss of a user's own, as another session would make them again."""

    class Scale(keras.layers.Layer):
        def __init__(self, factor=2.0, **more):
            super().__init__(**more)
            self.factor = factor

        def call(self, x):
            return self.factor * x

        def get_config(self):
            return {**super().get_config(), "factor": self.factor}

    def my_loss(y_true, y_pred):
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

    return Scale, my_loss


OF_NO_MODULE = """
class Twice(keras.layers.Layer):
    def call(self, x):
        return 2 * x

def distance(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred), axis=-1)
"""


def double(x):
    return 2 * x


def build(*layers, loss="mse"):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", loss, metrics=["mae"])
    return model


def test_all_that_is_missing_is_in_the_hint(tmp_path):
    scale, _ = make_classes()
    house = keras.saving.register_keras_serializable("house")(type("Other", (scale,), {}))
    path = str(tmp_path / "model.keras")
    save_archive(build(scale(3.0), house(2.0)), path)
    keras.saving.get_custom_objects().pop("house>Other")
    with pytest.raises(ModelError, match="needs Scale, house>Other, which Keras") as caught:
        load_archive(path)
    assert caught.value.details["path"] == path
    assert caught.value.hint == (
        "Give them by name: gpu_load(custom_objects = list(Scale = , Other = )), or register them "
        "by `keras.saving.register_keras_serializable()`."
    )


def test_what_is_needed_is_told_at_saving_and_taken_at_loading(tmp_path):
    scale, my_loss = make_classes()
    path = str(tmp_path / "model.keras")
    model = build(scale(3.0), keras.layers.Lambda(double), loss=my_loss)
    assert save_archive(model, path)["needs"] == Needs(("Scale", "double"), ("my_loss",))
    again, loss = make_classes()
    given = {"Scale": again, "double": double, "my_loss": loss}
    loaded = load_archive(path, custom_objects=given)
    assert (loaded["compiled"], loaded["left"]) == (True, ())
    assert loaded["model"].loss is loss
    rows = tf.ones((4, 3))
    assert (loaded["model"](rows) == model(rows)).numpy().all()
    assert loaded["model"].layers[0].factor == 3.0


def test_a_model_whose_loss_nobody_knows_is_loaded_without_being_compiled(tmp_path):
    _, my_loss = make_classes()
    path = str(tmp_path / "model.keras")
    model = build(loss=my_loss)
    save_archive(model, path)
    loaded = load_archive(path)
    assert (loaded["compiled"], loaded["left"]) == (False, ("my_loss",))
    rows = tf.ones((4, 3))
    assert (loaded["model"](rows) == model(rows)).numpy().all()
    with pytest.raises(ModelError, match="needs my_loss, which Keras does not know here"):
        load_model(path)
    assert load_model(path, custom_objects={"my_loss": my_loss}).compiled


def test_a_known_loss_says_how_outputs_are_read_though_a_metric_is_not_known(tmp_path):
    def spread(y_true, y_pred):
        return keras.ops.std(y_pred)

    data = label_dataset("factor", [1, 2, 1, 2, 1, 2], ("no", "yes"))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True), metrics=[spread])
    fit.fit(model, data, {"epochs": 1, "engine": "keras"})
    model.set_weights([np.zeros((4, 1)), np.full(1, 0.3)])  # logits of "yes"
    path = str(tmp_path / "model.keras")
    save_archive(model, path)
    loaded = load_archive(path)
    assert (loaded["compiled"], loaded["left"]) == (False, ("spread",))
    for each in (model, loaded["model"]):
        assert predict(each, data=data, type="class")["values"].tolist() == [2] * 6
    loaded["model"].compile("sgd", "mse")
    assert loaded["model"].loss == "mse"


def test_a_layer_in_the_scope_of_custom_objects_is_known(tmp_path):
    scale, _ = make_classes()
    path = str(tmp_path / "model.keras")
    save_model(build(scale()), path)
    with keras.saving.custom_object_scope({"Scale": scale}):
        assert load_archive(path)["compiled"]


def test_registered_classes_are_known_and_their_short_names_suffice(tmp_path):
    scale, _ = make_classes()
    registered = keras.saving.register_keras_serializable("house")(scale)
    path = str(tmp_path / "model.keras")
    try:
        assert save_archive(build(registered()), path)["needs"].objects == ("house>Scale",)
        assert load_archive(path)["compiled"]
    finally:
        keras.saving.get_custom_objects().pop("house>Scale")
    again, _ = make_classes()
    with pytest.raises(ModelError, match="needs house>Scale, which Keras does not know here"):
        load_archive(path)
    assert load_archive(path, custom_objects={"Scale": again})["compiled"]
    assert spread_names({"Scale": 1}, ["house>Scale", "other"]) == {"house>Scale": 1, "Scale": 1}


def test_a_lambda_is_told_at_saving_and_loaded_on_request_alone(tmp_path):
    model = build(keras.layers.Lambda(lambda x: x + 1.0, name="plus"))
    path = str(tmp_path / "model.keras")
    assert save_archive(model, path)["needs"] == Needs(lambdas=("`plus`",))
    with pytest.raises(ModelError, match="a lambda in `plus`") as caught:
        load_archive(path)
    assert "gpu_load(safe_mode = FALSE)" in caught.value.hint
    loaded = load_archive(path, safe_mode=False)["model"]
    rows = tf.ones((4, 3))
    assert (loaded(rows) == model(rows)).numpy().all()


def test_classes_and_functions_of_no_module_are_told_and_taken_too(tmp_path):
    made = {"keras": keras, "__name__": "builtins"}
    exec(OF_NO_MODULE, made)  # noqa: S102 (as R makes its own)
    path = str(tmp_path / "model.keras")
    model = build(made["Twice"](), loss=made["distance"])
    assert save_archive(model, path)["needs"] == Needs(("Twice",), ("distance",))
    with pytest.raises(ModelError, match="needs Twice, which Keras does not know here"):
        load_archive(path)
    assert load_archive(path, custom_objects={"Twice": made["Twice"]})["left"] == ("distance",)
    given = {name: made[name] for name in ("Twice", "distance")}
    assert load_archive(path, custom_objects=given)["compiled"]


def test_models_of_keras_alone_need_nothing(tmp_path):
    path = str(tmp_path / "model.keras")
    model = build(keras.layers.Activation(keras.activations.gelu), loss=keras.losses.huber)
    assert save_archive(model, path)["needs"] == Needs()
    assert load_archive(path)["compiled"]
    for odd in (None, [], "text", {"config": 3}):
        assert parse_needs(odd) == Needs()


@pytest.mark.tf
def test_functions_that_share_a_name_are_told_of(tmp_path):
    def make(number, name):
        def function(x):
            return x * number

        function.__name__ = name
        return function

    def save(*functions, loss=None, metric=None):
        layers = [keras.layers.Dense(2, activation=function) for function in functions]
        model = keras.Sequential([keras.Input((3,)), *layers])
        if loss is not None:
            model.compile("sgd", loss, metrics=[metric, "mse"])
        return save_archive(model, str(tmp_path / "model.keras"), overwrite=True)["needs"].shared

    same = make(2.0, "act")
    assert save(same, same, "relu") == ()
    assert save(same, make(3.0, "other")) == ()
    assert save(make(3.0, "relu"), "relu") == ("relu",)
    nowhere = make(3.0, "nowhere")
    nowhere.__module__ = None  # as exec() makes it
    assert save(nowhere) == ()
    assert save(same, make(3.0, "act"), make(4.0, "other")) == ("act",)
    mean = keras.metrics.MeanMetricWrapper
    assert save(loss=same, metric=same) == save(loss="mse", metric="mae") == ()
    assert save(loss=same, metric=mean(make(3.0, "act"))) == ("act",)
    assert save(same, loss=make(3.0, "act"), metric="mse") == ("act",)
    assert save(loss="mse", metric=make(3.0, "mean_absolute_error")) == ("mean_absolute_error",)
