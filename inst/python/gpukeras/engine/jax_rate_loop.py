"""Trains one batch per rate on JAX; see `rate_loop`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.backend.jax_backend import find_device, memory_faults
from gpukeras.backend.jax_module import jax
from gpukeras.backend.jax_state import State, find_variables
from gpukeras.core.keras_types import Model
from gpukeras.data.loader.block import Block
from gpukeras.engine.jax_engines import keep_dtypes
from gpukeras.engine.optimizer import find_optimizer
from gpukeras.engine.predict_loop import model_device
from gpukeras.engine.programs import find_loss, take


@contextmanager
def jax_rate_loop(
    model: Model, batch_size: int
) -> Iterator[Callable[[Block, int, np.ndarray], np.ndarray]]:
    """Yields a function of a block, its first batch and rates; see `open_rate_loop()`.

    Args:
        model: A compiled model whose variables exist.
        batch_size: Rows per batch.
    """
    optimizer = find_optimizer(model, "learning_rate")
    own, rate = keras_private.learning_rate(optimizer), list[Any]()
    variables = find_variables(model, "train", None, find_device(model_device(model)))

    def step(state: State, value: Any, batch: Any) -> tuple[State, Any]:
        rate[:] = [value]
        logs, after = model.train_step((*state[:3], _reset(model, state[3])), batch)
        return keep_dtypes(tuple(map(list, after)), state), find_loss(logs)

    eager = model.run_eagerly or not model.jit_compile
    program = step if eager else jax().jit(step, donate_argnums=0)

    def run(block: Block, first: int, rates: np.ndarray) -> np.ndarray:
        losses = []
        with memory_faults():
            for place, value in enumerate(rates, first):
                batch = take(block.arrays, place * batch_size, batch_size)
                state, loss = program(variables.read(), value, batch)
                variables.write(state)
                losses.append(loss)
            return np.asarray(losses, np.float32)

    # Keras calls a rate that is neither variable nor schedule.
    keras_private.set_learning_rate(optimizer, lambda: rate[0])
    try:
        yield run
    finally:
        keras_private.set_learning_rate(optimizer, own)


def _reset(model: Model, values: Any) -> Any:
    """Traced: the values of the metrics' variables before a first batch."""
    pairs = list(zip(model.metrics_variables, values, strict=True))
    with runtime.keras().StatelessScope(state_mapping=pairs) as scope:
        for metric in model.metrics:
            metric.reset_state()
    return [scope.get_current_value(variable) for variable in model.metrics_variables]
