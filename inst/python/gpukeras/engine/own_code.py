"""Describes what is the user's own in a model, which its configuration may leave out.

A loss that closes over a number has the same configuration whatever the number is; so has an object
of a class without `get_config()`. Programs of one model serve another only if these are equal too.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.keras_types import Model
from gpukeras.engine.model_identity import NAMES, PASSING, REPLACED, list_parts

# Configurations describe objects of these, and functions of them are known by their names.
LIBRARIES = {"keras", "gpukeras", "tensorflow", "jax", "jaxlib", "numpy", *sys.stdlib_module_names}
# Where initial weights come from: variables have their values.
BEGINNINGS = tuple(
    f"{name}_initializer" for name in ("kernel", "recurrent", "bias", "embeddings", "beta", "gamma")
)
LEFT_OUT = {*NAMES, *PASSING, *REPLACED, *BEGINNINGS, "_build_shapes_dict"}


def describe_own_code(model: Model) -> list[Any]:
    """Describes the user's functions and objects in a model; [] if all of it is Keras' own.

    Functions are told apart by their code and by the values that they were made with, objects by
    their attributes. What cannot be described is told apart by its identity.

    Args:
        model: A compiled and built model; it must live as long as the description is used.
    """
    parts = list_parts(model)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    places = {id(part): f"part {place}" for place, part in enumerate(parts)}
    places |= {id(one): f"variable {place}" for place, one in enumerate(variables)}
    found = [_describe_part(part, places) for part in parts]
    return [[place, one] for place, one in enumerate(found) if one]


def _describe_part(part: Any, places: Mapping[int, str]) -> list[Any]:
    if not _is_library(part):
        return _describe_object(part, places, LEFT_OUT | _keras_attributes())
    return [
        [name, _describe(value, places)]
        for name, value in sorted(vars(part).items())
        if name not in LEFT_OUT and _is_own(value)
    ]


def _is_own(value: Any) -> bool:
    """Whether a value is the user's: an object of another class, or a function."""
    if not _is_library(value):
        return True
    named = isinstance(value, FunctionType) or _library_of(value) in ("keras", "gpukeras")
    return callable(value) and not named  # such as a partial function


def _describe_object(
    value: Any, places: Mapping[int, str], left_out: set[str] | frozenset[str] = frozenset()
) -> list[Any]:
    attributes = {name: one for name, one in vars(value).items() if name not in left_out}
    return [id(type(value)), _describe(attributes, {**places, id(value): "itself"})]


def _describe(value: Any, places: Mapping[int, str]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if id(value) in places:
        return places[id(value)]
    if isinstance(value, (list, tuple)):
        return [_describe(each, places) for each in value]
    if isinstance(value, Mapping):
        return [[str(key), _describe(each, places)] for key, each in sorted(value.items(), key=str)]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        made_with = [*cells, *(value.__defaults__ or ()), value.__kwdefaults__]
        return [id(value.__code__), _describe(made_with, {**places, id(value): "itself"})]
    if _is_library(value) or not hasattr(value, "__dict__"):
        return id(value)
    return _describe_object(value, places)


def _is_library(value: Any) -> bool:
    return _library_of(value) in LIBRARIES


def _library_of(value: Any) -> str:
    """Returns the name of the package that an object's class, or a function, comes from."""
    home = value if isinstance(value, FunctionType) else type(value)
    return str(home.__module__).split(".")[0]


@functools.cache
def _keras_attributes() -> frozenset[str]:
    """Returns the names of attributes that Keras gives to objects of its classes and theirs."""
    keras = runtime.keras()
    bare = (
        keras.layers.Layer(),
        keras.losses.Loss(),
        keras.metrics.Metric(),
        keras.optimizers.Optimizer(0.1),
    )
    return frozenset(name for one in bare for name in vars(one))
