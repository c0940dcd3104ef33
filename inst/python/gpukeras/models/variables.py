"""Creates all variables that a step reads and writes before the first step.

Keras creates them when it traces the first step. Snapshots, resuming and copying need them earlier.
Keras itself creates them from the shapes of some rows. If a custom step uses variables that the
model's call does not (a GAN has no call, and an optimizer for each of its networks), that step is
traced, which trains nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.data.loader.transforms import as_data
from gpukeras.models.compilation import explain_build

UNBUILT = "Unable to automatically build the model"  # as Keras says it, by a RuntimeError


def build_variables(model: Model, batch: tuple[Any, ...], wrapped: bool = False) -> None:
    """Creates the variables of the model, its metrics and its optimizers, from some rows.

    Args:
        model: A compiled model.
        batch: Features, and labels and weights if there are any.
        wrapped: See `loading.block.as_data()`.

    Raises:
        ModelError: if Keras cannot.
    """
    try:
        if has_call(model):
            tensor_ops.build_state(model, batch)
        if not has_call(model) or not all(optimizer.built for optimizer in other_optimizers(model)):
            _trace_step(model, as_data(batch, wrapped))
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        if _trace_step(model, as_data(batch, wrapped)):
            return  # which calls the model in a way of its own
        if isinstance(error, RuntimeError) and UNBUILT not in str(error):
            raise
        if len(batch) > 1 and isinstance(batch[1], dict) and not hasattr(model, "output_names"):
            raise _unnamed_outputs(list(batch[1])) from error
        raise explain_build(model, error) from error


def _unnamed_outputs(names: list[str]) -> ModelError:
    return ModelError(
        f"`model` has no names for its outputs that the labels {', '.join(names)} would match.",
        hint="Let its call() give a dict with these names, or use a functional model.",
        arg="model",
    )


def _trace_step(model: Model, data: Any) -> bool:
    """Traces a custom step, which creates its variables; errors appear when the step runs.

    Returns:
        Whether the model has variables now.
    """
    if model.run_eagerly or not tensor_ops.overrides(model, "train_step"):
        return False
    with suppress(*REFUSALS):
        tensor_ops.trace(model.train_step, data)
        return bool(model.variables)
    return False


def has_call(model: Model) -> bool:
    """Whether a model can be called on features; a model with a custom step may have no call."""
    return tensor_ops.overrides(model, "call")


def other_optimizers(model: Model) -> list[Any]:
    """Returns the optimizers that a model holds besides the one it was compiled with, by name."""
    kind, own = runtime.keras().optimizers.Optimizer, model.optimizer
    held = ((name, value) for name, value in sorted(vars(model).items()))
    return [value for _, value in held if isinstance(value, kind) and value is not own]
