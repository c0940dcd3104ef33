import numpy as np
import pytest
from conftest import make_dataset, make_model

from gpukeras import (
    DataError,
    ModelError,
    SpecError,
    assembly,
    inference,
    models,
    pipeline,
    runtime,
    training,
)
from gpukeras.labels import LabelRule
from gpukeras.recipes import Recipe

pytestmark = pytest.mark.tf


def dataset(kind, values, levels=(), shape=(6, 4), **options):
    rng = np.random.default_rng(0)
    features = {"kind": "array", "values": rng.normal(size=shape)}
    labels = {"kind": kind, "values": np.array(values), "levels": list(levels)}
    return pipeline.build_dataset(features, {"batch_size": 2, **options}, labels)


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
    model = models.build_mlp(data, {"units": [3, 2], "dropout": 0.1, "batch_norm": True})
    assert model.output_shape == (None, units)
    assert model.loss == loss
    report = training.fit(model, data, {"epochs": 1})
    assert np.isfinite(report.history["loss"][0])


def test_numbers_are_predicted_in_their_own_unit():
    values = np.linspace(90_000, 110_000, 6)
    model = models.build_mlp(dataset("numeric", values), {"units": 4})
    output = model.predict(np.zeros((1, 4)), verbose=0)
    assert 80_000 < output[0, 0] < 120_000  # before any training: near the mean


def test_images_are_flattened():
    data = dataset("numeric", np.arange(6) + 0.5, shape=(6, 3, 3, 2))
    assert models.build_mlp(data, {}).input_shape == (None, 3, 3, 2)


def test_the_seed_fixes_the_weights():
    data = make_dataset()
    one, two, three = (models.build_mlp(data, {"seed": seed}) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.get_weights()[0], two.get_weights()[0])
    assert not np.array_equal(one.get_weights()[0], three.get_weights()[0])


def test_the_learning_rate_is_taken():
    model = models.build_mlp(make_dataset(), {"learning_rate": 0.5})
    assert float(model.optimizer.learning_rate) == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": []}, None),
        ({"units": [0]}, "`units` must be a whole number of at least 1"),
        ({"dropout": 1.0}, "`dropout` must be a number from 0 to 0.99"),
        ({"activation": "swoosh"}, "Keras refused"),
        ({"optimizer": "sgdd"}, "Keras refused"),
        ({"optimizer": 3}, "`optimizer` must be the name"),
    ],
)
def test_options(options, message):
    if message is None:
        assert models.build_mlp(make_dataset(), options).output_shape == (None, 3)
        return
    with pytest.raises(SpecError, match=message):
        models.build_mlp(make_dataset(), options)


def test_a_dataset_without_labels_is_refused():
    data = pipeline.build_dataset({"kind": "array", "values": np.zeros((3, 1))}, {})
    with pytest.raises(DataError, match="no labels to learn"):
        models.build_mlp(data, {})


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
        models.check_fit(model, recipe)
        return
    with pytest.raises(error, match=message):
        models.check_fit(model, recipe)


def test_a_loss_object_is_known_by_its_name():
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(DataError, match="count from 1"):
        models.check_fit(model, Recipe("array", (4,), label=number(1, 3)))


def test_a_loss_function_too():
    keras = runtime.keras()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.sparse_categorical_crossentropy)
    with pytest.raises(DataError, match="count from 1"):
        models.check_fit(model, Recipe("array", (4,), label=number(1, 3)))


def test_an_unbuilt_model_is_left_to_keras():
    keras = runtime.keras()
    model = keras.Sequential([keras.layers.Dense(3, "softmax")])
    model.compile("sgd", SPARSE)
    models.check_fit(model, make_dataset().recipe)
    training.fit(model, make_dataset(), {"epochs": 1})


def test_the_recipe_is_tied_and_does_not_keep_the_model_alive():
    import gc
    import weakref

    data = make_dataset()
    model = models.build_mlp(data, {})
    assert models.recipe_of(model) is None
    models.tie_recipe(model, data.recipe)
    assert models.recipe_of(model) is data.recipe
    watcher = weakref.ref(model)
    del model
    gc.collect()
    assert watcher() is None


@pytest.mark.tf
def test_mixed_classes_want_a_loss_of_one_column_a_class():
    x = {"kind": "array", "values": np.random.default_rng(1).normal(size=(40, 5)), "names": []}
    labels = {"kind": "factor", "values": np.arange(40) % 2 + 1, "levels": ["a", "b"]}
    data = assembly.assemble(x, {"batch_size": 8}, labels, augment={"mixup": 0.2})
    model = models.build_mlp(data, {})
    assert (model.loss, model.output_shape) == ("categorical_crossentropy", (None, 2))
    report = training.fit(model, data, {"epochs": 2, "engine": "keras"})
    assert report.epochs == 2
    found = inference.predict(model, x, type="class")
    assert found["levels"] == ["a", "b"]
    assert inference.evaluate(model, data)["rows"] == 40
    with pytest.raises(ModelError, match="mixes classes by `mixup`"):
        training.fit(make_model(units=2), data, {"epochs": 1})
    plain = assembly.assemble(x, {"batch_size": 8}, labels)
    with pytest.raises(DataError, match="was encoded by its own means and levels"):
        inference.evaluate(model, plain)
    again = assembly.assemble(x, {"batch_size": 8}, labels, recipe=data.recipe)
    assert inference.evaluate(model, again)["metrics"].keys() == {"loss", "accuracy"}
