"""One worker of bench_scale.py, bare TensorFlow:  scale_worker.py ROUNDS BATCH_SIZE SIZES

Who the others are is in TF_CONFIG; without it the worker is alone. Every worker must be given the
same arguments. The program prints, as JSON, the seconds of each round: of an all-reduce by its size
in bytes, of a training step with its gradients exchanged ("together"), and of one without any
exchange ("alone"). One thread computes, so that as many workers as there are cores do not take each
other's.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from gpukeras.distributed.keras_internals import open_multi_worker
from gpukeras.distributed.listen_filter import confine_listener

COLUMNS, UNITS, CLASSES = 256, 1024, 10  # 1.3 million parameters
STEPS = 4  # in one call, so that the call itself costs little
ROUND_BYTES = 8 * 2**20  # exchanged in one call, but not in more or fewer calls than:
FEWEST, MOST = 1, 20


def main(rounds: int, batch_size: int, *sizes: int) -> None:
    """Measures all in turns and prints the record."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = make_strategy()
    meet = make_reduce(strategy, 4, times=1)
    calls = {str(size): make_reduce(strategy, size, choose_times(size)) for size in sizes}
    calls["together"] = make_step(strategy, batch_size, exchanging=True)
    calls["alone"] = make_step(strategy, batch_size, exchanging=False)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            meet()  # all begin at once, so that they compute beside each other
            seconds[name].append(time_call(call))
    gradient_bytes = 4 * sum(map(math.prod, shapes()))
    print(json.dumps({"gradient_bytes": gradient_bytes, "seconds": seconds}), flush=True)


def make_strategy() -> Any:
    """A ring of the workers in TF_CONFIG, opened as the core opens its own; alone, no strategy."""
    if "TF_CONFIG" not in os.environ:
        return tf.distribute.get_strategy()
    distribute = tf.distribute.experimental
    ring = distribute.CommunicationImplementation.RING
    options = distribute.CommunicationOptions(implementation=ring)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    strategy = open_multi_worker(resolver, options)
    confine()
    return strategy


def confine() -> None:
    """Lets TensorFlow's server, which listens on all addresses, answer on its own alone."""
    config = json.loads(os.environ["TF_CONFIG"])
    host, port = config["cluster"]["worker"][config["task"]["index"]].split(":")
    confine_listener(int(port), host)


def choose_times(size: int) -> int:
    """How often a size is exchanged in a call."""
    return min(MOST, max(FEWEST, ROUND_BYTES // size))


def make_reduce(strategy: Any, size: int, times: int) -> Callable[[], float]:
    """A call that exchanges some bytes again and again, once traced; gives how often it does."""
    values = tf.zeros([size // 4])  # their sums stay finite

    def exchange(values: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        here = tf.identity(values)  # on the replica's own device, as the exchange wants it
        return context.all_reduce(tf.distribute.ReduceOp.SUM, here)

    return repeat(strategy, exchange, values, times)


def shapes() -> list[tuple[int, ...]]:
    """Of the weights of a dense network with two hidden layers."""
    sizes = [COLUMNS, UNITS, UNITS, CLASSES]
    pairs = zip(sizes[:-1], sizes[1:], strict=True)
    return [shape for a, b in pairs for shape in ((a, b), (b,))]


def make_step(strategy: Any, batch_size: int, exchanging: bool) -> Callable[[], float]:
    """A call that trains some steps with plain gradient descent; gives how many."""
    rng = np.random.default_rng(1)
    weights = [tf.Variable(rng.normal(0, 0.03, shape).astype(np.float32)) for shape in shapes()]
    x = tf.constant(rng.normal(size=(batch_size, COLUMNS)).astype(np.float32))
    y = tf.constant(rng.integers(CLASSES, size=batch_size))

    def train(done: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = compute_loss(weights, x, y)
        gradients = tape.gradient(loss, weights)
        if exchanging:
            context = tf.distribute.get_replica_context()
            gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.01 * gradient)
        return done + 1

    return repeat(strategy, train, tf.constant(0), STEPS)


def compute_loss(weights: list[tf.Variable], x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """The mean cross entropy."""
    for place in range(0, len(weights), 2):
        x = tf.matmul(tf.nn.relu(x) if place else x, weights[place]) + weights[place + 1]
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x))


def repeat(
    strategy: Any, body: Callable[[tf.Tensor], tf.Tensor], first: tf.Tensor, times: int
) -> Callable[[], float]:
    """A call that does `body` some times, one after the other; traced and warm."""

    @tf.function
    def loop() -> tf.Tensor:
        value = first
        for _ in tf.range(times):
            value = strategy.run(body, (value,))
            value.set_shape(first.shape)
        return value

    def call() -> float:
        loop()
        return times

    call()
    return call


def time_call(call: Callable[[], float]) -> float:
    """Seconds of one of the things that a call repeats."""
    began = time.perf_counter()
    times = call()
    return (time.perf_counter() - began) / times


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
