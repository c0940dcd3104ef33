"""Copies the whole state of a model in training to host memory, and restores it.

The state is all that a step reads and writes: weights, the optimizer's variables, the metrics'
running sums and the state of every random generator. A restored model continues as if the steps in
between had not happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.models.variables import other_optimizers

Form = tuple[tuple[int, ...], str]  # shape and dtype


@dataclass(frozen=True)
class Snapshot:
    """A model's state.

    Args:
        arrays: One array per variable, by part ("weights", "optimizer", "metrics", "random",
            "step", "others": of additional optimizers of the model, and "recurrent": of stateful
            layers) and place there, such as "weights/0003". Keras' own names count the layers of a
            session ("dense_3"), so they would differ if a model is made again.
    """

    arrays: dict[str, np.ndarray]


def take_snapshot(model: Model, more: Sequence[Any] = ()) -> Snapshot:
    """Copies a state to host memory.

    Args:
        model: A compiled model whose variables exist.
        more: Additional variables that belong to this training.
    """
    variables = state_variables(model, more)
    return Snapshot({name: np.array(v.numpy()) for name, v in variables.items()})


def hold_state(model: Model) -> dict[str, Any]:
    """Returns the values of a state by name, which are copied only where a step writes to them.

    Args:
        model: A compiled model whose variables exist.
    """
    return {name: tensor_ops.hold_value(v) for name, v in state_variables(model).items()}


def read_held(held: Mapping[str, Any]) -> Snapshot:
    """Copies what `hold_state()` returned to host memory."""
    return Snapshot({name: np.array(value) for name, value in held.items()})


def apply_snapshot(model: Model, snapshot: Snapshot, more: Sequence[Any] = ()) -> None:
    """Restores a state; arguments as in `take_snapshot()`.

    Args:
        model: The model.
        snapshot: Its state.
        more: Additional variables that belong to this training.

    Raises:
        ModelError: if the state is not that of this model; then nothing was changed.
    """
    variables = state_variables(model, more)
    wrong = find_difference(describe_forms(variables), describe_forms(snapshot.arrays))
    if wrong:
        raise ModelError(f"The state is that of another model: {wrong}.", arg="model")
    for name, variable in variables.items():
        variable.assign(snapshot.arrays[name])


def state_variables(model: Model, more: Sequence[Any] = ()) -> dict[str, Any]:
    """Returns every variable that a training step of a built and compiled model may change."""
    optimizer = model.optimizer
    parts = {
        "weights": model.variables,
        "optimizer": [] if optimizer is None else optimizer.variables,
        "metrics": model.metrics_variables,
        "random": tensor_ops.global_seed_state(),
        "step": more,
        "others": [each for optimizer in other_optimizers(model) for each in optimizer.variables],
        "recurrent": list(_list_recurrent(model)),
    }
    return {
        f"{part}/{place:04d}": variable
        for part, variables in parts.items()
        for place, variable in enumerate(variables)
    }


def _list_recurrent(model: Model) -> Iterator[Any]:
    """Yields what recurrent layers keep from one batch to the next, which Keras does not list."""
    for layer in keras_private.list_layers(model):
        if getattr(layer, "stateful", False):
            states = runtime.tree().flatten(list(getattr(layer, "states", None) or ()))
            yield from (each for each in states if hasattr(each, "assign"))


def describe_forms(values: Mapping[str, Any]) -> dict[str, Form]:
    """Returns shape and dtype of each array or variable."""
    return {
        name: (tuple(value.shape), str(getattr(value.dtype, "name", value.dtype)))
        for name, value in values.items()
    }


def find_difference(here: Mapping[str, Form], there: Mapping[str, Form]) -> str:
    """Returns the first difference between two states, as part of a sentence; "" if none."""
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            return f"{name} is {_form(here.get(name))} here and {_form(there.get(name))} there"
    return ""


def _form(form: Form | None) -> str:
    return "missing" if form is None else f"{form[1]} of shape {form[0]}"
