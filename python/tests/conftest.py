"""Small models and datasets that several test files use."""

import numpy as np
import pytest
from hypothesis import settings

from gpukeras import pipeline

# The same cases on every machine and every run; `--hypothesis-profile=default` looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def make_dataset(rows=200, columns=5, classes=3, seed=1, **options):
    """Random rows with classes that depend on the first column."""
    rng = np.random.default_rng(seed)
    x = np.asfortranarray(rng.normal(size=(rows, columns)))
    codes = np.digitize(x[:, 0], np.linspace(-1, 1, classes - 1)).astype(np.int32)
    levels = [chr(ord("a") + code) for code in range(classes)]
    labels = {"kind": "factor", "values": codes + 1, "levels": levels}
    options = {"batch_size": 32, "seed": seed, **options}
    return pipeline.build_dataset({"kind": "array", "values": x}, options, labels)


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


@pytest.fixture
def dataset():
    return make_dataset()


@pytest.fixture
def model():
    return make_model()
