"""A small dataset and a small classifier, for tests that train."""

import numpy as np

from gpukeras.data.dataset import map_dataset as data_dataset


def make_dataset(rows=200, columns=5, classes=3, seed=1, **options):
    """Random rows with classes that depend on the first column."""
    rng = np.random.default_rng(seed)
    x = np.asfortranarray(rng.normal(size=(rows, columns)))
    codes = np.digitize(x[:, 0], np.linspace(-1, 1, classes - 1)).astype(np.int32)
    levels = [chr(ord("a") + code) for code in range(classes)]
    labels = {"kind": "factor", "values": codes + 1, "levels": levels}
    options = {"batch_size": 32, "seed": seed, **options}
    return data_dataset.build_dataset({"kind": "array", "values": x}, options, labels)


def make_model(columns=5, units=3, optimizer="sgd", seed=1, **layers_between):
    """A small softmax classifier without dropout."""
    import keras

    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((columns,)),
            keras.layers.Dense(8, "relu"),
            *layers_between.get("layers", []),
            keras.layers.Dense(units, "softmax"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def label_dataset(kind, values, levels=(), shape=(6, 4), **options):
    """Six rows of numbers with labels of a kind."""
    rng = np.random.default_rng(0)
    features = {"kind": "array", "values": rng.normal(size=shape)}
    labels = {"kind": kind, "values": np.array(values), "levels": list(levels)}
    return data_dataset.build_dataset(features, {"batch_size": 2, **options}, labels)


def make_subclassed(units, wrap=lambda output: output):
    """A model of a user's own class with one layer; `wrap` makes its output of the layer's."""
    import keras

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(units)

        def call(self, rows):
            return wrap(self.dense(rows))

    return Own()
