"""Converts the configurations of Keras objects to JSON values that no session changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

DIGITS = 6  # digits of learned numbers: sums on another processor differ in later ones
_DROPPED = ("build_config", "build_input_shape", "learning_rate")
_NAMES = ("name", "keras_history", "input_layers", "output_layers")


def digest(value: Any) -> str:
    """Returns a short digest of JSON values."""
    text = json.dumps(value, sort_keys=True, default=as_number)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def canonical(value: Any) -> Any:
    """Returns a Keras configuration as JSON values that are the same in every session.

    Keras counts the layers of a session ("dense_3"): names are numbered here by their first use.
    The shapes that a model was built with and the marshalled code of functions depend on the
    session; both are left out. So is a constant learning rate, because it changes during a
    training. Numbers are rounded as in `rounded()`.
    """
    return _Canon().convert(value)


def rounded(value: Any) -> Any:
    """Returns JSON values with each number rounded to 6 digits."""
    return map_leaves(
        lambda leaf: float(f"{leaf:.{DIGITS}g}") if isinstance(leaf, float) else leaf, value
    )


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Returns a nested value with `change` applied to every leaf of its mappings and sequences."""
    if isinstance(value, Mapping):
        return {str(key): map_leaves(change, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_leaves(change, item) for item in value]
    return change(value)


class _Canon:
    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def convert(self, value: Any, key: str = "") -> Any:
        """Converts the value of a key."""
        if isinstance(value, Mapping):
            return self._convert_mapping(value)
        if isinstance(value, (np.generic, np.ndarray)):
            value = value.tolist()
        if isinstance(value, (list, tuple)):
            return [self.convert(item, key) for item in value]
        if isinstance(value, str):
            return self._rename(value) if key in _NAMES else value
        plain = value is None or isinstance(value, (int, float))
        return rounded(value) if plain else type(value).__name__

    def _convert_mapping(self, value: Mapping[Any, Any]) -> Any:
        if value.get("class_name") == "__lambda__":
            return "a function"
        return {
            str(key): self.convert(item, str(key))
            for key, item in value.items()
            if key not in _DROPPED or (key == "learning_rate" and isinstance(item, Mapping))
        }

    def _rename(self, name: str) -> str:
        return self._names.setdefault(name, f"{unnumber(name)}#{len(self._names)}")


def unnumber(name: str) -> str:
    """Removes the numbers that Keras appended from a name, or from a path of names."""
    return re.sub(r"_\d+(?=/|$)", "", name)


def as_number(value: Any) -> Any:
    """Converts a NumPy number to a Python number, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")
