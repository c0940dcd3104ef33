"""Rows with several inputs and outputs, and models that take them."""

import numpy as np

from gpukeras.data.dataset import map_dataset
from gpukeras.data.recipe.targets import SEVERAL

ROWS = 48
RNG = np.random.default_rng(1)
IMAGE = RNG.normal(size=(ROWS, 4, 4, 2))
TABLE = RNG.normal(size=(ROWS, 3))
PRICE = TABLE[:, 0] + 0.1 * RNG.normal(size=ROWS)
CODES = np.arange(ROWS) % 3 + 1
FRAME = [
    {"name": "carat", "kind": "numeric", "values": TABLE[:, 0], "levels": []},
    {"name": "cut", "kind": "factor", "values": CODES, "levels": ["a", "b", "c"]},
    {"name": "depth", "kind": "numeric", "values": 10 * TABLE[:, 1], "levels": []},
]
GROUPS = [{"name": "numbers", "columns": ["carat", "depth"]}, {"name": "kind", "columns": ["cut"]}]


def array(values):
    return {"kind": "array", "values": values, "names": []}


def inputs(**parts):
    given = [{"name": name, "features": features} for name, features in parts.items()]
    return {"kind": "inputs", "inputs": given}


def outputs(**parts):
    given = [{"name": name, "labels": labels} for name, labels in parts.items()]
    return {"kind": SEVERAL, "outputs": given}


LABELS = outputs(
    price={"kind": "numeric", "values": PRICE, "levels": []},
    cut={"kind": "factor", "values": CODES, "levels": ["a", "b", "c"]},
)
X = inputs(image=array(IMAGE), table=array(TABLE))
OPTIONS = {"batch_size": 8, "shuffle": False, "seed": 1}


def build(features=X, labels=LABELS, **options):
    return map_dataset.build_dataset(features, {**OPTIONS, **options}, labels)


METRICS = {"price": ["mean_absolute_error"], "cut": ["accuracy"]}


def two_heads(shapes, style="list", loss=None, metrics=METRICS):
    """Two inputs, two outputs, as lists or as dicts."""
    import keras

    keras.utils.set_random_seed(3)
    first, second = (keras.Input(shape, name=name) for name, shape in shapes.items())
    hidden = keras.layers.Concatenate()(
        [keras.layers.Dense(5, "relu")(keras.layers.Flatten()(first)), second]
    )
    price = keras.layers.Dense(1, name="price")(hidden)
    cut = keras.layers.Dense(3, "softmax", name="cut")(hidden)
    if style == "list":
        model = keras.Model([first, second], [price, cut])
    else:
        names = list(shapes)
        model = keras.Model({names[0]: first, names[1]: second}, {"price": price, "cut": cut})
    loss = loss or {"price": "mean_squared_error", "cut": "sparse_categorical_crossentropy"}
    model.compile("adam", loss, metrics=metrics)
    return model


SHAPES = {"image": (4, 4, 2), "table": (3,)}


def same_weights(one, other):
    for mine, keras_own in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, keras_own)


def frame(columns=FRAME, groups=GROUPS):
    return {"kind": "columns", "columns": columns, "groups": groups}
