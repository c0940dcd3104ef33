"""Builds a model on rows, and lets Keras compile its functions as the session allows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpukeras.backend import devices
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import sample_rows
from gpukeras.engine.batch_rows import fixed_rows
from gpukeras.models.losses import weighing_rows
from gpukeras.models.variables import build_variables

SAMPLE, SAMPLE_BYTES = 32, 2**22  # rows that a model's variables are built from, or as many as fit


def build_on(model: Model, data: Dataset, batch_size: int | str | None = None) -> None:
    """Builds the model's variables from a batch of rows, see `variables.build_variables()`.

    Args:
        model: The model.
        data: The rows.
        batch_size: Rows per batch of the training, if they are not the dataset's. Code of the
            user's may take batches of that size only.
    """
    asked = batch_size, data.spec.batch_size
    rows = next((size for size in asked if isinstance(size, int)), SAMPLE)
    rows = rows if rows * data.row_bytes <= SAMPLE_BYTES else SAMPLE
    with weighing_rows(model):
        build_variables(model, sample_rows(data, fixed_rows(model) or rows), data.wrapped)


def count_weights(model: Model) -> int:
    """Returns the number of a model's weights."""
    return sum(math.prod(variable.shape) for variable in model.variables)


@contextmanager
def jit_policy(model: Model) -> Iterator[None]:
    """Compiles Keras' own functions with XLA as `compile()` said, unless the session forbids it."""
    before = model.jit_compile
    if not before or devices.current().jit is not False:
        yield
        return
    _set_jit(model, False)
    try:
        yield
    finally:
        _set_jit(model, before)


def _set_jit(model: Model, jit: Any) -> None:
    model.jit_compile = jit
    model.train_function = model.test_function = model.predict_function = None
