"""Finds the settings in which models of one structure differ, and makes them arguments of a step.

Models have one structure if their configurations, and what the user's own code in them holds, are
equal but for such numbers. Initial weights and seeds are part of a model's state, so what makes
them is left out of the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from gpukeras.backend import keras_private, stacking
from gpukeras.core.attributes import replaced
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.core.messages import find_reason
from gpukeras.models.families.registry import first_origin
from gpukeras.models.families.spec import Family
from gpukeras.models.identity import (
    REFUSED,
    describe_own_code,
    describe_session,
    describe_setting,
    is_initial,
    read_config,
)
from gpukeras.models.label_numbers import LabelNumbers

# Settings of optimizers that their update reads as a number only, whatever its value. The learning
# rate is a variable, so it is part of the state. `momentum` of SGD is not here: where it is 0,
# Keras leaves out half of the update, so it is part of the structure.
OPTIMIZER_NUMBERS = ("weight_decay", "beta_1", "beta_2", "rho", "epsilon")
PENALTIES = ("l1", "l2")
SCALES = ("scale", "offset")  # of layers that give predictions the unit of the labels
FAMILY, BREAKS = "family", "breaks"
FAMILY_CLASSES = ("FamilyOutput", "FamilyLoss")
FROM_LABELS = ("center", "scale", "shift", BREAKS)  # of a family
Path = tuple[Any, ...]


@dataclass(frozen=True)
class Structure:
    """What models have in common that can be stacked, and the numbers that may differ.

    Args:
        key: Equal for models of one structure.
        numbers: The numbers by their place in the configuration.
        model: The model; the key names its objects by their identity, so they must live on.
        rescaling: The names of the layers that rescale, by the places of their numbers.
        changed: Numbers that are not those of the model: a program must take them as arguments.
    """

    key: str
    numbers: Mapping[Path, float]
    model: Model
    rescaling: Mapping[Path, str] = field(default_factory=dict)
    changed: frozenset[Path] = frozenset()


@dataclass(frozen=True)
class Binding:
    """A setting of a model that a step takes as an argument.

    Args:
        name: The setting in words, such as "dense_1.rate".
        owner: The object that has it.
        attribute: The attribute.
        replace: Makes a stand-in for the attribute from the number.
    """

    name: str
    owner: Any
    attribute: str
    replace: Callable[[Any, Any], Any]

    def bound_to(self, number: Any) -> AbstractContextManager[None]:
        """A context in which a number, such as a traced tensor, stands in the setting's place."""
        return replaced(self.owner, **{self.attribute: self.replace(self.owner, number)})


# Structures --------------------------------------------------------------------------------------


def describe_structure(model: Model) -> Structure:
    """Returns the structure of a compiled and built model.

    Raises:
        ModelError: if the model has no configuration.
    """
    try:
        plain = read_config(model)
    except REFUSALS as error:
        raise ModelError(
            f"The model has no configuration to compare: {find_reason(error)}.",
            hint="Give it a get_config() method, or build it of Keras' layers.",
            arg="model",
        ) from error
    numbers: dict[Path, float] = {}
    plain["variables"] = _describe_variables(model)
    # Besides the settings, in which `_strip()` leaves out a policy's name as it does all names.
    plain["precision"] = [layer.dtype_policy.name for layer in keras_private.list_layers(model)]
    plain["scaled"] = keras_private.scales_loss(model.optimizer)
    plain["adapted"] = _describe_adapted(model)
    plain["own"] = describe_own_code(model)
    plain["session"] = describe_session(model)
    layers = keras_private.list_layers(model)
    names = {f"layer {place}": layer.name for place, layer in enumerate(layers)}
    config = plain["model"]
    key = json.dumps(_strip(plain, (), "", numbers), sort_keys=True)
    rescaling = {
        path: names.get(_layer_of(config, path), "")
        for path in numbers
        if path[0] == "model" and path[-1] in SCALES and FAMILY not in path
    }
    return Structure(key, numbers, model, rescaling)


