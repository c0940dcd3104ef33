"""Converts a recipe to plain values for R's `saveRDS()` or JSON, and back.

Values are read by the type hints of the fields, so that a new recipe field with a default needs no
change here. R changes the form of values: numbers become doubles, a list of one becomes its only
item, an empty list becomes NULL or is left out. The type hints restore the original form.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from gpukeras.core.errors import DataError, SpecError
from gpukeras.data.recipe.columns import ColumnRule
from gpukeras.data.recipe.recipe import BaseEncoding, Encoding, MisfitError, Recipe
from gpukeras.data.recipe.targets import BaseLabel, LabelRule

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
