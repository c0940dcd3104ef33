"""Provides the datasets that Keras' functions iterate over, and restores these functions."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from gpukeras.backend import devices, keras_private, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.base import Dataset
from gpukeras.data.loading.loader import sample_rows
from gpukeras.engine.predict_loop import fixed_rows
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
    own = next((size for size in asked if isinstance(size, int)), SAMPLE)
    own = own if own * data.row_bytes <= SAMPLE_BYTES else SAMPLE
    build_variables(model, sample_rows(data, fixed_rows(model) or own), data.wrapped)


def count_weights(model: Model) -> int:
    """Returns the number of a model's weights."""
    return sum(math.prod(variable.shape) for variable in model.variables)


_STEPS: weakref.WeakSet[Any] = weakref.WeakSet()


def keras_steps(count: int | None) -> Any:
    """Returns a dataset of `count` steps for Keras; the rows are read separately.

    Args:
        count: The steps; None for a dataset without an end.
    """
    steps = tensor_ops.count_steps(count)
    _STEPS.add(steps)
    return steps


def is_keras_steps(value: Any) -> bool:
    """Whether a value is a dataset of `keras_steps()`: Keras is called by gpukeras itself."""
    return any(value is steps for steps in _STEPS)


@contextmanager
def preserve_keras_functions(model: Model, by_batch: bool = False) -> Iterator[int]:
    """Restores Keras' functions, settings and losses, so that its own fit() works as before.

    Yields the `steps_per_execution` that the model was compiled with; within the context it is 1.

    Args:
        model: The model.
        by_batch: Whether losses of several outputs stay means over batches, as Keras has them.
    """
    steps, functions = model.steps_per_execution, (model.train_function, model.test_function)
    began = keras_private.initial_epoch(model)
    model.steps_per_execution = 1
    try:
        with jit_policy(model), nullcontext() if by_batch else weighing_rows(model):
            yield steps
    finally:
        model.steps_per_execution = steps
        keras_private.set_initial_epoch(model, began)
        # Those of a running training, if one of its callbacks evaluates; otherwise Keras' own.
        model.train_function, model.test_function = functions


@contextmanager
def jit_policy(model: Model) -> Iterator[None]:
    """Compiles Keras' own functions with XLA as `compile()` said, unless the session forbids it."""
    before = model.jit_compile
    if not before or devices.current().jit is not False:
        yield
        return
    model.jit_compile, model.predict_function = False, None
    try:
        yield
    finally:
        model.jit_compile, model.predict_function = before, None
