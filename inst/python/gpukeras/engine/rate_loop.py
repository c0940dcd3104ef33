"""Trains one batch per rate, many in a call, and returns the loss of each: for the rate search.

A step sets the rate, resets Keras' running mean of the loss, trains a batch and records its loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.backend.jax_backend import find_device, memory_faults
from gpukeras.backend.jax_module import jax
from gpukeras.backend.jax_state import State, find_variables
from gpukeras.core.keras_types import Model
from gpukeras.data.loader.loader import Block
from gpukeras.engine.jax_engines import keep_dtypes
from gpukeras.engine.optimizer import find_optimizer
from gpukeras.engine.predict_loop import model_device
from gpukeras.engine.programs import cut, find_loss, take

RateLoop = Callable[[Block, int, np.ndarray], np.ndarray]


def open_rate_loop(model: Model, batch_size: int) -> AbstractContextManager[RateLoop]:
    """Yields `run(block, first, rates)`: losses from batch `first` on, one per rate.

    The model is trained; afterwards its optimizer has its own rate or schedule again.

    Args:
        model: A compiled model whose variables exist.
        batch_size: Rows per batch.
    """
    loops = {"tensorflow": _tensorflow_rate_loop, "jax": jax_rate_loop}
    return loops[runtime.backend()](model, batch_size)


@contextmanager
def _tensorflow_rate_loop(model: Model, batch_size: int) -> Iterator[RateLoop]:
    tf, made = runtime.tensorflow(), dict[str, Any]()
    with _rate_variable(model) as rate:

        def run(block: Block, first: int, rates: np.ndarray) -> np.ndarray:
            if not made:
                made["program"] = _build(model, batch_size, rate, block)
            losses = made["program"](block.arrays, tf.constant(first), tf.constant(rates))
            return np.asarray(losses)

        yield run


def _build(model: Model, size: int, rate: Any, block: Block) -> Callable[..., Any]:
    tf = runtime.tensorflow()

    def program(arrays: Any, first: Any, rates: Any) -> Any:
        count = tf.shape(rates)[0]

        def body(index: Any, losses: Any) -> tuple[Any, Any]:
            rate.assign(tf.cast(rates[index], rate.dtype))
            for metric in model.metrics:
                metric.reset_state()
            logs = model.train_step(cut(arrays, (first + index) * size, size))
            return index + 1, losses.write(index, tf.cast(find_loss(logs), tf.float32))

        losses = tf.TensorArray(tf.float32, count, element_shape=[])
        _, losses = tf.while_loop(lambda index, _: index < count, body, (0, losses))
        return losses.stack()

    if model.run_eagerly:
        return program
    specs = tf.nest.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), block.arrays)
    traced = tf.function(program, autograph=False)
    return traced.get_concrete_function(
        specs, tf.TensorSpec([], tf.int32), tf.TensorSpec([None], tf.float32)
    )


@contextmanager
def _rate_variable(model: Model) -> Iterator[Any]:
    """Yields the variable of the optimizer's rate: its own, or one that replaces its schedule.

    Keras' public setter is avoided: it removes the rate's variable from the optimizer's variables.
    """
    optimizer, tf = find_optimizer(model, "learning_rate"), runtime.tensorflow()
    schedule = keras_private.learning_rate(optimizer)
    if isinstance(schedule, runtime.keras().Variable):
        before = schedule.numpy()
        try:
            yield schedule
        finally:
            schedule.assign(before)
        return
    with tf.device(keras_private.step_count(optimizer).value.device):
        rate = tf.Variable(0.0, trainable=False)
    # Keras calls a rate that is neither variable nor schedule.
    keras_private.set_learning_rate(optimizer, rate.read_value)
    try:
        yield rate
    finally:
        keras_private.set_learning_rate(optimizer, schedule)


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
    schedule, rate = keras_private.learning_rate(optimizer), list[Any]()
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
        keras_private.set_learning_rate(optimizer, schedule)


def _reset(model: Model, values: Any) -> Any:
    """Traced: the values of the metrics' variables before a first batch."""
    pairs = list(zip(model.metrics_variables, values, strict=True))
    with runtime.keras().StatelessScope(state_mapping=pairs) as scope:
        for metric in model.metrics:
            metric.reset_state()
    return [scope.get_current_value(variable) for variable in model.metrics_variables]
