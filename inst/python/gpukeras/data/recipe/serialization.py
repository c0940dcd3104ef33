"""Saves recipes as plain values and reads them, and tells whether two encode alike.

Values are read by the type hints of the fields, so that a new recipe field with a default needs no
change here. R changes the form of values: numbers become doubles, a list of one becomes its only
item, an empty list becomes NULL or is left out. The type hints restore the original form.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.data.arrays import check_same_names
from gpukeras.data.recipe.columns import ColumnRule
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    BaseEncoding,
    BatchesEncoding,
    Encoding,
    ImageEncoding,
    Input,
    InputsEncoding,
    MisfitError,
    Recipe,
    SeriesEncoding,
)
from gpukeras.data.recipe.targets import SEVERAL, BaseLabel, LabelRule

# Plain values -------------------------------------------------------------------------------------

FORMAT = "gpukeras recipe"
# What follows from a record's fields, and is stored too: it tells whether a part of them was lost.
TOLD: dict[type, tuple[str, Any]] = {
    BaseEncoding: ("shape", tuple[int, ...]),
    BaseLabel: ("units", int),
}
# Unions of records that a tag tells apart, and what they are called.
TAGGED = {
    get_args(Encoding): "rows",
    get_args(ColumnRule): "a column",
    get_args(LabelRule): "labels",
}
VERSION = 1  # rises when older files would be read wrongly

Record = TypeVar("Record")


def to_portable(recipe: Recipe) -> dict[str, Any]:
    """Converts a recipe to dicts, lists, strings, numbers, bools and None.

    Floats keep all their bits; an empty tuple in a field that may be None is restored as None.
    """
    return {"format": FORMAT, "version": VERSION, "recipe": _plain(recipe)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        plain = {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        if isinstance(value, BaseEncoding):
            plain["kind"] = value.kind
        for kind, (name, _) in TOLD.items():
            if isinstance(value, kind):
                plain[name] = _plain(getattr(value, name))
        return plain
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def from_portable(plain: Any) -> Recipe:
    """Restores a recipe from plain values, also after a round trip through R or JSON.

    Raises:
        DataError: if the values are not a recipe, or one of a newer version of gpukeras.
    """
    if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
        raise DataError("`recipe` is not a recipe that gpukeras saved.", arg="recipe")
    version = _number(plain.get("version"), int, "version")
    if version > VERSION:
        raise _newer(f"has version {version}, this one reads up to {VERSION}")
    return _read_record(Recipe, plain.get("recipe"), "recipe")


def _read_record(kind: type[Record], value: Any, where: str) -> Record:
    if not isinstance(value, Mapping):
        raise _broken(where)
    known = {field.name: field for field in fields(kind) if field.init}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    unknown = [name for name in value if name not in known]
    if unknown:
        raise _newer(f"has the field `{unknown[0]}`, which is unknown here")
    values = {}
    for field in known.values():
        item = value.get(field.name)
        hint = hints[field.name]
        needed = field.default is MISSING
        # NULL means empty if the field may be empty; otherwise, and if left out, the default.
        if needed or item is not None or (field.name in value and _may_be_empty(hint)):
            values[field.name] = _read(hint, item, f"{where}${field.name}")
    try:
        return kind(**values)
    except MisfitError as error:
        raise _broken(f"{where}${error}") from error
    except SpecError as error:
        raise _broken(where) from error


def _read_tagged(hints: Sequence[Any], value: Any, where: str) -> Any:
    """Reads the record that the tag `kind` names; compares what it tells with what is stored."""
    if not isinstance(value, Mapping):
        raise _broken(where)
    kinds, tag = {hint.kind: hint for hint in hints}, value.get("kind")
    if not isinstance(tag, str):
        raise _broken(f"{where}$kind")
    if tag not in kinds:
        raise _newer(f"has {TAGGED[tuple(hints)]} of the kind `{tag}`, which is unknown here")
    told = next((told for kind, told in TOLD.items() if issubclass(kinds[tag], kind)), None)
    apart = ("kind", told[0]) if told else ("kind",)
    stored = {name: item for name, item in value.items() if name not in apart}
    record = _read_record(kinds[tag], stored, where)
    if told:
        name, hint = told
        if _read(hint, value.get(name), f"{where}${name}") != getattr(record, name):
            raise _broken(f"{where}${name}")
    return record


def _read(hint: Any, value: Any, where: str) -> Any:
    """Converts a value to the type of its field."""
    if get_origin(hint) in (Union, types.UnionType):
        return _read_union(get_args(hint), value, where)
    if get_origin(hint) is tuple:
        return tuple(_read(get_args(hint)[0], item, where) for item in _items(value))
    if is_dataclass(hint):
        return _read_record(hint, value, where)  # type: ignore[arg-type]
    if hint in (int, float):
        return _number(value, hint, where)
    if not isinstance(value, hint):
        raise _broken(where)
    return value


def _read_union(hints: Sequence[Any], value: Any, where: str) -> Any:
    if type(None) in hints and (value is None or (isinstance(value, list) and not value)):
        return None
    others = tuple(hint for hint in hints if hint is not type(None))
    if others in TAGGED:
        return _read_tagged(others, value, where)
    if str in others and isinstance(value, str):
        return value
    return _read(next((hint for hint in others if hint is not str), str), value, where)


def _may_be_empty(hint: Any) -> bool:
    """Whether a field may hold an empty tuple, or None."""
    return get_origin(hint) is tuple or type(None) in get_args(hint)


def _items(value: Any) -> Sequence[Any]:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if value is None:
        return ()
    return value if isinstance(value, (list, tuple)) else (value,)


def _number(value: Any, kind: type, where: str) -> Any:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not plain or not math.isfinite(value) or kind(value) != value:
        raise _broken(where)
    return kind(value)


def _broken(where: str) -> DataError:
    return DataError(
        f"`recipe` is damaged: `{where}` is not what gpukeras saved.",
        hint="Save the recipe anew.",
        arg="recipe",
        field=where,
    )


def _newer(how: str) -> DataError:
    return DataError(
        f"`recipe` was saved by a newer gpukeras: it {how}.",
        hint="Update gpukeras.",
        arg="recipe",
    )


# Comparisons --------------------------------------------------------------------------------------


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
