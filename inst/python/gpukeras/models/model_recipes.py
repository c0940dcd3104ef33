"""Ties the recipe of the training data to a model, which stays an ordinary Keras model."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpukeras.core.errors import DataError
from gpukeras.core.keras_types import Model
from gpukeras.data.recipe.recipe import BatchesEncoding, Recipe, without_absent
from gpukeras.data.recipe.serialization import check_labels, check_order, same_encoding
from gpukeras.models.model_checks import check_model

_RECIPES: weakref.WeakKeyDictionary[Any, Recipe] = weakref.WeakKeyDictionary()


def tie_recipe(model: Model, recipe: Recipe) -> None:
    """Ties the recipe of the training data to a model: the first one, with the first labels.

    Raises:
        DataError: if the model was trained on data with another encoding.
    """
    check_encoding(model, recipe)
    tied = _RECIPES.get(model)
    if not isinstance(recipe.features, BatchesEncoding) and (tied is None or tied.label is None):
        _RECIPES[model] = recipe


def forget_absent(model: Model) -> None:
    """Takes all levels of the recipe tied to a model for such as have training rows."""
    if model in _RECIPES:
        _RECIPES[model] = without_absent(_RECIPES[model])


def recipe_of(model: Model) -> Recipe | None:
    """Returns the recipe tied to a model, or None for a model that gpukeras did not train."""
    check_model(model, compiled=False)
    return _RECIPES.get(model)


@contextmanager
def untied(model: Model) -> Iterator[None]:
    """Unties a model from its recipe within the context, and from any that is tied there after."""
    tied = _RECIPES.pop(model, None)
    try:
        yield
    finally:
        _RECIPES.pop(model, None)
        if tied is not None:
            _RECIPES[model] = tied


def check_encoding(model: Model, recipe: Recipe) -> None:
    """Checks that data is encoded like the data that trained the model."""
    tied = _RECIPES.get(model)
    if tied is None:
        return
    if not same_encoding(tied, recipe):
        check_labels(tied, recipe, "data", "those that trained `model`")
        raise DataError(
            "`data` was encoded by its own means and levels, not by those that trained `model`.",
            hint="Make it by gpu_dataset(recipe = model); gpu_evaluate() and gpu_predict() also "
            "take the data frame or matrix itself.",
            arg="data",
        )
    check_order(tied.features, recipe.features, "data")
