import numpy as np
import pytest
from small_fits import make_dataset, make_model

from gpukeras import DataError, ModelError, SpecError
from gpukeras.backend import runtime
from gpukeras.data import builder
from gpukeras.data import dataset as data_dataset
from gpukeras.data.preprocessing.recipe import Recipe
from gpukeras.data.preprocessing.targets import LabelRule
from gpukeras.diagnostics import check
from gpukeras.export import transfer
from gpukeras.models import builder as models_builder
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf


def dataset(kind, values, levels=(), shape=(6, 4), **options):
    rng = np.random.default_rng(0)
    features = {"kind": "array", "values": rng.normal(size=shape)}
    labels = {"kind": kind, "values": np.array(values), "levels": list(levels)}
    return data_dataset.build_dataset(features, {"batch_size": 2, **options}, labels)


@pytest.mark.parametrize(
    ("kind", "values", "levels", "units", "loss"),
    [
        ("numeric", [1.5, 2.5, 3.5, 4.5, 5.5, 6.5], (), 1, "mean_squared_error"),
        ("matrix", [[1.0, 2.0]] * 6, (), 2, "mean_squared_error"),
        ("logical", [True, False] * 3, (), 1, "binary_crossentropy"),
        ("factor", [1, 2] * 3, "ab", 1, "binary_crossentropy"),
        ("factor", [1, 2, 3] * 2, "abc", 3, "sparse_categorical_crossentropy"),
    ],
)
def test_the_output_fits_the_labels(kind, values, levels, units, loss):
    data = dataset(kind, values, levels)
    model = models_builder.build_mlp(data, {"units": [3, 2], "dropout": 0.1, "batch_norm": True})
    assert model.output_shape == (None, units)
    assert model.loss == loss
    report = fit.fit(model, data, {"epochs": 1})
    assert np.isfinite(report.history["loss"][0])


def test_numbers_are_predicted_in_their_own_unit():
    values = np.linspace(90_000, 110_000, 6)
    model = models_builder.build_mlp(dataset("numeric", values), {"units": 4})
    output = model.predict(np.zeros((1, 4)), verbose=0)
    assert 80_000 < output[0, 0] < 120_000  # before any training: near the mean


def test_images_are_flattened():
    data = dataset("numeric", np.arange(6) + 0.5, shape=(6, 3, 3, 2))
    assert models_builder.build_mlp(data, {}).input_shape == (None, 3, 3, 2)


def test_the_seed_fixes_the_weights():
    data = make_dataset()
    one, two, three = (models_builder.build_mlp(data, {"seed": seed}) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.get_weights()[0], two.get_weights()[0])
    assert not np.array_equal(one.get_weights()[0], three.get_weights()[0])


def test_the_penalty_is_that_of_hidden_weights():
    model = models_builder.build_mlp(make_dataset(), {"units": [3, 2], "penalty": 0.5})
    hidden = [model.layers[0].kernel, model.layers[2].kernel]
    squares = sum(float(np.sum(np.square(kernel.numpy()))) for kernel in hidden)
    assert float(sum(model.losses)) == pytest.approx(0.5 * squares, rel=1e-5)
    assert not models_builder.build_mlp(make_dataset(), {}).losses


def test_the_learning_rate_is_taken():
    model = models_builder.build_mlp(make_dataset(), {"learning_rate": 0.5})
    assert float(model.optimizer.learning_rate) == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": []}, None),
        ({"units": [0]}, "`units` must be a whole number of at least 1"),
        ({"dropout": 1.0}, "`dropout` must be a number from 0 to 0.99"),
        ({"penalty": -1.0}, "`penalty` must be a number of at least 0"),
        ({"activation": "swoosh"}, "Keras refused"),
        ({"optimizer": "sgdd"}, "Keras refused"),
        ({"optimizer": 3}, "`optimizer` must be the name"),
    ],
)
def test_options(options, message):
    if message is None:
        assert models_builder.build_mlp(make_dataset(), options).output_shape == (None, 3)
        return
    with pytest.raises(SpecError, match=message):
        models_builder.build_mlp(make_dataset(), options)


def test_a_dataset_without_labels_is_refused():
    data = data_dataset.build_dataset({"kind": "array", "values": np.zeros((3, 1))}, {})
    with pytest.raises(DataError, match="no labels to learn"):
        models_builder.build_mlp(data, {})


SPARSE, BINARY = "sparse_categorical_crossentropy", "binary_crossentropy"


def number(low, high, whole=True):
    return LabelRule("number", minimum=low, maximum=high, whole=whole)


