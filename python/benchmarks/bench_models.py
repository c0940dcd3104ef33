"""The models of the benchmarks, and clocks that look into their training."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import keras

CLASSES = 10
SEED = 1
LONGEST_S = 600.0  # to wait for a first step
LOOK_S = 0.002  # between two looks for it


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


class FirstStep:
    """Waits from now on, in a thread, for the first update of a model's weights.

    No callback tells it of all ways to train alike: the optimizer's count of updates does.
    """

    def __init__(self, model: keras.Model) -> None:
        self._updates = model.optimizer.iterations
        self._seconds: float | None = None
        self._began = time.perf_counter()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while time.perf_counter() - self._began < LONGEST_S:
            if int(self._updates.numpy()) > 0:
                self._seconds = time.perf_counter() - self._began
                return
            time.sleep(LOOK_S)

    def seconds(self) -> float | None:
        """Seconds from the making of this clock to the first update."""
        self._thread.join()
        return self._seconds


def draw_forever(batches: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    """What Keras takes for a generator: R's iterators are none, and give lists."""
    for batch in batches:
        yield tuple(batch)


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


def transformer(shape: tuple[int, ...]) -> keras.Model:
    """A block of attention and one of two dense layers, over sequences."""
    keras.utils.set_random_seed(SEED)
    layers, width = keras.layers, 32
    given = keras.Input(tuple(int(size) for size in shape))
    x = layers.Dense(width)(given)
    attended = layers.MultiHeadAttention(4, width // 4)(x, x)
    x = layers.LayerNormalization()(layers.Add()([x, attended]))
    wide = layers.Dense(width)(layers.Dense(2 * width, "relu")(x))
    x = layers.LayerNormalization()(layers.Add()([x, wide]))
    output = layers.Dense(CLASSES, "softmax")(layers.GlobalAveragePooling1D()(x))
    return _compile(keras.Model(given, output), keras.optimizers.Adam())


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


def _compiled(shape: tuple[int, ...], hidden: list[Any], optimizer: Any) -> keras.Model:
    keras.utils.set_random_seed(SEED)
    output = keras.layers.Dense(CLASSES, "softmax")
    model = keras.Sequential([keras.Input(tuple(int(size) for size in shape)), *hidden, output])
    return _compile(model, optimizer)


def _compile(model: keras.Model, optimizer: Any) -> keras.Model:
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
