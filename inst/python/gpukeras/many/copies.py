"""Models of a table as Keras models: before training, and with the state of a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.many.step import state_variables
from gpukeras.models import clone, model_checks
from gpukeras.models.label_numbers import NOTHING, LabelNumbers, apply_numbers
from gpukeras.training.keras_functions import build_on


def make_initial(
    model: Model, seed: int | None, data: MapDataset, learned: LabelNumbers = NOTHING
) -> Any:
    """Returns a copy of a model that has all variables, as a training of it begins.

    Args:
        model: A compiled and built model.
        seed: Seed of initial weights and dropout; None for the model's own weights.
        data: Rows that its variables are made for.
        learned: What its training rows' labels give, in the place of what the model has.

    Raises:
        ModelError: if Keras cannot copy it.
    """
    copy = clone.copy_model(model) if seed is None else clone.copy_with_seed(model, seed)
    apply_numbers(copy, learned)
    build_on(copy, data)
    return copy


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