def _describe_variables(model: Model) -> list[Any]:
    """Describes variables, and what they have besides what their layers gave them."""
    optimizer = keras_private.without_scaling(model.optimizer)
    layers = keras_private.list_layers(model)
    given = {id(value) for layer in layers for value in vars(layer).values() if value is not None}

    def describe(value: Any) -> str:
        return "its layer's" if id(value) in given else describe_setting(value)

    return [
        [
            list(variable.shape),
            str(variable.dtype),
            bool(variable.trainable),
            describe(variable.constraint),
            describe(variable.regularizer),
            keras_private.is_left_out_of_decay(optimizer, variable),
        ]
        for variable in model.variables
    ]


def _describe_adapted(model: Model) -> list[Any]:
    """Returns the values of layers that compute with constants made from their variables."""
    return [
        [variable.numpy().tolist() for variable in layer.variables]
        for layer in keras_private.list_layers(model)
        if type(layer).__module__.startswith(REFUSED)
    ]


def _strip(value: Any, path: Path, kind: str, numbers: dict[Path, float]) -> Any:
    """Returns a configuration without what may differ, and takes out its numbers.

    Args:
        value: The configuration, or a part of it.
        path: The part's place.
        kind: The class of Keras' whose object the part belongs to, or "".
        numbers: Where numbers are put.
    """
    if path[-1:] == (FAMILY,) and kind in FAMILY_CLASSES:
        return _strip_family(value, path, numbers)
    if isinstance(value, list):
        return [_strip(each, (*path, i), kind, numbers) for i, each in enumerate(value)]
    if isinstance(value, dict):
        if "class_name" in value:  # of a class of the user's nobody knows what its numbers do
            known = str(value.get("module", "")).startswith(("keras", "gpukeras.models.families"))
            kind = str(value["class_name"]) if known else ""
        return {
            key: _strip(each, (*path, key), kind, numbers)
            for key, each in value.items()
            if key != "name" and not (path[-1:] == ("config",) and is_initial(key))
        }
    if not _may_differ(path, kind, value):
        return value
    numbers[path] = float(value)
    return "number"


def _strip_family(value: Any, path: Path, numbers: dict[Path, float]) -> Any:
    """Returns a family without what it has from labels, and takes out the numbers of a step."""
    numbers.update({(*path, *key): number for key, number in family_numbers(value, path).items()})
    kept = {name: each for name, each in value.items() if name not in FROM_LABELS}
    return {**kept, BREAKS: len(value[BREAKS])}


def family_numbers(config: Mapping[str, Any], path: Path) -> dict[Path, float]:
    """Returns the numbers that a step takes from a family: of its layer, or of its loss."""
    family = Family.from_config(config)
    if path[0] == "compiled":
        return {(BREAKS, place): value for place, value in enumerate(family.breaks)}
    return {(name,): value for name, value in asdict(first_origin(family)).items()}


