"""The functions that layers hold, such as activations, and their names.

Keras writes and finds a function by its name, which several of a user's functions may share: those
of R are all called alike, and one may be called as a function of Keras' own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType

from gpukeras.backend import keras_private, runtime
from gpukeras.core.keras_types import Model


def list_functions(model: Model) -> list[FunctionType]:
    """Returns the functions of a model's layers, each once."""
    layers = keras_private.list_layers(model)
    values = (value for layer in layers for value in vars(layer).values())
    return list({id(value): value for value in values if isinstance(value, FunctionType)}.values())


def list_own_functions(model: Model) -> list[FunctionType]:
    """Returns those of the user that are not registered by a name of their own."""
    registered = runtime.keras().saving.get_registered_name
    return [
        function
        for function in list_functions(model)
        # What exec() has made may have no module.
        if not (function.__module__ or "").startswith(("keras.", "gpukeras."))
        and registered(function) == function.__name__
    ]


def find_shared_names(model: Model, supplied: Callable[[str], bool]) -> tuple[str, ...]:
    """Returns the names by which a file cannot tell functions apart.

    Args:
        model: The model that the file holds.
        supplied: Whether loading finds another function by a name, such as one of Keras' own.
    """
    counts = Counter(function.__name__ for function in list_own_functions(model))
    return tuple(name for name, count in counts.items() if count > 1 or supplied(name))


@contextmanager
def named_apart(model: Model) -> Iterator[dict[str, FunctionType]]:
    """Gives the user's functions names that differ, inside the context, and yields all by name."""
    names = {function.__name__: function for function in list_functions(model)}
    own = list_own_functions(model)
    before = [function.__name__ for function in own]
    try:
        for place, function in enumerate(own):
            function.__name__ = f"function_{place}_of_a_copy"
            names[function.__name__] = function
        yield names
    finally:
        for function, name in zip(own, before, strict=True):
            function.__name__ = name
