"""Converts recipes to JSON text and back, for R's gpu_recipe().

A recipe crosses to R as JSON text. R's dput() writes a number with 15 digits, which changes its
value; the text has all 17 digits, and only ASCII, which does not depend on the locale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gpukeras.core.errors import DataError
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.recipe.recipe import Encoding, InputsEncoding, Recipe
from gpukeras.data.recipe.serialization import from_portable, to_portable
from gpukeras.models import compatibility, model_checks, model_recipes


def recipes_from(value: Any, arg: str = "recipe") -> Recipe | None:
    """Returns the recipe of a value, or the value itself if it is one.

    The result is None for None, and for a model that has no recipe.

    Args:
        value: A dataset, a model, JSON text or plain values (see `serialization`), or a `Recipe`.
        arg: The user's name for it, for messages.

    Raises:
        SpecError: if it is none of these.
        DataError: for text or values that are not a recipe, or a newer one.
    """
    if value is None or isinstance(value, Recipe):
        return value
    if isinstance(value, Dataset):
        return value.recipe
    if isinstance(value, str):
        return from_portable(_parse(value, arg))
    if isinstance(value, Mapping):
        text = value.get("portable")
        return recipes_from(text, arg) if text else from_portable(value)
    return model_recipes.recipe_of(value)


def carry_recipe(value: Any) -> dict[str, Any]:
    """Returns a recipe for R to store.

    Args:
        value: A value that `recipes_from()` takes.

    Returns:
        `{recipe, portable}`: the recipe as a record for display, and as JSON text for use.

    Raises:
        DataError: for a model that gpukeras did not train.
    """
    recipe = recipes_from(value, "x")
    if recipe is None:
        raise DataError(
            "`x` is a model that gpu_fit() has not trained: it has no recipe.",
            hint="Give the gpu_dataset that it was trained on.",
            arg="x",
        )
    text = json.dumps(to_portable(recipe), separators=(",", ":"))
    return {"recipe": describe_recipe(recipe), "portable": text}


def describe_model(model: Model) -> dict[str, Any] | None:
    """Returns the recipe tied to a model as a record for R, see `describe_recipe()`; or None."""
    recipe = model_recipes.recipe_of(model)
    return None if recipe is None else describe_recipe(recipe)


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """Returns what R shows and looks up of a recipe; the numbers of arrays stay here."""
    kept = {name: getattr(recipe, name) for name in ("label", "formula", "na")}
    return {**_describe_encoding(recipe.features), **kept}


def _describe_encoding(encoding: Encoding) -> dict[str, Any]:
    settings = {field.name: getattr(encoding, field.name) for field in fields(encoding)}
    numbers = ("scale", "center", "fill", "marked")
    learned = {name: settings.pop(name, None) for name in numbers}
    if isinstance(encoding, InputsEncoding):
        parts = ((part.name, _describe_encoding(part.encoding)) for part in encoding.inputs)
        settings["inputs"] = [{"name": name, "recipe": part} for name, part in parts]
    return {
        **settings,
        "kind": encoding.kind,
        "shape": encoding.shape,
        "scaled": learned["scale"] is not None,
        "centred": learned["center"] is not None,
    }


def tie_recipe(model: Model, recipe: Any) -> None:
    """Ties a recipe to a model, such as one that was loaded from a file.

    Raises:
        ModelError: if the model's input does not fit the recipe.
        DataError: if the model has another recipe.
    """
    decoded = recipes_from(recipe)
    if decoded is not None:
        model_checks.check_model(model, compiled=False)
        compatibility.check_input(model, decoded)
        model_recipes.tie_recipe(model, decoded)


def _parse(text: str, arg: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"`{arg}` is not a recipe that gpukeras saved.",
            hint="Make it again by gpu_recipe().",
            arg=arg,
        ) from error
