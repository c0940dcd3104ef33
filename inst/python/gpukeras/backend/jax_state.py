"""Exchanges the values of a model's variables with a state, for steps that are functions of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.backend.jax_module import jax
from gpukeras.core.keras_types import Model

# Lists, as Keras' trainer has them: its loss scaling fails on others.
State = tuple[list[Any], ...]


@dataclass(frozen=True)
class StateVariables:
    """The variables of a model whose values a step takes and returns.

    Args:
        groups: The variables in the order of the step's state.
        device: JAX's own device of the values; None where they stay as they are.
    """

    groups: tuple[tuple[Any, ...], ...]
    device: Any = None

    def read(self) -> State:
        """Returns the values."""
        return tuple(list(map(self._read, group)) for group in self.groups)

    def write(self, state: State) -> None:
        """Puts values into the variables."""
        for group, values in zip(self.groups, state, strict=True):
            for variable, value in zip(group, values, strict=True):
                variable.assign(value)

    def _read(self, variable: Any) -> Any:
        # XLA would compile once more for a weakly typed value, as of Python's numbers, and for one
        # that may be moved to another device, as of `reset_metrics()`.
        value = variable.value
        if self.device is None or (value.committed and not value.weak_type):
            return value
        return jax().device_put(value.astype(value.dtype), self.device)


def find_variables(
    model: Model, kind: str, more: Sequence[Any] | None = None, device: Any = None
) -> StateVariables:
    """Returns the variables of a model's training or test step, in the order of Keras' trainer.

    Args:
        model: A compiled Keras model whose variables exist.
        kind: "train" or "test".
        more: Further variables, as a group of their own; None for no such group.
        device: See `StateVariables`.
    """
    optimizer = [model.optimizer.variables] if kind == "train" else []
    groups = [model.trainable_variables, model.non_trainable_variables, *optimizer]
    groups += [model.metrics_variables, *([] if more is None else [more])]
    return StateVariables(tuple(map(tuple, groups)), device)


def find_weights(model: Model) -> StateVariables:
    """Returns the variables of a model's call, in the order of Keras' `stateless_call()`."""
    groups = (model.trainable_variables, model.non_trainable_variables)
    return StateVariables(tuple(map(tuple, groups)))
