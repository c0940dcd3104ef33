"""Models in files: written whole, loaded without running their code, with their recipe."""

import warnings

import numpy as np
import pytest
from lazy_modules import keras

from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.data.dataset.map_dataset import build_dataset
from gpukeras.export.transfer import check_code, feeding_of, load_model, marshal_model, save_model
from gpukeras.models import model_recipes
from gpukeras.training import fit

tf_test = pytest.mark.tf


def a_dataset(rows=40, **options):
    x = np.sin(np.arange(rows * 3.0)).reshape(rows, 3)
    features = {"kind": "array", "values": x}
    labels = {"kind": "numeric", "values": x[:, 0] * 2}
    return build_dataset(features, {"seed": 1, **options}, labels=labels)


def a_model(*layers, compiled=True, loss="mse"):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    if compiled:
        model.compile("adam", loss)
    return model


@tf_test
def test_a_model_comes_back_as_it_was(tmp_path):
    data = a_dataset()
    model = a_model()
    fit.fit(model, data, {"epochs": 2, "engine": "keras"})
    path = str(tmp_path / "model.keras")
    record = save_model(model, path)
    again = load_model(path, record["recipe"]["portable"])
    assert record["kind"] == "Sequential"
    assert record["name"] == model.name == again.name
    assert record["parameters"] == 4
    assert record["bytes"] == (tmp_path / "model.keras").stat().st_size
    rows = data.batch(5)[0]
    np.testing.assert_array_equal(again.predict(rows, verbose=0), model.predict(rows, verbose=0))
    for one, other in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    assert model_recipes.recipe_of(again) == model_recipes.recipe_of(model)
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]


@tf_test
def test_a_model_without_recipe_or_compile_crosses_too(tmp_path):
    path = str(tmp_path / "model.keras")
    assert save_model(a_model(compiled=False), path)["recipe"] is None
    again = load_model(path)
    assert not again.compiled
    assert model_recipes.recipe_of(again) is None
    save_model(a_model(), path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Keras warns of an optimizer that has no variables yet
        assert load_model(path).compiled


@tf_test
def test_a_lambda_is_refused_by_name_and_never_run(tmp_path):
    path = tmp_path / "model.keras"
    path.write_text("mine")
    model = a_model(keras.layers.Lambda(lambda x: x * 2, name="twice"))
    words = "`args[$]m` holds Python code .* lambda in `twice`"
    with pytest.raises(ModelError, match=words) as told:
        save_model(model, str(path), "args$m")
    assert "registered" in told.value.hint
    assert path.read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]
    save_model(model, str(path), loadable=False)
    with pytest.raises(ModelError, match="lambda in `twice`"):
        load_model(str(path))
    save_model(a_model(loss=lambda a, b: a - b), str(path), loadable=False)
    with pytest.raises(ModelError, match=r"lambda in its compile\(\)"):
        check_code(path, "model")


@tf_test
def test_other_objects_are_refused(tmp_path):
    with pytest.raises(SpecError, match=r"`args\[\[1\]\]` must be a Keras 3 model"):
        save_model(np.zeros(3), str(tmp_path / "model.keras"), "args[[1]]")


def test_feeding_is_what_the_dataset_was_given():
    data = a_dataset(batch_size=7, shuffle=False, drop_last=True)
    expected = {"batch_size": 7, "shuffle": False, "drop_last": True, "augment": None}
    assert feeding_of(data) == expected
    data.map = lambda rows: rows
    with pytest.raises(DataError, match="`args[$]data` maps its rows by a function"):
        feeding_of(data, "args$data")
    with pytest.raises(SpecError, match="must be a gpu_dataset"):
        feeding_of(3)


@tf_test
def test_a_model_for_a_value_tells_what_loading_needs(tmp_path):
    plain, path = a_model(), str(tmp_path / "plain.keras")
    record = marshal_model(plain, path)
    assert record["keras"] == keras.__version__
    assert record["needs"].objects == record["needs"].lambdas == ()
    np.testing.assert_array_equal(load_model(path).get_weights()[0], plain.get_weights()[0])
    scaled = a_model(keras.layers.Lambda(lambda x: 2 * x, name="twice"))
    record = marshal_model(scaled, str(tmp_path / "scaled.keras"))
    assert record["needs"].lambdas == ("`twice`",)
    with pytest.raises(ModelError, match="lambda"):
        load_model(str(tmp_path / "scaled.keras"))
