"""The models and rows that `gpu_evidence.py` trains. Keras is imported late: by then it is set up.

Labels depend on the features, so that a training has something to learn.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

CLASSES, SEED = 10, 1
SMALL_COLUMNS = 64
LARGE_COLUMNS, LARGE_UNITS = 512, 4096  # 36 million weights
IMAGE, FILTERS = (32, 32, 3), 32
TOKENS, WORDS, WIDTH = 64, 50_000, 128
STEPS = 32  # of the LSTM
QUICK = 16  # what widths are divided by

Rows = tuple[np.ndarray, np.ndarray]


def make_rows(model: str, rows: int) -> Rows:
    """Features (float32) and classes (int32) for a model."""
    random = np.random.default_rng(SEED)
    if model in ("embedding", "recurrent", "unrolled"):
        steps = TOKENS if model == "embedding" else STEPS
        tokens = random.integers(0, WORDS // QUICK, (rows, steps))
        return tokens.astype(np.float32), (tokens[:, 0] % CLASSES).astype(np.int32)
    shapes = {"dense_large": (LARGE_COLUMNS,), "convolutional": IMAGE}
    shape = shapes.get(model, (SMALL_COLUMNS,))
    features = random.standard_normal((rows, *shape), dtype=np.float32)
    flat = features.reshape(rows, -1)
    return features, np.argmax(flat[:, :CLASSES], axis=1).astype(np.int32)


def make_model(name: str, shape: tuple[int, ...], quick: bool = False) -> Any:
    """A compiled model of that name."""
    import keras
    from bench_models import dense

    keras.utils.set_random_seed(SEED)
    if name == "dense_small":
        return dense(shape)
    scale = QUICK if quick else 1
    hidden = {
        "dense_large": _dense,
        "convolutional": _convolutional,
        "embedding": _embedding,
        "recurrent": _recurrent,
        "unrolled": partial(_recurrent, unroll=True),
    }
    # Policies of mixed precision want the probabilities in float32.
    output = keras.layers.Dense(CLASSES, "softmax", dtype="float32")
    model = keras.Sequential([keras.Input(shape), *hidden[name](scale), output])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _dense(scale: int) -> list[Any]:
    import keras

    return [keras.layers.Dense(LARGE_UNITS // scale, "relu") for _ in range(3)]


def _convolutional(scale: int) -> list[Any]:
    from keras import layers

    filters = max(1, FILTERS // scale)
    return [
        layers.Conv2D(filters, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(2 * filters, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(4 * filters, 3, activation="relu"),
        layers.GlobalAveragePooling2D(),
    ]


def _embedding(scale: int) -> list[Any]:
    from keras import layers

    return [layers.Embedding(WORDS // scale, WIDTH // scale), layers.GlobalAveragePooling1D()]


def _recurrent(scale: int, unroll: bool = False) -> list[Any]:
    """Words of which 0 is none: a mask keeps Keras from cuDNN's LSTM."""
    from keras import layers

    words = layers.Embedding(WORDS // scale, WIDTH // scale, mask_zero=True)
    return [words, layers.LSTM(WIDTH // scale, unroll=unroll)]
