"""Saved models: all that gpukeras knows of them comes back, and what is dangerous does not."""

import json
import os
import zipfile

import numpy as np
import pytest
from lazy_modules import keras
from small_fits import make_dataset, make_model

from gpukeras.compression import masks
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.export import recipe_json
from gpukeras.export.archive import ABOUT, load_archive, save_archive
from gpukeras.export.archive_masks import pack_masks, unpack_masks
from gpukeras.models import model_recipes
from gpukeras.training import fit
from gpukeras.training.history_registry import history_of, keep_history

pytestmark = pytest.mark.tf


def prune(model, share=0.5):
    """Masks a kernel by hand."""
    kernel = masks.list_kernels(model)[0]
    values = np.abs(kernel.variable.numpy())
    masks.apply_masks(model, {kernel.path: values > np.quantile(values, share)})


def rewrite(path, changes):
    """An archive with some members replaced, added, or with None left out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, **changes}.items():
            if content is not None:
                archive.writestr(name, content)


@pytest.fixture(scope="module")
def trained():
    """A model with all that is saved of one; no test changes it."""
    model = make_model()
    report = fit.fit(model, make_dataset(), {"epochs": 2, "engine": "keras"})
    keep_history(model, report)
    prune(model)
    return model


@pytest.fixture
def saved(tmp_path, trained):
    path = str(tmp_path / "model.keras")
    return path, trained, save_archive(trained, path)


def test_all_comes_back(saved, tmp_path, dataset):
    path, model, record = saved
    assert record["bytes"] == os.path.getsize(path)
    assert (record["recipe"], record["epochs"], record["masks"]) == (True, 2, 1)
    loaded = load_archive(path)
    again = loaded["model"]
    assert loaded["ours"]
    assert loaded["compiled"]
    recipe = model_recipes.recipe_of(model)
    assert model_recipes.recipe_of(again) == recipe
    assert loaded["recipe"] == recipe_json.carry_recipe(recipe)
    assert json.loads(loaded["history"])["epochs"] == 2
    assert history_of(again) == history_of(model)
    rows = dataset.batch(5)[0]
    np.testing.assert_array_equal(again.predict(rows, verbose=0), model.predict(rows, verbose=0))
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]


@pytest.mark.slow
def test_masks_survive_saving_loading_and_further_training(saved, dataset):
    path, model, _ = saved
    kept = masks.read_masks(model)
    for _ in range(2):  # what was loaded is saved and loaded again
        model = load_archive(path)["model"]
        found = masks.read_masks(model)
        assert found.keys() == kept.keys()
        fit.fit(model, dataset, {"epochs": 1, "engine": "graph_loop"})
        weights = masks.list_kernels(model)[0].variable.numpy()
        name = masks.list_kernels(model)[0].path
        np.testing.assert_array_equal(found[name], kept[name])
        assert not weights[~kept[name]].any()
        assert weights[kept[name]].all()
        save_archive(model, path, overwrite=True)


def test_plain_keras_opens_the_file_and_gpukeras_opens_plain_keras(saved, tmp_path):
    path, model, _ = saved
    plain = keras.saving.load_model(path)
    plain.load_weights(path)
    for one, other in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    other = str(tmp_path / "plain.keras")
    plain.save(other)
    loaded = load_archive(other)
    assert not loaded["ours"]
    assert loaded["compiled"]
    assert (loaded["recipe"], loaded["history"], loaded["masks"]) == (None, None, 0)


def test_a_history_may_be_given(tmp_path, model):
    path = str(tmp_path / "model.keras")
    given = {"history": {"loss": [None, 0.5]}, "epochs": 7}
    assert save_archive(model, path, history=json.dumps(given))["epochs"] == 7
    assert json.loads(load_archive(path)["history"]) == given
    for text in ["no json", "[]", "{}"]:
        with pytest.raises(SpecError, match="`history` must be a gpu_history"):
            save_archive(model, path, overwrite=True, history=text)


def test_nothing_is_overwritten_unasked(tmp_path, model):
    path = tmp_path / "model.keras"
    path.write_text("mine")
    with pytest.raises(DataError, match=r"model.keras is there already.*overwrite = TRUE"):
        save_archive(model, str(path))
    assert path.read_text() == "mine"
    save_archive(model, str(path), overwrite=True)
    assert load_archive(str(path))["name"] == model.name
    folder = tmp_path / "folder.keras"
    folder.mkdir()
    with pytest.raises(DataError, match=r"folder.keras is a folder"):
        save_archive(model, str(folder), overwrite=True)


def make_unsaved():
    """A layer whose settings Keras cannot write."""

    class Unsaved(keras.layers.Layer):
        def get_config(self):
            raise NotImplementedError("no settings")

    return Unsaved(name="own")


def test_what_cannot_be_saved_leaves_no_trace(tmp_path, model):
    path = tmp_path / "model.keras"
    path.write_text("mine")
    bad = keras.Sequential([keras.Input((2,)), make_unsaved()])
    with pytest.raises(ModelError, match="Keras cannot save the model"):
        save_archive(bad, str(path), overwrite=True)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["model.keras"]
    with pytest.raises(DataError, match="cannot be written to the file model.keras: No such file"):
        save_archive(model, str(tmp_path / "nowhere" / "model.keras"))
    with pytest.raises(SpecError, match='must end with ".keras", not "model.h5"') as told:
        save_archive(model, str(tmp_path / "model.h5"))
    assert "save_model_weights(model, path) saves weights alone" in told.value.hint
    with pytest.raises(SpecError, match='must end with ".keras", not "model"') as told:
        save_archive(model, str(tmp_path / "model"))
    assert told.value.hint == ""
    with pytest.raises(SpecError, match="must be a Keras 3 model"):
        save_archive(3, str(path))


@pytest.mark.parametrize("unsafe", [False, True])
def test_a_hand_made_lambda_never_runs(tmp_path, unsafe):
    flag = str(tmp_path / "ran")
    layer = keras.layers.Lambda(lambda x: (open(flag, "w").close(), x)[1], (2,), name="evil")  # noqa: SIM115
    path = str(tmp_path / "model.keras")
    keras.Sequential([keras.Input((2,)), layer]).save(path)
    os.path.exists(flag) and os.remove(flag)
    from keras.src.saving import serialization_lib

    scope = serialization_lib.SafeModeScope(False if unsafe else None)
    with scope, pytest.raises(ModelError, match="`path` holds Python code .* lambda in `evil`"):
        load_archive(path)
    assert not os.path.exists(flag)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"../evil": b"x"}, r"the member '../evil', which lies outside of it"),
        ({"assets/x": b"\x80\x04\x95\x00."}, "holds a Python pickle in its member 'assets/x'"),
        ({"config.json": b"{"}, "Keras cannot load model.keras"),
        ({"config.json": None}, "Keras cannot load model.keras"),
        ({"model.weights.h5": b"no weights"}, "Keras cannot load model.keras"),
        ({ABOUT: b"{"}, "gpukeras.json in model.keras is not what was saved"),
        ({ABOUT: b"[]"}, "gpukeras.json in model.keras is not what was saved"),
        ({ABOUT: b'{"format": "gpukeras model", "version": 99}'}, "saved by a newer gpukeras"),
        ({"gpukeras-masks.npz": None}, "the masks in model.keras are not those"),
        ({"gpukeras-masks.npz": pack_masks({"a": np.ones(3)})["gpukeras-masks.npz"]}, "the masks"),
    ],
)
def test_changed_files_are_refused(saved, changes, said):
    path = saved[0]
    rewrite(path, changes)
    with pytest.raises(ModelError, match=said) as told:
        load_archive(path)
    assert told.value.details["path"] == path


def test_other_programs_code_is_refused(tmp_path, model):
    path = str(tmp_path / "model.keras")
    save_archive(model, path)
    with zipfile.ZipFile(path) as archive:
        config = json.loads(archive.read("config.json"))
    layer = config["config"]["layers"][1]
    for module, name in [("os", "system"), ("subprocess", "Popen"), ("keras.utils", "get_file")]:
        layer.update(module=module, class_name=name, registered_name=None)
        rewrite(path, {"config.json": json.dumps(config)})
        with pytest.raises(ModelError, match=r"Keras cannot load model.keras"):
            load_archive(path)


def test_masks_come_back_from_their_bits():
    rng = np.random.default_rng(1)
    made = {
        "a/kernel": rng.random((3, 5)) > 0.5,
        "b": rng.random((2, 2, 9)) > 0.9,
        "c": np.ones(()),
    }
    listed = [{"path": path, "shape": list(np.shape(mask))} for path, mask in made.items()]
    content = pack_masks(made)["gpukeras-masks.npz"]
    found = unpack_masks(content, listed)
    for path, mask in made.items():
        np.testing.assert_array_equal(found[path], np.asarray(mask, bool))
    assert pack_masks({}) == {}
    with pytest.raises((ValueError, KeyError)):
        unpack_masks(content, [*listed, {"path": "d", "shape": [1]}])


def test_the_dataset_of_a_loaded_model_must_fit(saved):
    other = make_dataset(columns=4)
    with pytest.raises((DataError, ModelError)):
        fit.fit(load_archive(saved[0])["model"], other, {"epochs": 1})
