"""Compares the encodings of recipes and checks that a model and a dataset fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpukeras.core.errors import DataError, SpecError
from gpukeras.data.preprocessing.column_order import check_same_names
from gpukeras.data.preprocessing.recipe import AS_IS, STRINGS, Input, Recipe
from gpukeras.data.preprocessing.targets import SEVERAL, LabelRule


def keeps_values(recipe: Recipe) -> bool:
    """Whether the recipe passes values to the model unchanged."""
    numbers = (recipe.center, recipe.scale, recipe.fill, recipe.mapped or None)
    own = recipe.kind in ("array", STRINGS, AS_IS) and numbers == (None,) * 4
    inputs = recipe.kind == "inputs" and all(keeps_values(part.recipe) for part in recipe.inputs)
    return own or inputs


def same_encoding(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes encode the same values as the same numbers; parts are told by name."""
    if AS_IS in (one.kind, other.kind):
        return keeps_values(one) and keeps_values(other)

    def essence(recipe: Recipe) -> tuple[Any, ...]:
        numbers = (recipe.center, recipe.scale, recipe.fill, recipe.marked)
        image = (recipe.interpolation, recipe.crop_to_aspect_ratio, recipe.uncropped)
        inputs = [(part.name, essence(part.recipe)) for part in _by_name(recipe)]
        parts = (recipe.groups, inputs)
        # If values are unchanged, the model itself decides which shapes it takes.
        shape = () if recipe.kind == "array" and keeps_values(recipe) else recipe.shape
        own = (recipe.kind, shape, recipe.columns, recipe.mapped)
        return (own, numbers, image, parts)

    return essence(one) == essence(other) and _same_labels(one, other)


def _same_labels(one: Recipe, other: Recipe) -> bool:
    """Whether labels become the same numbers; true if a recipe has none.

    Only classes are encoded. Other labels are taken unchanged, so their kinds may differ: a part of
    labels 0 and 1 may hold nothing but 1.
    """
    if one.label is None or other.label is None:
        return True
    return one.mixed == other.mixed and _label_essence(one.label) == _label_essence(other.label)


def check_labels(one: Recipe, other: Recipe, arg: str, owner: str) -> None:
    """Says what is other about the labels, if all else of two recipes is the same.

    Args:
        one: The recipe of training.
        other: The recipe of the encoded rows.
        arg: The user's name for the rows, for messages.
        owner: The labels of training in words, such as "those that trained `model`".

    Raises:
        DataError: if labels of one output differ in their kind or their levels.
    """
    if one.label is None or other.label is None or SEVERAL in (one.label.kind, other.label.kind):
        return
    if same_encoding(one, other) or not same_encoding(one, replace(other, label=one.label)):
        return
    found, expected = ("classes" if rule.levels else "numbers" for rule in (other.label, one.label))
    message = f"The labels of `{arg}` are {found}, but {owner} are {expected}."
    hint = "Give labels of the same kind, or make a new model for these."
    if found == expected:
        message = f"The labels of `{arg}` have other levels than {owner}."
        hint = "gpu_dataset(recipe = ) encodes by the levels of training; others need a new model."
    raise DataError(message, hint=hint, arg=arg)


def check_order(one: Recipe, other: Recipe, arg: str) -> None:
    """Checks by name that encoded rows have their columns in the order of training.

    Args:
        one: The recipe of training.
        other: The recipe of the encoded rows.
        arg: The user's name for the rows, for messages.

    Raises:
        DataError: if the names of both are known and differ.
    """
    if AS_IS in (one.kind, other.kind):
        return
    check_same_names(one.names, other.names, arg)
    for part, own in zip(_by_name(one), _by_name(other), strict=True):
        check_order(part.recipe, own.recipe, f"{arg}${part.name}")


def check_numbers(data: Any, arg: str) -> None:
    """Checks that a dataset's rows are numbers of one shape.

    Raises:
        SpecError: if they are not.
    """
    if not data.recipe.has_texts and data.recipe.kind != AS_IS:
        return
    gives = "texts" if data.recipe.has_texts else data.obstacle
    raise SpecError(
        f"`{arg}` gives {gives}: rows of numbers of one shape are needed.",
        hint="Such rows are taken by gpu_fit(), gpu_evaluate() and gpu_predict().",
        arg=arg,
    )


def _by_name(recipe: Recipe) -> list[Input]:
    """Returns the inputs of a recipe; their order in a row is not the model's."""
    return sorted(recipe.inputs, key=lambda part: part.name)


def _label_essence(label: LabelRule) -> tuple[Any, ...]:
    outputs = {output.name: _label_essence(output.rule) for output in label.outputs}
    return (label.levels, label.pixels, outputs)