@pytest.mark.parametrize(
    ("label", "units", "loss", "error", "message"),
    [
        (number(1, 3), 3, SPARSE, DataError, "from 1 to 3.*0 to 2.*count from 1 as in R"),
        (number(0, 3), 3, SPARSE, DataError, "from 0 to 3.*0 to 2"),
        (number(-1, 2), 3, SPARSE, DataError, "from -1 to 2"),
        (number(0, 2, whole=False), 3, SPARSE, DataError, "one class a row"),
        (LabelRule("class", 4, tuple("abcd")), 3, SPARSE, DataError, "from 0 to 3"),
        (LabelRule("class", 3, tuple("abc")), 1, BINARY, DataError, "from 0 to 2"),
        (number(1, 2), 1, BINARY, DataError, "count from 1"),
        (LabelRule("class", 3, tuple("abc")), 3, "categorical_crossentropy", ModelError, "sparse"),
        (LabelRule("matrix", 2), 3, "mse", ModelError, "3 units, but `y` has 2"),
        (number(0, 9), 3, "mse", ModelError, "3 units, but `y` has 1"),
        (number(0, 2), 3, SPARSE, None, ""),
        (LabelRule("class", 2, tuple("ab")), 1, BINARY, None, ""),
        (LabelRule("class", 2, tuple("ab")), 2, SPARSE, None, ""),
        (LabelRule("matrix", 3), 3, "mse", None, ""),
        (number(-5, 5), 1, "mse", None, ""),
    ],
)
def test_labels_against_the_output_layer(label, units, loss, error, message):
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", loss)
    recipe = Recipe("array", (4,), label=label)
    if error is None:
        models_builder.check_fit(model, recipe)
        return
    with pytest.raises(error, match=message):
        models_builder.check_fit(model, recipe)


def test_a_loss_object_is_known_by_its_name():
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(DataError, match="count from 1"):
        models_builder.check_fit(model, Recipe("array", (4,), label=number(1, 3)))


def test_a_loss_function_too():
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.sparse_categorical_crossentropy)
    with pytest.raises(DataError, match="count from 1"):
        models_builder.check_fit(model, Recipe("array", (4,), label=number(1, 3)))


def test_an_unbuilt_model_is_left_to_keras():
    keras = runtime.keras()
    model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    model.compile("sgd", SPARSE)
    models_builder.check_fit(model, make_dataset().recipe)
    fit.fit(model, make_dataset(), {"epochs": 1})


def test_the_recipe_is_tied_and_does_not_keep_the_model_alive():
    import gc
    import weakref

    data = make_dataset()
    model = models_builder.build_mlp(data, {})
    assert models_builder.recipe_of(model) is None
    models_builder.tie_recipe(model, data.recipe)
    assert models_builder.recipe_of(model) is data.recipe
    watcher = weakref.ref(model)
    del model
    gc.collect()
    assert watcher() is None


@pytest.mark.tf
def test_mixed_classes_want_a_loss_of_one_column_a_class():
    x = {"kind": "array", "values": np.random.default_rng(1).normal(size=(40, 5)), "names": []}
    labels = {"kind": "factor", "values": np.arange(40) % 2 + 1, "levels": ["a", "b"]}
    data = builder.assemble(x, {"batch_size": 8}, labels, augment={"mixup": 0.2})
    model = models_builder.build_mlp(data, {})
    assert (model.loss, model.output_shape) == ("categorical_crossentropy", (None, 2))
    report = fit.fit(model, data, {"epochs": 2, "engine": "keras"})
    assert report.epochs == 2
    found = predict.predict(model, x, type="class")
    assert found["levels"] == ["a", "b"]
    assert evaluate.evaluate(model, data)["rows"] == 40
    with pytest.raises(ModelError, match="mixes classes by `mixup`"):
        fit.fit(make_model(units=2), data, {"epochs": 1})
    plain = builder.assemble(x, {"batch_size": 8}, labels)
    with pytest.raises(DataError, match="was encoded by its own means and levels"):
        evaluate.evaluate(model, plain)
    again = builder.assemble(x, {"batch_size": 8}, labels, recipe=data.recipe)
    assert evaluate.evaluate(model, again)["metrics"].keys() == {"loss", "accuracy"}


@pytest.mark.tf
def test_labels_that_come_later_are_remembered_too():
    model, label = make_model(), LabelRule("class", units=2, levels=("a", "b"))
    for own in (None, label, LabelRule("class", units=2, levels=("a", "b"))):
        models_builder.tie_recipe(model, Recipe("array", (5,), label=own))
    assert models_builder.recipe_of(model).label is label
    with pytest.raises(DataError, match="was encoded by its own means and levels"):
        models_builder.tie_recipe(model, Recipe("array", (5,), label=LabelRule("number")))