def _may_differ(path: Path, kind: str, value: Any) -> bool:
    """Whether a setting may differ between models of one structure."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or len(path) < 2:
        return False
    name = path[-1]
    if path[:2] == ("compiled", "optimizer"):
        known = name in OPTIMIZER_NUMBERS and path[-2] == "config" and kind != ""
        return name == "learning_rate" or known
    if kind == "Dropout":
        return name == "rate" and value > 0  # at 0 it has no generator of random numbers
    if kind == "Rescaling":
        return name in SCALES
    return name in PENALTIES and kind in ("L1", "L2", "L1L2")


def adapt_structure(structure: Structure, learned: LabelNumbers) -> Structure:
    """Returns the structure of a model that is to have other numbers from labels."""
    numbers = dict(structure.numbers)
    for path in numbers if learned else ():
        name = path[-1]
        if path in structure.rescaling:
            scales = learned.scales.get(structure.rescaling[path], {})
            numbers[path] = float(scales.get(str(name), numbers[path]))
        elif learned.family is not None and FAMILY in path:
            numbers[path] = float(
                learned.family.breaks[name]
                if path[0] == "compiled"
                else getattr(first_origin(learned.family), str(name))
            )
    changed = frozenset(path for path in numbers if numbers[path] != structure.numbers[path])
    return replace(structure, numbers=numbers, changed=changed)


# Bindings ----------------------------------------------------------------------------------------


def bind_numbers(model: Model, paths: Sequence[Path]) -> list[Binding]:
    """Returns bindings for settings of a model, in order.

    Args:
        model: The model whose step is traced.
        paths: Places in its configuration, as in `Structure.numbers`; not the learning rate's.
    """
    layers = {
        f"layer {place}": layer for place, layer in enumerate(keras_private.list_layers(model))
    }
    layers.update({layer.name: layer for layer in layers.values()})
    config = read_config(model)["model"]
    return [_bind(model, layers, config, path) for path in paths]


def is_rate(path: Path) -> bool:
    """Whether a place in a configuration is that of the learning rate, which is a variable."""
    return path[:2] == ("compiled", "optimizer") and path[-1] == "learning_rate"


def _bind(model: Model, layers: Mapping[str, Any], config: Any, path: Path) -> Binding:
    name = str(path[-1])
    if path[:2] == ("compiled", "loss"):
        return Binding(f"loss.{name}", model.loss, FAMILY, partial(_break_at, path[-1]))
    if path[0] == "compiled":
        return Binding(
            f"optimizer.{name}", keras_private.without_scaling(model.optimizer), name, _as_is
        )
    layer = layers[_layer_of(config, path)]
    if name == "rate":
        return Binding(f"{layer.name}.rate", layer, "call", _drop)
    if path[-2] == FAMILY:
        return Binding(f"{layer.name}.{name}", layer, "origin", partial(_start, name))
    if name in SCALES:
        return Binding(f"{layer.name}.{name}", layer, name, _as_is)
    place = next(i for i, step in enumerate(path) if str(step).endswith("_regularizer"))
    penalty = getattr(layer, str(path[place]))
    either = type(penalty).__name__ == "L1L2"
    stand_in = _as_coefficient if either else _as_is
    return Binding(f"{layer.name}.{path[place]}", penalty, name, stand_in)


def _layer_of(config: Any, path: Path) -> str:
    """Returns the name of the innermost layer that a place in a configuration belongs to."""
    layer = ""
    for key in path[1 : path.index(FAMILY) if FAMILY in path else None]:
        config = config[key]
        if isinstance(config, dict) and "class_name" in config and "config" in config:
            layer = str(config["config"].get("name", layer))
    return layer


def _as_is(_: Any, number: Any) -> Any:
    return number


class Coefficient:
    """A traced coefficient of `L1L2`, which Keras compares with 0 before it computes with it."""

    def __init__(self, number: Any) -> None:
        """Keeps the tensor."""
        self._number = number

    def __ne__(self, _: object) -> bool:
        """It counts whatever it will be: at 0 it adds 0."""
        return True

    __hash__ = object.__hash__

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """As TensorFlow asks."""
        return self._number

    def __jax_array__(self) -> Any:
        """As JAX asks."""
        return self._number


def _as_coefficient(_: Any, number: Any) -> Coefficient:
    return Coefficient(number)


def _start(name: str, layer: Any, number: Any) -> Any:
    """Returns where a family starts, with a number in the place of one of its own."""
    return replace(layer.origin or first_origin(layer.family), **{name: number})


def _break_at(place: int, loss: Any, number: Any) -> Family:
    """Returns a loss's family with a break that may be a tensor, which the class itself refuses."""
    family = copy(loss.family)
    breaks = (*family.breaks[:place], number, *family.breaks[place + 1 :])
    object.__setattr__(family, BREAKS, breaks)
    return family


def _drop(layer: Any, rate: Any) -> Callable[..., Any]:
    """Returns Dropout's `call()` for a rate that is a tensor; Keras' asks whether it is above 0."""

    def call(inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        return stacking.drop(inputs, rate, layer.noise_shape, layer.seed_generator.next())

    return call
