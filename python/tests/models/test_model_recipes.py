import numpy as np
import pytest
from rules import label_rule
from small_fits import make_dataset, make_model

from gpukeras import DataError, ModelError
from gpukeras.data import builder
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe
from gpukeras.models import mlp, model_recipes
from gpukeras.training import evaluate, fit, predict

pytestmark = pytest.mark.tf


def test_the_recipe_is_tied_and_does_not_keep_the_model_alive():
    import gc
    import weakref

    data = make_dataset()
    model = mlp.build_mlp(data, {})
    assert model_recipes.recipe_of(model) is None
    model_recipes.tie_recipe(model, data.recipe)
    assert model_recipes.recipe_of(model) is data.recipe
    watcher = weakref.ref(model)
    del model
    gc.collect()
    assert watcher() is None


def test_mixed_classes_want_a_loss_of_one_column_a_class():
    x = {"kind": "array", "values": np.random.default_rng(1).normal(size=(40, 5)), "names": []}
    labels = {"kind": "factor", "values": np.arange(40) % 2 + 1, "levels": ["a", "b"]}
    data = builder.assemble(x, {"batch_size": 8}, labels, augment={"mixup": 0.2})
    model = mlp.build_mlp(data, {})
    assert (model.loss, model.output_shape) == ("categorical_crossentropy", (None, 2))
    report = fit.fit(model, data, {"epochs": 2, "engine": "keras"})
    assert report.epochs == 2
    found = predict.predict(model, x, type="class")
    assert found["levels"] == ["a", "b"]
    assert evaluate.evaluate(model, data)["rows"] == 40
    with pytest.raises(ModelError, match="mixes classes by `mixup`"):
        fit.fit(make_model(units=2), data, {"epochs": 1})
    plain = builder.assemble(x, {"batch_size": 8}, labels)
    with pytest.raises(DataError, match="was encoded by its own means and levels") as told:
        evaluate.evaluate(model, plain)
    assert told.value.hint.startswith("Make it by gpu_dataset(recipe = model)")
    again = builder.assemble(x, {"batch_size": 8}, labels, recipe=data.recipe)
    assert evaluate.evaluate(model, again)["metrics"].keys() == {"loss", "accuracy"}


def test_labels_that_come_later_are_remembered_too():
    model, label = make_model(), label_rule("class", units=2, levels=("a", "b"))
    for own in (None, label, label_rule("class", units=2, levels=("a", "b"))):
        model_recipes.tie_recipe(model, Recipe(ArrayEncoding((5,)), label=own))
    assert model_recipes.recipe_of(model).label is label
    with pytest.raises(DataError, match="are numbers, but those that trained `model` are classes"):
        model_recipes.tie_recipe(model, Recipe(ArrayEncoding((5,)), label=label_rule("number")))


def test_a_model_is_without_its_recipe_for_a_while():
    model, data = make_model(), make_dataset(scale=True)
    model_recipes.tie_recipe(model, data.recipe)
    with model_recipes.untied(model):
        assert model_recipes.recipe_of(model) is None
        model_recipes.tie_recipe(model, make_dataset(scale=False).recipe)
    assert model_recipes.recipe_of(model) is data.recipe
    other = make_model()
    with model_recipes.untied(other):
        model_recipes.tie_recipe(other, data.recipe)
    assert model_recipes.recipe_of(other) is None
