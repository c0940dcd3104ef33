"""Functions on stacks: tensors with an axis in front, one entry a model.

One program then computes many models at a time: TensorFlow's `vectorized_map()` and JAX's `vmap()`
turn the function of one model into that of a stack, where a product of matrices becomes a batched
product.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from gpukeras.backend import runtime, tensor_ops
from gpukeras.backend.jax_module import jax

Function = Callable[..., Any]
_tracing = threading.RLock()  # held where a model is traced, whose settings are replaced meanwhile


def map_stack(function: Function, *stacks: Any) -> Any:
    """Traced: applies a function of one entry of each stack to all entries.

    Args:
        function: Takes an entry of each stack; returns nested lists, tuples and dicts of tensors.
        stacks: Nested structures of tensors with the same first axis.
    """
    if runtime.backend() == "jax":
        return jax().vmap(function)(*stacks)
    # Where an operation has no form for stacks, it is repeated: no reason to warn the user.
    mapped = runtime.tensorflow().vectorized_map
    return mapped(lambda entry: function(*entry), stacks, warn=False)


def repeat(count: Any, body: Function, state: Any) -> Any:
    """Traced: replaces the state by `body(index, state)`, for each index below `count`."""
    if runtime.backend() == "jax":
        return jax().lax.fori_loop(0, count, body, state)
    tf = runtime.tensorflow()
    start = (tf.constant(0), state)
    return tf.while_loop(lambda index, _: index < count, _counting(body), start)[1]


def _counting(body: Function) -> Function:
    return lambda index, state: (index + 1, body(index, state))


def find_gradients(loss: Function, weights: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Traced: returns what a function returns besides its loss, and the gradients of the loss.

    Args:
        loss: Maps values of weights to the loss, a scalar, and whatever else.
        weights: The values. One that the loss does not depend on has zeros as its gradient.
    """
    if runtime.backend() == "jax":
        slopes, more = jax().grad(loss, has_aux=True)(list(weights))
        return more, list(slopes)
    tf = runtime.tensorflow()
    with tf.GradientTape() as tape:
        tape.watch(weights)
        value, more = loss(weights)
    gradients = tape.gradient(value, weights, unconnected_gradients="zero")
    return more, [tf.convert_to_tensor(gradient) for gradient in gradients]


def as_program(
    function: Function, compiled: bool, device: str, *, donates: bool = False
) -> Function:
    """Returns a function of tensors as a program, one for each combination of shapes.

    Args:
        function: The function.
        compiled: Whether XLA compiles it; JAX's programs always are.
        device: Where it runs, such as "CPU:0".
        donates: Whether results take the memory of the first argument, which nobody may use after a
            call. TensorFlow's programs cannot.
    """
    special = compiled and device.startswith("CPU") and runtime.backend() != "jax"

    def traced(*arguments: Any) -> Any:
        with _tracing, tensor_ops.threefry_dropout() if special else nullcontext():
            return function(*arguments)

    if runtime.backend() == "jax":
        return jax().jit(traced, donate_argnums=0 if donates else ())

    program: Function = runtime.tensorflow().function(
        traced, jit_compile=compiled, autograph=False, reduce_retracing=False
    )
    return program


def drop(inputs: Any, rate: Any, noise_shape: Sequence[int | None] | None, seed: Any) -> Any:
    """Traced: returns what Keras' `Dropout` does in training, for a rate that is a tensor.

    Keras' `random.dropout()` asks whether the rate is 0 or 1, which a tensor cannot answer.

    Args:
        inputs: A tensor.
        rate: The share that becomes 0, a scalar in [0, 1).
        noise_shape: The mask's shape, with None for the size of the inputs; None for their shape.
        seed: What the layer's seed generator gives.
    """
    wanted = noise_shape or [None] * len(inputs.shape)
    shape = [
        size if wish is None else wish for size, wish in zip(inputs.shape, wanted, strict=True)
    ]
    if runtime.backend() == "jax":
        numpy, keep = jax().numpy, 1.0 - rate
        kept = numpy.broadcast_to(jax().random.bernoulli(seed, p=keep, shape=shape), inputs.shape)
        return jax().lax.select(kept, inputs / keep.astype(inputs.dtype), numpy.zeros_like(inputs))
    tf = runtime.tensorflow()
    short = tf.cast(tf.math.floormod(seed, tf.int32.max - 1), tf.int32)  # as Keras does for XLA
    rate = tf.cast(rate, inputs.dtype)
    return tf.nn.experimental.stateless_dropout(inputs, rate=rate, seed=short, noise_shape=shape)
