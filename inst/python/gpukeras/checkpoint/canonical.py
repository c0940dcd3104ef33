"""Settings of Keras' objects as JSON values that are the same in every session, and digests."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

DIGITS = 6  # of learned numbers: another processor's sums differ in the last
_DROPPED = ("build_config", "build_input_shape", "learning_rate")
_NAMES = ("name", "keras_history", "input_layers", "output_layers")


def digest(value: Any) -> str:
    """A short digest of JSON values."""
    text = json.dumps(value, sort_keys=True, default=as_number)
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def canonical(value: Any) -> Any:
    """Keras' settings as JSON values that are the same in every session.

    Keras counts the layers of a session ("dense_3"): names are numbered here by their first use.
    Shapes that a model was built with depend on who built it, and what a function is compiled to
    depends on the session; both are left out, and so is a plain learning rate, which changes.
    Numbers are rounded as `rounded()` does.
    """
    return _Canon().convert(value)


def rounded(value: Any) -> Any:
    """JSON values with 6 digits of each number."""
    return map_leaves(
        lambda leaf: float(f"{leaf:.{DIGITS}g}") if isinstance(leaf, float) else leaf, value
    )


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """A value whose mappings and sequences, however deep, hold what `change` makes of theirs."""
    if isinstance(value, Mapping):
        return {str(key): map_leaves(change, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [map_leaves(change, item) for item in value]
    return change(value)


class _Canon:
    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def convert(self, value: Any, key: str = "") -> Any:
        """The value that stands under a key."""
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
    """A name, or a path of names, without the numbers that Keras gave."""
    return re.sub(r"_\d+(?=/|$)", "", name)


def as_number(value: Any) -> Any:
    """NumPy's numbers as Python's, for JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")
