"""Finds the custom classes, functions and lambdas that loading a `.keras` file needs.

Keras writes their names, not their definitions; for a lambda it writes Python code.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukeras.backend.keras_files import read_settings
from gpukeras.export.safe_load import is_lambda, walk_settings

KERAS = ("keras", "keras_hub", "keras_cv", "keras_nlp")  # packages that Keras itself searches


@dataclass(frozen=True)
class Needs:
    """Custom objects that loading needs.

    Args:
        objects: Names of classes and functions in the model.
        compiled: Names of those that only its `compile()` needs: losses, metrics, an optimizer.
        lambdas: Where lambdas are: names of layers, or "its compile()".
        shared: Names that several functions of the saved model have, or one of the user's and one
            of Keras' own: the file cannot tell them apart, and loading gives one function to all.
    """

    objects: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    lambdas: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


def read_needs(path: Path, ours: Callable[[str], bool] = lambda name: False) -> Needs:
    """Returns what loading a file needs.

    Args:
        path: An archive that is safe to read, within `zip_limits`.
        ours: Whether Keras has a function of that name.
    """
    return parse_needs(read_settings(path), ours)


def parse_needs(settings: Any, ours: Callable[[str], bool] = lambda name: False) -> Needs:
    """Returns what a model's settings, as Keras writes them, need; see `read_needs()`."""
    if not isinstance(settings, Mapping):
        return Needs()
    own = {name: part for name, part in settings.items() if name != "compile_config"}
    objects = _unique(name for name in _names(own) if not ours(name))
    compiled = _unique(_names(settings.get("compile_config")))
    later = (name for name in compiled if name not in objects and not ours(name))
    lambdas = (
        owner or "its compile()" for setting, owner in walk_settings(settings) if is_lambda(setting)
    )
    return Needs(objects, _unique(later), _unique(lambdas))


def _unique(names: Iterator[str] | Collection[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _names(settings: Any) -> Iterator[str]:
    """Yields names outside Keras' own modules, and Keras' functions, whose module is not written.

    Objects from R and from `exec()` have no module or "builtins".
    """
    for setting, _ in walk_settings(settings):
        module, kind, inner = (
            setting.get("module"),
            setting.get("class_name"),
            setting.get("config"),
        )
        if "module" not in setting or str(module).split(".")[0] in KERAS:
            continue
        if module != "builtins" and not setting.get("registered_name"):
            continue  # not a class that could be given: Keras refuses it
        name = inner if kind == "function" else setting.get("registered_name") or kind
        if isinstance(name, str):
            yield name


def find_missing(names: Collection[str], knows: Callable[[str], bool]) -> tuple[str, ...]:
    """Returns the names without a class or function.

    Args:
        names: As Keras wrote them: "Name", or "package>Name" for registered objects.
        knows: Whether an object of that name exists.
    """
    return tuple(name for name in names if not knows(name))


def short_name(name: str) -> str:
    """Returns the "Name" of a "package>Name"."""
    return name.rpartition(">")[2]


def spread_names(objects: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Returns objects by the names that Keras looks up: "Name" stands for "package>Name" too.

    Args:
        objects: Classes and functions by name, as the user gave them.
        names: As Keras wrote them.
    """
    short = {name: short_name(name) for name in names}
    spread = {name: objects[own] for name, own in short.items() if own in objects}
    return {**spread, **objects}