def old_model():
    """A model of Keras 2, with one weight file of it."""
    old = pytest.importorskip("tf_keras", reason="tf_keras is not installed")
    model = old.Sequential([old.layers.Dense(1, input_shape=(4,))])
    model.compile("adam", "mse")
    return model


def test_a_model_of_keras_2_is_refused_everywhere(tmp_path):
    model, data = old_model(), dataset("numeric", np.arange(6.0))
    for refused in (
        lambda: fit.fit(model, data, {"epochs": 1}),
        lambda: evaluate.evaluate(model, data),
        lambda: predict.predict(model, data=data),
        lambda: models_builder.recipe_of(model),
        lambda: check.check(model=model, data=data),
        lambda: transfer.save_model(model, str(tmp_path / "old.keras")),
    ):
        with pytest.raises(ModelError, match="is a Keras 2 model.*the R package keras3"):
            refused()


def test_the_weights_of_keras_2_are_read_by_keras_3(tmp_path):
    model, file = old_model(), str(tmp_path / "old.h5")
    model.save_weights(file)
    keras = runtime.keras()
    new = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    new.load_weights(file)
    np.testing.assert_array_equal(new.get_weights()[0], model.get_weights()[0])


def test_classes_of_keras_2_are_known_by_their_modules():
    class Model:
        __module__ = "keras.src.engine.training"

    class Mine(Model):
        __module__ = "somebody"

    with pytest.raises(ModelError, match="`net` is a Keras 2 model"):
        models_builder.refuse_old(Mine(), "net")
    models_builder.refuse_old(make_model())
    models_builder.refuse_old("no model at all")


LOSS = {"loss": "sparse_categorical_crossentropy"}


def test_an_uncompiled_model_is_compiled():
    keras = runtime.keras()
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
        models_builder.compile_model(make_model(), given)


def test_a_model_without_a_loss_is_told():
    keras, data = runtime.keras(), make_dataset()
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile("adam")
    for run in (
        lambda: fit.fit(model, data, {"epochs": 1, "engine": "superstep"}),
        lambda: fit.fit(model, data, {"epochs": 1, "engine": "keras"}),
        lambda: evaluate.evaluate(model, data),
    ):
        with pytest.raises(ModelError, match="compiled without a loss"):
            run()


def test_a_loss_that_layers_add_is_one():
    keras = runtime.keras()

    class Penalty(keras.layers.Layer):
        def call(self, inputs):
            self.add_loss(keras.ops.mean(inputs**2))
            return inputs

    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3), Penalty()])
    model.compile("adam")
    report = fit.fit(model, make_dataset(), {"epochs": 1})
    assert report.history["loss"][0] > 0


def test_labels_of_a_loss_of_ones_own_are_its_own_business():
    keras = runtime.keras()

    def pinball(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(keras.ops.expand_dims(y_true, -1) - y_pred))

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", pinball)
    data = dataset("numeric", np.arange(6.0))
    assert fit.fit(model, data, {"epochs": 1}).epochs == 1


def test_a_model_that_takes_text_is_told():
    keras = runtime.keras()
    words = keras.layers.StringLookup(vocabulary=["a"], output_mode="one_hot")
    entry = keras.Input((1,), dtype="string", name="word")
    model = keras.Model(entry, keras.layers.Dense(1)(words(entry)))
    model.compile("sgd", "mse")
    with pytest.raises(ModelError, match="The input `word` of `model` takes text"):
        models_builder.check_fit(model, Recipe("array", (1,), label=number(0, 1)))


@pytest.mark.parametrize("units", [1e9, [1e6, 1e6], [8, 1e10]])
def test_a_perceptron_that_no_memory_holds_is_refused(units):
    with pytest.raises(SpecError, match=r"`units` makes [0-9,]+ weights: training them takes"):
        models_builder.build_mlp(dataset("numeric", np.arange(6.0)), {"units": units})


def test_its_size_counts_every_layer(monkeypatch):
    model = models_builder.build_mlp(dataset("numeric", np.arange(6.0)), {"units": [8, 4]})
    trained = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    needed = models_builder.BYTES_A_WEIGHT * trained
    monkeypatch.setattr("gpukeras.system.host.read_free_memory", lambda: needed)
    models_builder.build_mlp(dataset("numeric", np.arange(6.0)), {"units": [8, 4]})
    monkeypatch.setattr("gpukeras.system.host.read_free_memory", lambda: needed - 1)
    with pytest.raises(SpecError, match=f"`units` makes {trained} weights"):
        models_builder.build_mlp(dataset("numeric", np.arange(6.0)), {"units": [8, 4]})
