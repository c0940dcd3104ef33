"""The functions that layers hold, such as activations, or compile() was given, and their names.

Keras writes and finds a function by its name, which several of a user's functions may share: those
of R are all called alike, and one may be called as a function of Keras' own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.core.keras_types import Model


def list_functions(model: Model) -> list[FunctionType]:
    """Returns the functions of a model's layers, each once."""
    layers = keras_private.list_layers(model)
    return _unique(value for layer in layers for value in vars(layer).values())


def list_own(functions: Iterable[FunctionType]) -> list[FunctionType]:
    """Returns those of the user that are not registered by a name of their own."""
    registered = runtime.keras().saving.get_registered_name
    return [
        function
        for function in functions
        # What exec() has made may have no module.
        if not (function.__module__ or "").startswith(("keras.", "gpukeras."))
        and registered(function) == function.__name__
    ]


def find_shared_names(model: Model, supplied: Callable[[str], bool]) -> tuple[str, ...]:
    """Returns the names by which a file cannot tell functions apart, those of compile() included.

    Args:
        model: The model that the file holds.
        supplied: Whether loading finds another function by a name, such as one of Keras' own.
    """
    functions = list_own(_unique([*list_functions(model), *_list_compiled(model)]))
    counts = Counter(function.__name__ for function in functions)
    return tuple(name for name, count in counts.items() if count > 1 or supplied(name))


def _list_compiled(model: Model) -> list[Any]:
    """Returns what a model's compile() was given as losses and metrics, or functions in these."""
    losses, _ = keras_private.given_losses(keras_private.compiled_loss(model))
    metrics = keras_private.given_metrics(keras_private.compiled_metrics(model))
    given = runtime.tree().flatten([losses, *metrics])
    return [keras_private.wrapped_function(each) or each for each in given]


def _unique(values: Iterable[Any]) -> list[FunctionType]:
    """Returns the functions among values, each once."""
    return list({id(value): value for value in values if isinstance(value, FunctionType)}.values())


def name_apart(functions: Iterable[FunctionType]) -> dict[str, FunctionType]:
    """Returns functions by names that differ."""
    return {f"function_{place}_of_a_copy": each for place, each in enumerate(functions)}


@contextmanager
def named_apart(names: Mapping[str, FunctionType]) -> Iterator[None]:
    """Gives functions other names inside the context: while Keras writes a configuration."""
    before = [(function, function.__name__) for function in names.values()]
    try:
        for name, function in names.items():
            function.__name__ = name
        yield
    finally:
        for function, name in before:
            function.__name__ = name
