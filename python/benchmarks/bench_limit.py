"""The limit: what XLA alone takes for the same updates.

No Keras, no metrics, no dropout, no short last batch: an epoch is one gather of its rows and one
XLA program, with weights and Adam's moments as the loop's own values.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

UNITS, CLASSES = 64, 10
RATE, BETA_1, BETA_2, EPSILON = 0.001, 0.9, 0.999, 1e-7  # Keras' defaults


def train(x: np.ndarray, y: np.ndarray, batch: int, epochs: int) -> dict[str, list[float]]:
    """Trains on R's matrix; gives seconds and loss of each epoch."""
    rng = np.random.default_rng(1)
    rows, steps = len(x), len(x) // batch
    features = tf.constant(np.asarray(x, dtype=np.float32, order="C"))
    labels = tf.constant(np.asarray(y, dtype=np.int32).reshape(-1))
    state, result = _start(rng, x.shape[1]), {"epoch_s": [], "loss": []}
    for _ in range(epochs):
        began = time.perf_counter()
        order = rng.permutation(rows).astype(np.int32)[: steps * batch]
        loss, state = _epoch(tf.gather(features, order), tf.gather(labels, order), state, batch)
        result["loss"].append(float(loss) / steps)
        result["epoch_s"].append(time.perf_counter() - began)
    return result


def _start(rng: np.random.Generator, columns: int) -> tuple[Any, ...]:
    def glorot(fan_in: int, fan_out: int) -> np.ndarray:
        limit = np.sqrt(6 / (fan_in + fan_out))
        return rng.uniform(-limit, limit, (fan_in, fan_out)).astype(np.float32)

    weights = [glorot(columns, UNITS), np.zeros(UNITS, np.float32)]
    weights += [glorot(UNITS, CLASSES), np.zeros(CLASSES, np.float32)]
    moments = [np.zeros_like(weight) for weight in weights]
    return tuple(tf.constant(value) for value in [np.float32(0), *weights, *moments, *moments])


@tf.function(jit_compile=True, autograph=False)
def _epoch(x: Any, y: Any, state: tuple[Any, ...], batch: int) -> tuple[Any, tuple[Any, ...]]:
    def body(index: Any, total: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        rows = tf.slice(x, [index * batch, 0], [batch, x.shape[1]])
        loss, state = _step(rows, tf.slice(y, [index * batch], [batch]), state)
        return index + 1, total + loss, state

    steps = x.shape[0] // batch
    _, total, state = tf.while_loop(
        lambda index, total, state: index < steps, body, (tf.constant(0), tf.constant(0.0), state)
    )
    return total, state


def _step(x: Any, y: Any, state: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    time_step, weights, means, squares = state[0] + 1, state[1:5], state[5:9], state[9:]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        hidden = tf.nn.relu(x @ weights[0] + weights[1])
        scores = hidden @ weights[2] + weights[3]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores))
    gradients = tape.gradient(loss, weights)
    means = [BETA_1 * m + (1 - BETA_1) * g for m, g in zip(means, gradients, strict=True)]
    squares = [BETA_2 * s + (1 - BETA_2) * g * g for s, g in zip(squares, gradients, strict=True)]
    rate = RATE * tf.sqrt(1 - BETA_2**time_step) / (1 - BETA_1**time_step)
    weights = [
        w - rate * m / (tf.sqrt(s) + EPSILON)
        for w, m, s in zip(weights, means, squares, strict=True)
    ]
    return loss, (time_step, *weights, *means, *squares)
