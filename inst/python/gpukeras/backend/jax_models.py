"""Traces and calls models on JAX; see `tensor_ops`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gpukeras.backend import keras_private
from gpukeras.backend.jax_module import jax
from gpukeras.backend.jax_state import find_weights
from gpukeras.core.keras_types import Model, Optimizer


def make_spec(shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns the shape and dtype of an array without its values, for traces."""
    return jax().ShapeDtypeStruct(shape, dtype)


def dtype_bytes(dtype: Any) -> int:
    """Returns the bytes of a number of a dtype, such as "bfloat16"."""
    return int(jax().numpy.dtype(dtype).itemsize)


def build_by_call(model: Model, shape: tuple[int | None, ...], dtype: str) -> None:
    """Creates a model's variables by a symbolic call on inputs of a shape; runs nothing."""
    import keras

    model(keras.KerasTensor(shape, dtype))


def predictor(model: Model, compiled: bool) -> Callable[[Any], Any]:
    """Returns a program that maps rows to a model's outputs; XLA compiles all of JAX."""
    variables = find_weights(model)
    call = jax().jit(lambda state, rows: model.stateless_call(*state, rows, training=False)[0])
    return lambda rows: call(variables.read(), rows)


# The program of each model beside Keras' own function, which is another when the model changes.
_PROGRAMS: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()


def predict_batch(model: Model, features: Any) -> Any:
    """Returns a model's outputs for a batch, by its `predict_step()`, as NumPy arrays.

    Keras' `predict_on_batch()` gives the weights' memory to the program and takes it back: two
    threads cannot predict at once, and a model whose memory does not suffice has lost its weights.
    """
    import keras

    if type(model).make_predict_function is not keras.Model.make_predict_function:
        return model.predict_on_batch(features)
    state, changing = find_weights(model).read(), model.non_trainable_variables
    outputs, moved = open_prediction(model)(state, features)
    arrays = jax().tree.map(np.asarray, outputs)  # waits; nothing is written of a failed call
    for variable, before, after in zip(changing, state[1], moved, strict=True):
        if after is not before:
            variable.assign(after)
    return arrays


def open_prediction(model: Model) -> Callable[[Any, Any], Any]:
    """Returns the program of `predict_step()`: a function of what `find_weights()` reads and rows.

    Its results are the outputs, and the variables that are not trained.
    """
    model.make_predict_function()
    own, program = _PROGRAMS.get(model, (None, None))
    if own is not model.predict_function:
        compiled = model.jit_compile and not model.run_eagerly
        step = lambda state, rows: model.predict_step(state, (rows,))  # noqa: E731
        program = jax().jit(step) if compiled else step
        _PROGRAMS[model] = (model.predict_function, program)
    return program


def input_gradients(model: Model) -> Callable[[Any, Any], Any]:
    """Returns a program for the gradients of a model's output with respect to its inputs."""
    variables, numpy = find_weights(model), jax().numpy

    def weigh(inputs: Any, state: Any, weights: Any) -> Any:
        output = model.stateless_call(*state, inputs, training=False)[0]
        return numpy.sum(output.astype("float32").reshape(weights.shape) * weights)

    compute = jax().jit(jax().grad(weigh))
    return lambda inputs, weights: compute(inputs, variables.read(), weights)


def outline(model: Model, batch: Any) -> list[tuple[int, ...]]:
    """Returns the shapes of a model's outputs for a batch; computes nothing."""
    call = jax().eval_shape
    state = find_weights(model).read()
    outputs = call(
        lambda *arguments: model.stateless_call(*arguments, training=False)[0], *state, batch
    )
    return [tuple(output.shape) for output in jax().tree.leaves(outputs)]


@contextmanager
def stepping(optimizer: Optimizer, variables: Sequence[Any]) -> Iterator[None]:
    """A context in which training steps may change these variables: as the optimizer's own."""
    with keras_private.lend_variables(optimizer, variables):
        yield
