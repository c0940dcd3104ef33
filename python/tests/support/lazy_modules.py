"""Keras and TensorFlow, imported when they are first used, so that other tests start at once."""

from collections.abc import Callable
from typing import Any

from gpukeras.backend import runtime


class Lazy:
    """Stands for a module, and imports it when an attribute is asked for."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._module = None

    def __getattr__(self, name: str) -> Any:
        if self._module is None:
            if name.startswith("_"):  # pytest and inspect ask each name of a file for theirs
                raise AttributeError(name)
            self._module = self._load()
        return getattr(self._module, name)


keras = Lazy(lambda: runtime.keras())
tf = Lazy(lambda: runtime.tensorflow())
layers = Lazy(lambda: runtime.keras().layers)
