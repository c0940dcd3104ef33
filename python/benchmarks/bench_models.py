"""The models of the benchmarks, their data where it is not R's, and a clock for epochs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

CLASSES = 10
SEED = 1


@dataclass(frozen=True)
class Case:
    """A model and the size of its data."""

    rows: int
    shape: tuple[int, ...]
    batch: int
    build: Callable[[tuple[int, ...]], keras.Model]


class EpochClock(keras.callbacks.Callback):
    """Seconds and loss of each epoch, seen from inside Keras' own `fit()`."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch_s: list[float] = []
        self.loss: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.epoch_s.append(time.perf_counter() - self._began)
        self.loss.append(float((logs or {})["loss"]))


def dense(shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers
    return _compiled(
        shape,
        [layers.Dense(64, "relu"), layers.Dropout(0.1)],
        keras.optimizers.Adam(),
    )


def normalised(shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers
    return _compiled(
        shape,
        [layers.Dense(128, "relu"), layers.BatchNormalization(), layers.Dense(64, "relu")],
        keras.optimizers.AdamW(clipnorm=1.0),
    )


def lstm(shape: tuple[int, ...]) -> keras.Model:
    return _compiled(shape, [keras.layers.LSTM(32)], keras.optimizers.Adam())


def convolutional(shape: tuple[int, ...]) -> keras.Model:
    layers = keras.layers
    return _compiled(
        shape,
        [
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
        ],
        keras.optimizers.Adam(),
    )


CASES = {
    "batchnorm": Case(64_000, (64,), 64, normalised),
    "lstm": Case(12_800, (30, 8), 64, lstm),
    "cnn": Case(6_400, (32, 32, 3), 64, convolutional),
}


def make_rows(case: Case, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Features as R gives them, float64 in column-major order, and labels from 0."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((round(case.rows * share), *case.shape))
    scores = x.reshape(len(x), -1) @ rng.standard_normal((x[0].size, CLASSES))
    return np.asfortranarray(x), scores.argmax(axis=1).astype(np.int32)


def _compiled(shape: tuple[int, ...], hidden: list[Any], optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(SEED)
    output = keras.layers.Dense(CLASSES, "softmax")
    model = keras.Sequential([keras.Input(tuple(int(size) for size in shape)), *hidden, output])
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
