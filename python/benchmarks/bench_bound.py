"""Whether gpukeras is ever slower than Keras: where little is to be gained, what does it cost?

    python python/benchmarks/bench_bound.py [--only small_frozen] [--repeats 3] [--json PATH]

Every training runs in a process of its own, as a user's first one does: what is measured is a whole
`fit()`, tracing included, after TensorFlow was started. Keras trains with its defaults and with
several batches a call (`steps_per_execution`); the faster of the two is what gpukeras is held
against. The shortest of the repeats counts, which take turns. Exit status 1 where gpukeras takes
more than 5 % longer. Two repeats take some 5 minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST = 1.05  # times Keras' seconds
METHODS = {"keras": 1, "keras_steps": 16, "gpukeras": 1}  # with their steps_per_execution
IMAGE, CLASSES, COLUMNS = 48, 10, 20


def draw(rows: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Features and classes."""
    import numpy as np

    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, *shape)).astype(np.float32)
    return x, rng.integers(0, CLASSES, rows).astype(np.int32)


def dense() -> Any:
    """A small network on a table."""
    import keras

    hidden = [keras.layers.Dense(64, "relu"), keras.layers.Dense(64, "relu")]
    head = keras.layers.Dense(CLASSES, "softmax")
    return keras.Sequential([keras.Input((COLUMNS,)), *hidden, head])


def convolutional(frozen: bool) -> Any:
    """A small backbone with a head."""
    import keras

    layers = keras.layers
    parts = [keras.Input((IMAGE, IMAGE, 3))]
    for filters in (16, 32, 64):
        parts += [layers.Conv2D(filters, 3, activation="relu"), layers.MaxPooling2D(2)]
    backbone = keras.Sequential([*parts, layers.GlobalAveragePooling2D()])
    backbone.trainable = not frozen
    return _with_head(backbone)


def large() -> Any:
    """A large frozen backbone with a head; its weights are random, as nothing is downloaded."""
    import keras

    backbone = keras.applications.MobileNetV2(
        (IMAGE, IMAGE, 3), include_top=False, weights=None, pooling="avg"
    )
    backbone.trainable = False
    return _with_head(backbone)


def _with_head(backbone: Any) -> Any:
    import keras

    inputs = keras.Input((IMAGE, IMAGE, 3))
    outputs = keras.layers.Dense(CLASSES, "softmax")(backbone(inputs, training=False))
    return keras.Model(inputs, outputs)


def pipeline(rows: int, shape: tuple[int, ...], work: bool = False) -> Any:
    """A tf.data pipeline of batches, as users write it."""
    import tensorflow as tf

    made = tf.data.Dataset.from_tensor_slices(draw(rows, shape)).shuffle(1000, seed=1)
    if work:
        made = made.map(lambda x, y: (tf.image.random_flip_left_right(x) * 0.5, y), -1)
    return made.batch(32).prefetch(2)


# By name: the model, its rows, and the epochs.
CASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], int]] = {
    "tfdata_dense": (dense, lambda: pipeline(20_000, (COLUMNS,)), 3),
    "tfdata_images": (
        lambda: convolutional(False),
        lambda: pipeline(1500, (IMAGE, IMAGE, 3), True),
        2,
    ),
    "small_frozen": (lambda: convolutional(True), lambda: draw(1500, (IMAGE, IMAGE, 3)), 3),
    "large_frozen": (large, lambda: draw(600, (IMAGE, IMAGE, 3)), 2),
    "few_batches": (dense, lambda: draw(330, (COLUMNS,)), 2),
    "few_tfdata": (dense, lambda: pipeline(330, (COLUMNS,)), 2),
}


# One training -----------------------------------------------------------------------------------


def train_once(case: str, method: str) -> dict[str, Any]:
    """Seconds of a whole `fit()`, and the processor's seconds."""
    import keras
    import routing

    make, rows, epochs = CASES[case]
    warm = dense()
    _compile(warm, 1)
    warm.fit(*draw(64, (COLUMNS,)), verbose=0)  # starts TensorFlow
    keras.utils.set_random_seed(1)
    model, given = make(), rows()
    _compile(model, METHODS[method])
    named = {"x": given} if not isinstance(given, tuple) else dict(zip("xy", given, strict=True))
    began, spent = time.perf_counter(), time.process_time()
    if method == "gpukeras":
        history = routing.fit(model, "auto", epochs=epochs, **named).history
    else:
        history = model.fit(epochs=epochs, verbose=0, **named).history
    seconds = time.perf_counter() - began
    return {"s": seconds, "cpu_s": time.process_time() - spent, "loss": history["loss"][-1]}


def _compile(model: Any, steps: int) -> None:
    loss = "sparse_categorical_crossentropy"
    model.compile("adam", loss, metrics=["accuracy"], steps_per_execution=steps)


# All of them ------------------------------------------------------------------------------------


def run_child(case: str, method: str) -> dict[str, Any]:
    """A training in a process of its own."""
    command = [sys.executable, __file__, "--case", case, "--method", method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{case} by {method} failed: {done.stderr[-800:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(names: list[str], repeats: int) -> dict[str, dict[str, dict[str, float]]]:
    """The shortest seconds of each method on each case."""
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in names}
    for _ in range(repeats):
        for name in names:
            for method in METHODS:
                result = run_child(name, method)
                before = found[name].get(method, result)
                found[name][method] = {key: min(before[key], result[key]) for key in result}
    return found


def show(found: dict[str, dict[str, dict[str, float]]]) -> bool:
    """Prints the table; true where gpukeras is nowhere slower than it may be."""
    print(f"{'case':<16}{'Keras':>8}{'16 a call':>11}{'gpukeras':>10}{'ratio':>7}{'CPU':>7}")
    fine = True
    for name, by in found.items():
        best = min(by["keras"]["s"], by["keras_steps"]["s"])
        ratio, spent = by["gpukeras"]["s"] / best, by["gpukeras"]["cpu_s"] / by["keras"]["cpu_s"]
        columns = [by[method]["s"] for method in METHODS]
        print(f"{name:<16}{columns[0]:>8.2f}{columns[1]:>11.2f}{columns[2]:>10.2f}", end="")
        print(f"{ratio:>7.2f}{spent:>7.2f}{'' if ratio <= MOST else '  slower'}")
        fine = fine and ratio <= MOST
    return fine


def main() -> int:
    """Measures, prints, keeps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=list(CASES))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(train_once(options.case, options.method)))
        return 0
    found = measure([options.only] if options.only else list(CASES), options.repeats)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0 if show(found) else 1


if __name__ == "__main__":
    sys.exit(main())
