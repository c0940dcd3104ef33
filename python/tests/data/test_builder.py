import numpy as np
import pytest
from small_fits import make_model

from gpukeras import DataError, SpecError
from gpukeras.data import builder
from gpukeras.data.loader.loader import open_loader
from gpukeras.export import recipe_json
from gpukeras.training import fit, predict

X = np.random.default_rng(1).normal(size=(40, 5))
ROWS = {"kind": "array", "values": X, "names": []}
LABELS = {"kind": "factor", "values": np.arange(40) % 3 + 1, "levels": ["a", "b", "c"]}
PIXELS = np.random.default_rng(2).uniform(size=(12, 8, 8, 1))
PICTURES = {"kind": "array", "values": PIXELS, "names": []}


def chunk(epoch, batch):
    return {"features": ROWS, "labels": LABELS, "weights": None}


def double(rows):
    return 2.0 * rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": ROWS, "text": {"columns": ["a"]}}, "`text` names columns, which `x` does"),
        (
            {"features": {"kind": "generator", "call": chunk, "steps": 2}, "weights": np.ones(40)},
            "`weights` cannot be given beside `x`, which makes its rows itself",
        ),
        ({"features": ROWS, "augment": {"flip": "horizontal"}}, "needs image files or an array"),
        ({"features": ROWS, "augment": {"flop": 1}}, "Unknown option `flop`"),
        ({"features": ROWS, "map": 3}, "`map` must be a Keras layer or a function"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, message):
    with pytest.raises(SpecError, match=message):
        builder.assemble(options={}, **arguments)


@pytest.mark.tf
@pytest.mark.parametrize("cache", ["auto", True])
def test_rows_in_sequence_are_mapped_and_augmented_too(cache):
    def pictures(epoch, batch):
        return {"features": PICTURES, "labels": None, "weights": None}

    features = {"kind": "generator", "call": pictures, "steps": 1}
    options = {"cache": cache, "shuffle": False, "batch_size": 12}
    data = builder.assemble(features, options, augment={"crop": [6, 4]}, map=double)
    assert data.recipe.shape == (6, 4, 1)
    assert builder.explain_varied(data) == "a function of one's own, crop 6 x 4"
    block = next(iter(open_loader(data, data.plan("CPU:0")).epoch(0)))
    assert block.arrays[0].shape == (12, 6, 4, 1)
    assert 1 < float(np.max(block.arrays[0])) <= 2


@pytest.mark.tf
def test_a_map_is_applied_in_training_and_asked_for_ever_after():
    options = {"batch_size": 40, "shuffle": False}
    mapped = builder.assemble(ROWS, options, LABELS, map=double)
    plain = builder.assemble({**ROWS, "values": 2 * X}, options, LABELS)
    models = [make_model(), make_model()]
    for model, data in zip(models, (mapped, plain), strict=True):
        fit.fit(model, data, {"epochs": 2, "engine": "keras"})
    for one, other in zip(models[0].get_weights(), models[1].get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    with pytest.raises(DataError, match="Training mapped its rows by a function: `newdata`"):
        predict.predict(models[0], ROWS)
    recipe = recipe_json.recipes_from(recipe_json.carry_recipe(mapped)["portable"])
    with pytest.raises(DataError, match="Training mapped its rows by a function: `x`"):
        builder.assemble(ROWS, options, recipe=recipe)
    again = builder.assemble(ROWS, options, recipe=recipe, map=double)
    found = predict.predict(models[0], data=again)["values"]
    np.testing.assert_allclose(found, predict.predict(models[1], data=plain)["values"], rtol=1e-4)


def small_pictures(epoch, batch):
    return {"features": PICTURES, "labels": None, "weights": None}


@pytest.mark.tf
def test_a_crop_leaves_what_is_kept_as_it_was(monkeypatch):
    monkeypatch.setattr("gpukeras.data.reader.storage.MEMORY_BYTES", 1000)
    features = {"kind": "generator", "call": small_pictures, "steps": 3}
    options = {"cache": True, "shuffle": False, "batch_size": 12}
    augment = {"crop": [6, 4]}
    data = builder.assemble(features, options, augment=augment)
    again = builder.assemble(features, options, recipe=data.recipe)
    for made in (data, again):
        assert made.recipe.shape == (6, 4, 1)
        assert made.sources[0].shape == (36, 8, 8, 1)


@pytest.mark.tf
def test_rows_that_all_lack_values_have_no_prediction_where_training_cropped():
    import keras

    options = {"batch_size": 12, "na": "drop"}
    labels = {"kind": "numeric", "values": np.arange(12.0), "levels": []}
    data = builder.assemble(PICTURES, options, labels, augment={"crop": [6, 4]})
    layers = [keras.Input((6, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    fit.fit(model, data, {"epochs": 1, "engine": "keras"})
    missing = {**PICTURES, "values": np.full((2, 8, 8, 1), np.nan)}
    found = predict.predict(model, missing)
    assert found["missing"].tolist() == [1, 2]


def test_nothing_varied_is_no_text():
    assert builder.explain_varied(builder.assemble(ROWS, {})) == ""
