"""Recipes that leave the session and come back: what R's gpu_recipe() holds.

The recipe crosses as JSON text. A number of R's is written by dput() with 15 digits, and would come
back as another one; the text has all 17, and only ASCII, which no locale changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpukeras.core.errors import DataError
from gpukeras.data.base import Dataset
from gpukeras.data.preprocessing.recipe import Recipe
from gpukeras.data.preprocessing.serialization import from_portable, to_portable
from gpukeras.models import builder, compatibility


def recipes_from(value: Any, arg: str = "recipe") -> Recipe | None:
    """The recipe that a value has or is; None for None, and for a model that has none.

    Args:
        value: A dataset, a model, JSON text or plain values (see `serialization`), or a `Recipe`.
        arg: The user's name for it, for messages.

    Raises:
        SpecError: if it is nothing of that kind.
        DataError: for text or values that are no recipe, or a newer one.
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
    return builder.recipe_of(value)


def carry_recipe(value: Any) -> dict[str, Any]:
    """A recipe for R to keep.

    Args:
        value: What `recipes_from()` takes.

    Returns:
        `{recipe, portable}`: the recipe as a record, to be looked at, and as JSON text, to be used.

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
    return {"recipe": recipe, "portable": text}


def tie_recipe(model: Any, recipe: Any) -> None:
    """Gives a model, such as one that was loaded from a file, the recipe that trained it.

    Raises:
        ModelError: if the model's input does not fit the recipe.
        DataError: if the model has another recipe.
    """
    found = recipes_from(recipe)
    if found is not None:
        builder.check_model(model, compiled=False)
        compatibility.check_input(model, found)
        builder.tie_recipe(model, found)


def _parse(text: str, arg: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"`{arg}` is not a recipe that gpukeras saved.",
            hint="Make it again by gpu_recipe().",
            arg=arg,
        ) from error
