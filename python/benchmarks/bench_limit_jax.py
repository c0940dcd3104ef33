"""The limit on JAX: what XLA alone takes for the same updates, as one `lax.scan` an epoch.

As `bench_limit` on TensorFlow: no Keras and no short last batch; one gather of the epoch's rows,
then one program with weights, Adam's moments and the metrics' sums as the loop's own values.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

UNITS, CLASSES = 64, 10
RATE, BETA_1, BETA_2, EPSILON = 0.001, 0.9, 0.999, 1e-7  # Keras' defaults
SEED = 1


class BareLoop:
    """A dense network with one hidden layer, trained by one program an epoch.

    Args:
        x: Features.
        y: Classes from 0.
        batch: Rows a batch.
        dropout: Share of the hidden units that is dropped; drawn as Keras draws on JAX.
        metrics: Keep the sums of the epoch's loss and of the rows that were right.
    """

    def __init__(
        self, x: np.ndarray, y: np.ndarray, batch: int, dropout: float = 0.0, metrics: bool = False
    ) -> None:
        """Puts the rows on the device."""
        self._rng = np.random.default_rng(SEED)
        self._x = jnp.asarray(np.asarray(x, dtype=np.float32, order="C"))
        self._y = jnp.asarray(np.asarray(y, dtype=np.int32).reshape(-1))
        self._shape = len(x) // batch, batch
        self._state = _start(self._rng, x.shape[1])
        epoch = partial(_epoch, dropout=dropout, metrics=metrics)
        self._program = jax.jit(epoch, donate_argnums=3)

    def epoch(self) -> tuple[float, float, float]:
        """Trains all rows once; returns seconds, loss and (with metrics) accuracy."""
        began = time.perf_counter()
        steps, batch = self._shape
        order = self._rng.permutation(len(self._x)).astype(np.int32)[: steps * batch]
        order = order.reshape(self._shape)
        (loss, right), self._state = self._program(self._x, self._y, order, self._state)
        loss, right = float(loss) / steps, float(right) / (steps * batch)
        return time.perf_counter() - began, loss, right


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
        x: See `BareLoop`.
        y: See `BareLoop`.
        batch: See `BareLoop`.
        epochs: How often all rows are trained.
        dropout: See `BareLoop`.
        metrics: See `BareLoop`.
    """
    loop = BareLoop(x, y, batch, dropout, metrics)
    found = [loop.epoch() for _ in range(epochs)]
    names = ("epoch_s", "loss", "accuracy")
    return {name: [one[place] for one in found] for place, name in enumerate(names)}


def _start(rng: np.random.Generator, columns: int) -> Any:
    def glorot(fan_in: int, fan_out: int) -> np.ndarray:
        limit = np.sqrt(6 / (fan_in + fan_out))
        return rng.uniform(-limit, limit, (fan_in, fan_out)).astype(np.float32)

    weights = [glorot(columns, UNITS), np.zeros(UNITS, np.float32)]
    weights += [glorot(UNITS, CLASSES), np.zeros(CLASSES, np.float32)]
    moments = [np.zeros_like(weight) for weight in weights]
    count = np.float32(0)
    return jax.tree.map(jnp.array, (count, weights, moments, list(moments)))


def _epoch(x: Any, y: Any, order: Any, state: Any, dropout: float, metrics: bool) -> Any:
    rows, labels = jnp.take(x, order, axis=0), jnp.take(y, order, axis=0)

    def body(carried: Any, batch: Any) -> Any:
        (total, right), state = carried
        loss, scores, state = _step(*batch, state, dropout)
        if metrics:
            right += jnp.sum(jnp.argmax(scores, axis=1) == batch[1])
        return ((total + loss, right), state), None

    start = (jnp.float32(0), jnp.float32(0)), state
    return jax.lax.scan(body, start, (rows, labels))[0]


def _step(x: Any, y: Any, state: Any, dropout: float) -> Any:
    count, weights, means, squares = state
    count = count + 1
    key = jax.random.fold_in(jax.random.key(SEED), count.astype(jnp.int32))

    def lose(weights: Any) -> Any:
        hidden = jax.nn.relu(x @ weights[0] + weights[1])
        if dropout:
            kept = jax.random.bernoulli(key, 1 - dropout, hidden.shape)
            hidden = jnp.where(kept, hidden / (1 - dropout), 0.0)
        scores = hidden @ weights[2] + weights[3]
        logs = jax.nn.log_softmax(scores)
        return -jnp.mean(jnp.take_along_axis(logs, y[:, None], axis=1)), scores

    (loss, scores), gradients = jax.value_and_grad(lose, has_aux=True)(weights)
    means = [BETA_1 * m + (1 - BETA_1) * g for m, g in zip(means, gradients, strict=True)]
    squares = [BETA_2 * s + (1 - BETA_2) * g * g for s, g in zip(squares, gradients, strict=True)]
    rate = RATE * jnp.sqrt(1 - BETA_2**count) / (1 - BETA_1**count)
    weights = [
        w - rate * m / (jnp.sqrt(s) + EPSILON)
        for w, m, s in zip(weights, means, squares, strict=True)
    ]
    return loss, scores, (count, weights, means, squares)
