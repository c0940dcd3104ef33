"""Labels with a shape: images, masks and sequences, and networks that learn them."""

import functools

import numpy as np
from streamed import array

from gpukeras.backend import runtime
from gpukeras.data.dataset import map_dataset as data_dataset
from gpukeras.data.recipe.targets import SEVERAL

ROWS, BATCH = 44, 8
RNG = np.random.default_rng(5)
IMAGES = RNG.uniform(size=(ROWS, 4, 5, 2)).astype(np.float32)
MASKS = RNG.integers(0, 3, (ROWS, 4, 5)).astype(np.int32)
HOT = np.eye(3, dtype=np.float32)[MASKS]
SERIES = RNG.normal(size=(ROWS, 6, 2)).astype(np.float32)
STEPS = RNG.integers(0, 3, (ROWS, 6)).astype(np.int32)
HOT_STEPS = np.eye(3, dtype=np.float32)[STEPS]
LEVELS = RNG.normal(size=(ROWS, 6, 1)).astype(np.float32)
STEP_WEIGHTS = RNG.uniform(0.2, 2, (ROWS, 6)).astype(np.float32)
ROW_WEIGHTS = RNG.uniform(0.2, 2, (ROWS, 1)).astype(np.float32)
CODES = RNG.integers(0, 3, ROWS).astype(np.int32)


def keras():
    return runtime.keras()


def labels(values, name="y"):
    several = values.size > len(values)
    return {"name": name, "kind": "matrix" if several else "numeric", "values": values, "names": []}


def dataset(x, y, weights=None, **options):
    options = {"batch_size": BATCH, "seed": 3, "shuffle": False, **options}
    return data_dataset.build_dataset(array(x), options, labels(y), weights=weights)


def network(x, units, activation, loss, **compiling):
    """A layer on each pixel or time step."""
    layers = keras().layers
    model = keras().Sequential(
        [keras().Input(x.shape[1:]), layers.Dense(4, "tanh"), layers.Dense(units, activation)]
    )
    model.compile("sgd", loss, **compiling)
    return model


SPARSE = ("softmax", "sparse_categorical_crossentropy")
DENSE = ("softmax", "categorical_crossentropy")
ACCURACY = {"metrics": ["accuracy"]}
CASES = {
    "sparse masks": (IMAGES, MASKS, 3, *SPARSE, ACCURACY),
    "sparse masks with a channel": (IMAGES, MASKS[..., None], 3, *SPARSE, ACCURACY),
    "one-hot masks": (IMAGES, HOT, 3, *DENSE, ACCURACY),
    "images themselves": (IMAGES, IMAGES, 2, "sigmoid", "mse", {"metrics": ["mae"]}),
    "one-hot sequences": (SERIES, HOT_STEPS, 3, *DENSE, ACCURACY),
    "a class each step": (SERIES, STEPS, 3, *SPARSE, ACCURACY),
    "a number each step": (SERIES, LEVELS, 1, None, "mse", {}),
    "a number each step, flat": (SERIES, LEVELS[..., 0], 1, None, "mse", {}),
}


def network_of(name):
    x, _, units, activation, loss, compiling = CASES[name]
    return functools.partial(network, x, units, activation, loss, **compiling)


def two_headed():
    layers, given = keras().layers, keras().Input((4, 5, 2), name="image")
    hidden = layers.Dense(4, "tanh")(given)
    mask = layers.Dense(3, "softmax", name="mask")(hidden)
    kind = layers.Dense(3, "softmax", name="kind")(layers.GlobalAveragePooling2D()(hidden))
    same = layers.Dense(2, name="same")(hidden)
    model = keras().Model(given, {"mask": mask, "kind": kind, "same": same})
    sparse = "sparse_categorical_crossentropy"
    model.compile("sgd", {"mask": sparse, "kind": sparse, "same": "mse"})
    return model


SEVERAL_LABELS = {"same": IMAGES, "kind": CODES, "mask": MASKS}


def outputs_of(values):
    parts = [{"name": name, "labels": labels(values[name])} for name in values]
    return {"kind": SEVERAL, "outputs": parts}
