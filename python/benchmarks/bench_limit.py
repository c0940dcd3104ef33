"""The limit: what XLA alone takes for the same updates.

No Keras and no short last batch: an epoch is one gather of its rows and one XLA program, with
weights, Adam's moments and the metrics' sums as the loop's own values. On request the program does
what a training's step does besides: the metrics (mean loss and accuracy), and dropout.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

UNITS, CLASSES = 64, 10
RATE, BETA_1, BETA_2, EPSILON = 0.001, 0.9, 0.999, 1e-7  # Keras' defaults

State = tuple[Any, ...]


def train(
    x: np.ndarray,
    y: np.ndarray,
    batch: int,
    epochs: int,
    dropout: float = 0.0,
    metrics: bool = False,
) -> dict[str, list[float]]:
    """Trains on R's matrix; gives seconds, loss and (with metrics) accuracy of each epoch.

    Args:
        x: Features.
        y: Classes from 0.
        batch: Rows a batch.
        epochs: How often all rows are trained.
        dropout: Share of the hidden units that is dropped; drawn as gpukeras has XLA draw on CPUs.
        metrics: Keep the sums of the epoch's loss and of the rows that were right.
    """
    rng = np.random.default_rng(1)
    rows, steps = len(x), len(x) // batch
    features = tf.constant(np.asarray(x, dtype=np.float32, order="C"))
    labels = tf.constant(np.asarray(y, dtype=np.int32).reshape(-1))
    state = _start(rng, x.shape[1])
    result: dict[str, list[float]] = {"epoch_s": [], "loss": [], "accuracy": []}
    for _ in range(epochs):
        began = time.perf_counter()
        order = rng.permutation(rows).astype(np.int32)[: steps * batch]
        gathered = tf.gather(features, order), tf.gather(labels, order)
        (loss, right), state = _epoch(*gathered, state, batch, dropout, metrics)
        result["loss"].append(float(loss) / steps)
        result["accuracy"].append(float(right) / (steps * batch))
        result["epoch_s"].append(time.perf_counter() - began)
    return result


def _start(rng: np.random.Generator, columns: int) -> State:
    def glorot(fan_in: int, fan_out: int) -> np.ndarray:
        limit = np.sqrt(6 / (fan_in + fan_out))
        return rng.uniform(-limit, limit, (fan_in, fan_out)).astype(np.float32)

    weights = [glorot(columns, UNITS), np.zeros(UNITS, np.float32)]
    weights += [glorot(UNITS, CLASSES), np.zeros(CLASSES, np.float32)]
    moments = [np.zeros_like(weight) for weight in weights]
    return tuple(tf.constant(value) for value in [np.float32(0), *weights, *moments, *moments])


@tf.function(jit_compile=True, autograph=False)
def _epoch(
    x: Any, y: Any, state: State, batch: int, dropout: float, metrics: bool
) -> tuple[State, State]:
    def body(index: Any, sums: State, state: State) -> State:
        rows = tf.slice(x, [index * batch, 0], [batch, x.shape[1]])
        labels = tf.slice(y, [index * batch], [batch])
        loss, scores, state = _step(rows, labels, state, dropout)
        return index + 1, _add(sums, loss, scores, labels, metrics), state

    steps = x.shape[0] // batch
    _, sums, state = tf.while_loop(
        lambda index, sums, state: index < steps,
        body,
        (tf.constant(0), (tf.constant(0.0), tf.constant(0.0)), state),
    )
    return sums, state


def _add(sums: State, loss: Any, scores: Any, labels: Any, metrics: bool) -> State:
    total, right = sums
    if metrics:
        found = tf.argmax(scores, axis=1, output_type=tf.int32)
        right += tf.reduce_sum(tf.cast(found == labels, tf.float32))
    return total + loss, right


def _step(x: Any, y: Any, state: State, dropout: float) -> tuple[Any, Any, State]:
    time_step, weights, means, squares = state[0] + 1, state[1:5], state[5:9], state[9:]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        hidden = tf.nn.relu(x @ weights[0] + weights[1])
        if dropout:
            seed = tf.stack([1, tf.cast(time_step, tf.int32)])
            hidden = tf.nn.experimental.stateless_dropout(hidden, dropout, seed, rng_alg="threefry")
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
    return loss, scores, (time_step, *weights, *means, *squares)
