"""Compares the encodings of recipes and checks that a model and a dataset fit together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpukeras.core.errors import DataError, SpecError
from gpukeras.data.arrays import check_same_names
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    BatchesEncoding,
    Encoding,
    ImageEncoding,
    Input,
    InputsEncoding,
    Recipe,
    SeriesEncoding,
)
from gpukeras.data.recipe.targets import SEVERAL, LabelRule


def same_encoding(recipe: Recipe, other: Recipe) -> bool:
    """Whether two recipes encode the same values as the same numbers; parts are told by name."""
    if isinstance(recipe.features, BatchesEncoding) or isinstance(other.features, BatchesEncoding):
        return recipe.keeps_values and other.keeps_values
    if recipe.mapped != other.mapped or not _same_labels(recipe, other):
        return False
    return _essence(recipe.features, recipe.mapped) == _essence(other.features, other.mapped)


def _essence(encoding: Encoding, mapped: bool = False) -> Any:
    """Returns what decides on the numbers that the model gets, to be compared."""
    match encoding:
        case InputsEncoding():
            return [(part.name, _essence(part.encoding)) for part in _by_name(encoding)]
        case ArrayEncoding() if encoding.keeps_values and not mapped:
            return ArrayEncoding  # the model itself decides which shapes it takes
        case SeriesEncoding():
            return encoding.shape, encoding.columns
        case ImageEncoding():
            return replace(encoding, path_column="")
    return encoding


def _same_labels(recipe: Recipe, other: Recipe) -> bool:
    """Whether labels become the same numbers; true if a recipe has none.

    Only classes are encoded. Other labels are taken unchanged, so their kinds may differ: a part of
    labels 0 and 1 may hold nothing but 1.
    """
    if recipe.label is None or other.label is None:
        return True
    return recipe.mixed == other.mixed and _label_essence(recipe.label) == _label_essence(
        other.label
    )


def check_labels(recipe: Recipe, other: Recipe, arg: str, owner: str) -> None:
    """Says what is other about the labels, if all else of two recipes is the same.

    Args:
        recipe: The recipe of training.
        other: The recipe of the encoded rows.
        arg: The user's name for the rows, for messages.
        owner: The labels of training in words, such as "those that trained `model`".

    Raises:
        DataError: if labels of one output differ in their kind or their levels.
    """
    if (
        recipe.label is None
        or other.label is None
        or SEVERAL in (recipe.label.kind, other.label.kind)
    ):
        return
    if same_encoding(recipe, other) or not same_encoding(
        recipe, replace(other, label=recipe.label)
    ):
        return
    found, expected = (
        "classes" if rule.levels else "numbers" for rule in (other.label, recipe.label)
    )
    message = f"The labels of `{arg}` are {found}, but {owner} are {expected}."
    hint = "Give labels of the same kind, or make a new model for these."
    if found == expected:
        message = f"The labels of `{arg}` have other levels than {owner}."
        hint = "gpu_dataset(recipe = ) encodes by the levels of training; others need a new model."
    raise DataError(message, hint=hint, arg=arg)


def check_order(encoding: Encoding, other: Encoding, arg: str) -> None:
    """Checks by name that encoded rows have their columns in the order of training.

    Args:
        encoding: The encoding of training.
        other: The encoding of the rows.
        arg: The user's name for the rows, for messages.

    Raises:
        DataError: if the names of both are known and differ.
    """
    if isinstance(encoding, BatchesEncoding) or isinstance(other, BatchesEncoding):
        return
    check_same_names(encoding.names, other.names, arg)
    for part, own in zip(_by_name(encoding), _by_name(other), strict=True):
        check_order(part.encoding, own.encoding, f"{arg}${part.name}")


def check_numbers(data: Any, arg: str) -> None:
    """Checks that a dataset's rows are numbers of one shape.

    Raises:
        SpecError: if they are not.
    """
    texts = data.recipe.features.has_texts
    if not texts and not isinstance(data.recipe.features, BatchesEncoding):
        return
    gives = "texts" if texts else data.obstacle
    raise SpecError(
        f"`{arg}` gives {gives}: rows of numbers of one shape are needed.",
        hint="Such rows are taken by gpu_fit(), gpu_evaluate() and gpu_predict().",
        arg=arg,
    )


def _by_name(encoding: Encoding) -> list[Input]:
    """Returns the inputs; their order in a row is not the model's."""
    return sorted(encoding.inputs, key=lambda part: part.name)


def _label_essence(label: LabelRule) -> tuple[Any, ...]:
    outputs = {output.name: _label_essence(output.rule) for output in label.outputs}
    return (label.levels, label.pixels, outputs)
