"""The limit of many models on JAX: a bare `lax.scan` of vmapped steps over the same rows.

As `bench_limit_jax` for one model: no Keras, no metrics but the mean loss of an epoch and of the
rows held out, and no short last batch. One program trains all models, or one a core its share, as
products of small matrices keep one core busy; the faster of both is the limit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

UNITS = 64, 32, 1
RATE, BETA_1, BETA_2, EPSILON = 0.001, 0.9, 0.999, 1e-7  # Keras' defaults
SEED = 1

Splits = Sequence[tuple[np.ndarray, np.ndarray]]


class BareModels:
    """Perceptrons of one shape, all trained by one program an epoch.

    Args:
        x: Features, on the device.
        y: Numbers, one a row, on the device.
        splits: For each model the rows to train on and those to evaluate, equally many of each.
        batch: Rows a batch.
    """

    def __init__(self, x: Any, y: Any, splits: Splits, batch: int) -> None:
        """Draws the weights."""
        self._rng = np.random.default_rng(SEED)
        self._x = x
        self._y = y
        self._train = [train for train, _ in splits]
        self._held = np.stack([held for _, held in splits])
        self._batch = batch
        states = [_start(self._rng, x.shape[1]) for _ in splits]
        self._state = jax.tree.map(lambda *each: jnp.stack(each), *states)
        self._program = jax.jit(jax.vmap(_epoch, (None, None, 0, 0, 0)), donate_argnums=4)

    def epoch(self) -> np.ndarray:
        """Trains and evaluates each model; returns the losses of the rows held out."""
        steps = len(self._train[0]) // self._batch
        orders = [self._rng.permutation(rows)[: steps * self._batch] for rows in self._train]
        order = np.stack(orders).astype(np.int32).reshape(len(orders), steps, self._batch)
        (_, held), self._state = self._program(self._x, self._y, order, self._held, self._state)
        return np.asarray(held)


def measure(
    x: np.ndarray, y: np.ndarray, splits: Splits, batch: int, epochs: int, parts: int
) -> dict[str, float]:
    """Returns seconds of all epochs, compiling included, of a warm epoch, and the mean loss.

    Args:
        x: Features.
        y: Numbers, one a row.
        splits: See `BareModels`.
        batch: Rows a batch.
        epochs: Epochs of the training; as many are trained again to see a warm one.
        parts: Programs that run side by side, each with its share of the models.
    """
    began = time.perf_counter()
    rows = jnp.asarray(np.asarray(x, np.float32, order="C")), jnp.asarray(np.asarray(y, np.float32))
    shares = [splits[part::parts] for part in range(parts)]
    models = [BareModels(*rows, share, batch) for share in shares]
    with ThreadPoolExecutor(parts) as pool:
        for _ in range(epochs):
            losses = list(pool.map(BareModels.epoch, models))
        total_s = time.perf_counter() - began
        for _ in range(epochs):
            list(pool.map(BareModels.epoch, models))
    warm_s = (time.perf_counter() - began - total_s) / epochs
    return {"total_s": total_s, "warm_s": warm_s, "loss": float(np.mean(np.concatenate(losses)))}


def _start(rng: np.random.Generator, columns: int) -> Any:
    weights = []
    for fan_in, fan_out in zip((columns, *UNITS), UNITS, strict=False):
        limit = np.sqrt(6 / (fan_in + fan_out))
        weights.append(rng.uniform(-limit, limit, (fan_in, fan_out)).astype(np.float32))
        weights.append(np.zeros(fan_out, np.float32))
    moments = [np.zeros_like(weight) for weight in weights]
    return np.float32(0), weights, moments, [np.zeros_like(weight) for weight in weights]


def _epoch(x: Any, y: Any, order: Any, held: Any, state: Any) -> Any:
    def body(carried: Any, rows: Any) -> Any:
        total, state = carried
        loss, state = _step(jnp.take(x, rows, axis=0), jnp.take(y, rows), state)
        return (total + loss, state), None

    (total, state), _ = jax.lax.scan(body, (jnp.float32(0), state), order)
    loss = _loss(state[1], jnp.take(x, held, axis=0), jnp.take(y, held))
    return (total / len(order), loss), state


def _loss(weights: Any, x: Any, y: Any) -> Any:
    first = jax.nn.relu(x @ weights[0] + weights[1])
    second = jax.nn.relu(first @ weights[2] + weights[3])
    return jnp.mean(((second @ weights[4] + weights[5])[:, 0] - y) ** 2)


def _step(x: Any, y: Any, state: Any) -> Any:
    count, weights, means, squares = state
    count = count + 1
    loss, gradients = jax.value_and_grad(_loss)(weights, x, y)
    means = [BETA_1 * m + (1 - BETA_1) * g for m, g in zip(means, gradients, strict=True)]
    squares = [BETA_2 * s + (1 - BETA_2) * g * g for s, g in zip(squares, gradients, strict=True)]
    rate = RATE * jnp.sqrt(1 - BETA_2**count) / (1 - BETA_1**count)
    moved = zip(weights, means, squares, strict=True)
    weights = [w - rate * m / (jnp.sqrt(s) + EPSILON) for w, m, s in moved]
    return loss, (count, weights, means, squares)


def main(path: str) -> None:
    """Prints what the models of a file take, as JSON, for one program and for one a core.

    Args:
        path: A `.npz` file with `x`, `y`, `train` and `held` (a row a model), `batch`, `epochs` and
            `cores`.
    """
    given = np.load(path)
    splits = list(zip(given["train"], given["held"], strict=True))
    numbers = int(given["batch"]), int(given["epochs"])
    parts = dict.fromkeys((1, int(given["cores"])))
    found = {part: measure(given["x"], given["y"], splits, *numbers, part) for part in parts}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
