"""Real data to compress models on: handwritten digits of 8 x 8 pixels, and models for them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.data.dataset import map_dataset
from gpukeras.training import fit

DIGITS = Path(__file__).parents[2] / "inst" / "extdata" / "digits.csv.gz"
BATCH_SIZE = 32
MOST_INK = 16.0  # of a pixel


@cache
def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """All 1,797 digits: pixels in [0, 1] of shape (rows, 8, 8, 1), and classes."""
    table = np.loadtxt(DIGITS, delimiter=",", skiprows=1, dtype=np.float32)
    return table[:, :-1].reshape(-1, 8, 8, 1) / MOST_INK, table[:, -1].astype(np.int32)


def open_digits(seed: int, held_out: float = 0.3) -> Any:
    """A dataset with a random part of the digits held out for validation.

    Args:
        seed: Of the split and of the order in which rows are trained.
        held_out: Share of the rows that is not trained on.
    """
    options = {"batch_size": BATCH_SIZE, "seed": seed, "validation": held_out}
    return build_dataset(*read_digits(), options)


def split_digits(seed: int, held_out: float) -> tuple[np.ndarray, np.ndarray]:
    """The places of rows to train on and of those held out, at random."""
    places = np.random.default_rng(seed).permutation(len(read_digits()[0]))
    count = round(len(places) * held_out)
    return places[count:], places[:count]


def open_rows(places: np.ndarray, seed: int, shifted: bool = False, wrong: float = 0.0) -> Any:
    """A dataset of some digits, none held out.

    Args:
        places: Which ones.
        seed: Of the order in which rows are trained.
        shifted: With all images moved by a pixel too, in 8 directions.
        wrong: Share of labels that are drawn at random; the same ones for the same seed.
    """
    images, classes = (each[places] for each in read_digits())
    rng = np.random.default_rng([seed, 1])
    classes = np.where(rng.random(len(classes)) < wrong, rng.integers(0, 10, len(classes)), classes)
    classes = classes.astype(np.int32)
    if shifted:
        moves = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
        images = np.concatenate([_shift(images, *move) for move in moves])
        classes = np.tile(classes, len(moves))
    return build_dataset(images, classes, {"batch_size": BATCH_SIZE, "seed": seed})


def _shift(images: np.ndarray, down: int, right: int) -> np.ndarray:
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return padded[:, 1 - down : 9 - down, 1 - right : 9 - right]


def build_dataset(images: np.ndarray, classes: np.ndarray, options: dict[str, Any]) -> Any:
    """A dataset as the core makes it of an R array and a factor."""
    labels = {"kind": "factor", "values": classes + 1, "levels": [str(one) for one in range(10)]}
    return map_dataset.build_dataset({"kind": "array", "values": images}, options, labels)


def make_dense(seed: int, units: tuple[int, ...], rate: float = 0.001) -> Any:
    """A compiled network of dense layers."""
    layers = runtime.keras().layers
    hidden = [layers.Dense(one, "relu") for one in units]
    return _compile(seed, [layers.Flatten(), *hidden], rate)


def make_conv(seed: int, filters: tuple[int, ...] = (32, 64), units: int = 128) -> Any:
    """A compiled network of 3 x 3 convolutions with one pooling, and a dense layer."""
    layers = runtime.keras().layers
    convolutions = [layers.Conv2D(one, 3, padding="same", activation="relu") for one in filters]
    last = [layers.MaxPooling2D(), layers.Flatten(), layers.Dense(units, "relu")]
    return _compile(seed, [*convolutions, *last, layers.Dropout(0.3, seed=seed)])


def _compile(seed: int, layers: list[Any], rate: float = 0.001) -> Any:
    keras = runtime.keras()
    keras.utils.set_random_seed(seed)  # the first weights are drawn when the model is built
    last = keras.layers.Dense(10, "softmax")
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, last])
    optimizer = keras.optimizers.Adam(rate)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(model: Any, data: Any, epochs: int) -> Any:
    """Trains a model in place by the engine that needs no compiling; gives it back."""
    fit.fit(model, data, {"epochs": epochs, "engine": "graph_loop"})
    return model


def score(model: Any, places: np.ndarray) -> float:
    """Accuracy on some digits, in points."""
    images, classes = (each[places] for each in read_digits())
    said = model(runtime.tensorflow().constant(images), training=False).numpy()
    return 100 * float((said.argmax(-1) == classes).mean())
