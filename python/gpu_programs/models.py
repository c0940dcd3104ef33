"""Five small models as users have them, with rows of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend.runtime import usable_share
from gpukeras.core.options import DatasetSpec
from gpukeras.data.plan import PipelineFacts, choose_capacity, plan_pipeline
from gpukeras.system.cards import Card

BATCH_SIZE, CLASSES = 32, 10


@dataclass(frozen=True)
class Case:
    """A compiled model and its training.

    Args:
        model: The model.
        rows: One row's features and one label, as arrays of two rows.
        batch_size: Rows per batch.
        steps: Batches of an epoch.
    """

    model: Any
    rows: tuple[np.ndarray, np.ndarray]
    batch_size: int
    steps: int

    def count_batches(self, card: Card) -> int:
        """Returns the batches of a block on a card."""
        row_bytes = sum(array[:1].nbytes for array in self.rows)
        rows, memory = self.steps * self.batch_size, usable_share() * card.memory_bytes
        facts = PipelineFacts(rows, 0, row_bytes, "GPU:0", memory, memory)
        plan = plan_pipeline(facts, DatasetSpec(batch_size=self.batch_size))
        batch_bytes = row_bytes * self.batch_size
        return choose_capacity(batch_bytes, self.steps, plan.block_bytes, plan.even_blocks)


def finish(inputs: Any, hidden: Any, rows: int) -> Case:
    """Returns the case of a model that classifies by a softmax of a hidden layer."""
    import keras

    model = keras.Model(inputs, keras.layers.Dense(CLASSES, "softmax")(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    shape = tuple(inputs.shape[1:])
    data = np.zeros((2, *shape), np.float32), np.zeros(2, np.int32)
    return Case(model, data, BATCH_SIZE, rows // BATCH_SIZE)


def mlp() -> Case:
    """A multilayer perceptron on a table of 64 columns."""
    import keras
    from keras import layers

    inputs = keras.Input((64,))
    hidden = layers.Dropout(0.1)(layers.Dense(64, "relu")(inputs))
    hidden = layers.Dense(64, "relu")(hidden)
    return finish(inputs, hidden, 40_000)


def conv1d() -> Case:
    """Convolutions over a series of 128 steps of 8 channels."""
    import keras
    from keras import layers

    inputs = keras.Input((128, 8))
    hidden = layers.MaxPooling1D()(layers.Conv1D(32, 5, activation="relu")(inputs))
    hidden = layers.Conv1D(64, 5, activation="relu")(hidden)
    return finish(inputs, layers.GlobalAveragePooling1D()(hidden), 8_192)


def lstm() -> Case:
    """An LSTM over sequences of 32 steps of 16 channels.

    Where JAX has a GPU, Keras 3.15 calls cuDNN for this layer instead of a loop.
    """
    import keras
    from keras import layers

    inputs = keras.Input((32, 16))
    return finish(inputs, layers.LSTM(64)(inputs), 20_000)


def resnet() -> Case:
    """A residual network of six blocks on images of 32 x 32 x 3."""
    import keras
    from keras import layers

    def normalised(filters: int, stride: int, x: Any) -> Any:
        x = layers.Conv2D(filters, 3, stride, "same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    inputs = keras.Input((32, 32, 3))
    hidden = layers.ReLU()(normalised(16, 1, inputs))
    for filters, stride in ((16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1)):
        kept = hidden
        if stride > 1:
            kept = layers.Conv2D(filters, 1, stride, use_bias=False)(hidden)
        hidden = layers.ReLU()(normalised(filters, stride, hidden))
        hidden = layers.ReLU()(layers.Add()([kept, normalised(filters, 1, hidden)]))
    return finish(inputs, layers.GlobalAveragePooling2D()(hidden), 4_096)


def transformer() -> Case:
    """Two blocks of self-attention over sequences of 32 tokens."""
    import keras
    from keras import layers

    inputs = keras.Input((32,))
    hidden = layers.Embedding(5_000, 64)(inputs)
    for _ in range(2):
        seen = layers.LayerNormalization()(hidden)
        hidden = layers.Add()([hidden, layers.MultiHeadAttention(4, 16)(seen, seen)])
        wide = layers.Dense(128, "gelu")(layers.LayerNormalization()(hidden))
        hidden = layers.Add()([hidden, layers.Dense(64)(wide)])
    return finish(inputs, layers.GlobalAveragePooling1D()(hidden), 20_000)


MODELS: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "conv1d": conv1d,
    "lstm": lstm,
    "resnet": resnet,
    "transformer": transformer,
}
