"""Copies of models: with initial weights of another seed, and with the state of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.data.dataset import MapDataset
from gpukeras.many.step import state_variables
from gpukeras.models import model_checks
from gpukeras.training.keras_functions import build_on


def copy_with_seed(model: Model, seed: int, data: MapDataset) -> Any:
    """Returns a model of the same configuration with initial weights of its own.

    All seeds in the configuration, of initial weights and dropout, are drawn from one: the same
    seed gives the same model.

    Args:
        model: A compiled model.
        seed: The seed.
        data: Rows that its variables are made for.
    """
    return copy_model(model, data, np.random.default_rng(seed))


def copy_model(model: Model, data: MapDataset, draws: np.random.Generator | None = None) -> Any:
    """Returns a compiled model of the same configuration, with variables of its own.

    Args:
        model: A compiled model.
        data: Rows that its variables are made for.
        draws: Where its seeds come from; None for those of the configuration.

    Raises:
        ModelError: if Keras cannot make a model from its configuration.
    """
    layers = keras_private.list_layers(model)
    classes = {type(one).__name__: type(one) for one in (*layers, *_losses(model))}
    config = model.get_config()
    if draws is not None:
        config = _reseed(config, draws)
    try:
        with runtime.keras().saving.custom_object_scope(classes):
            kind: Any = type(model)
            copy = kind.from_config(config)
            copy.compile_from_config(model.get_compile_config())
        if not copy.built:
            copy.build_from_config(model.get_build_config())
    except (TypeError, ValueError, NotImplementedError, AttributeError) as error:
        raise ModelError(
            f"The model cannot be copied: {find_reason(error)}.",
            hint="Build it of Keras' layers, or give its classes get_config().",
            arg="model",
        ) from error
    build_on(copy, data)
    return copy


def _losses(model: Model) -> list[Any]:
    return keras_private.list_losses(keras_private.compiled_loss(model))


def _reseed(value: Any, draws: np.random.Generator) -> Any:
    """Returns a configuration with other seeds, drawn in the order of its parts."""
    if isinstance(value, (list, tuple)):
        return [_reseed(each, draws) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: int(draws.integers(2**31 - 1)) if key == "seed" else _reseed(each, draws)
        for key, each in value.items()
    }


def write_state(model: Model, state: Mapping[str, Sequence[np.ndarray]]) -> None:
    """Puts a state of `Stack.read()` into a model."""
    for part, variables in state_variables(model).items():
        for variable, value in zip(variables, state[part], strict=True):
            variable.assign(value)


def prepare(model: Model, data: MapDataset) -> None:
    """Checks that a model fits the rows, and creates its variables.

    Raises:
        ModelError, DataError: if it does not.
    """
    model_checks.check_model(model)
    model_checks.check_rows(model, data, fits=True)
    build_on(model, data)
