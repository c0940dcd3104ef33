"""Recipes that leave the session: as text, and back from all that has or is one."""

import json

import numpy as np
import pytest
from small_fits import make_dataset, make_model

from gpukeras import DataError, ModelError, SpecError
from gpukeras.data.recipe import serialization
from gpukeras.export import recipe_json
from gpukeras.models import model_recipes


def test_a_recipe_comes_back_from_its_text_bit_for_bit():
    data = make_dataset(scale=True)
    record = recipe_json.carry_recipe(data)
    assert record["recipe"] == {
        "kind": "array",
        "shape": (5,),
        "row_shape": (5,),
        "crop": None,
        "names": (),
        "scaled": True,
        "centred": True,
        "label": data.recipe.label,
        "formula": "",
        "na": "error",
    }
    assert recipe_json.recipes_from(record["portable"]) == data.recipe
    assert recipe_json.recipes_from({"portable": record["portable"]}) == data.recipe


def test_recipes_are_taken_from_all_that_has_or_is_one():
    data = make_dataset()
    given = [data, data.recipe, serialization.to_portable(data.recipe)]
    assert [recipe_json.recipes_from(value) for value in given] == [data.recipe] * 3
    assert recipe_json.recipes_from(None) is None


@pytest.mark.parametrize("value", ["", "{", "[]", "3", '{"format": "else"}'])
def test_text_that_is_no_recipe_is_refused(value):
    with pytest.raises(DataError, match="`recipe` is not a recipe that gpukeras saved"):
        recipe_json.recipes_from(value)


def test_a_newer_recipe_is_refused():
    plain = {**serialization.to_portable(make_dataset().recipe), "version": 99}
    with pytest.raises(DataError, match="newer gpukeras"):
        recipe_json.recipes_from(json.dumps(plain))


@pytest.mark.tf
def test_a_model_takes_the_recipe_that_trained_it():
    data, model = make_dataset(scale=True), make_model()
    text = recipe_json.carry_recipe(data)["portable"]
    with pytest.raises(DataError, match="gpu_fit\\(\\) has not trained"):
        recipe_json.carry_recipe(model)
    recipe_json.tie_recipe(model, text)
    assert model_recipes.recipe_of(model) == data.recipe
    assert recipe_json.recipes_from(model) == data.recipe
    recipe_json.tie_recipe(model, None)
    with pytest.raises(DataError, match="encoded by its own means"):
        recipe_json.tie_recipe(model, make_dataset(seed=2, scale=True))


@pytest.mark.tf
def test_a_recipe_of_other_columns_does_not_stick():
    model = make_model()
    with pytest.raises(ModelError, match="takes rows of shape"):
        recipe_json.tie_recipe(model, make_dataset(columns=4))
    assert model_recipes.recipe_of(model) is None


@pytest.mark.tf
def test_what_has_no_recipe_is_refused():
    with pytest.raises(SpecError, match="must be a Keras 3 model"):
        recipe_json.recipes_from(np.zeros(3))
