"""A data frame with columns of several kinds, and a small model that is trained on it."""

import numpy as np

from gpukeras.data.dataset import map_dataset
from gpukeras.models import mlp
from gpukeras.training import fit

ROWS = 60
_draw = np.random.default_rng(3)
FRAME = [
    {"name": "a", "kind": "numeric", "values": _draw.normal(5, 2, ROWS), "levels": []},
    {
        "name": "kind",
        "kind": "factor",
        "values": _draw.integers(1, 4, ROWS).astype(np.int32),
        "levels": ["x", "y", "z"],
    },
    {"name": "b", "kind": "numeric", "values": _draw.gamma(2.0, size=ROWS), "levels": []},
    {"name": "flag", "kind": "logical", "values": _draw.integers(0, 2, ROWS), "levels": []},
]
LABELS = FRAME[0]["values"] * 2 + FRAME[1]["values"] + np.sin(FRAME[2]["values"])


def encode_frame(columns=None, recipe=None, **options):
    features = {"kind": "columns", "columns": FRAME if columns is None else columns}
    labels = {"kind": "numeric", "values": LABELS}
    return map_dataset.build_dataset(
        features, {"batch_size": 20, "shuffle": False}, labels, recipe=recipe, **options
    )


def fit_frame(epochs=15):
    """A model of the data frame, and the dataset that trained it."""
    import keras

    keras.utils.set_random_seed(1)
    data = encode_frame()
    model = mlp.build_mlp(data, {"units": [8]})
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mean_absolute_error"])
    fit.fit(model, data, {"epochs": epochs})
    return model, data


def plain_loss(model, data, columns):
    """The mean squared error of the model on raw columns, by Keras' own predict()."""
    encoded = encode_frame(columns, data.recipe)
    values = model.predict(encoded.arrays[0], verbose=0)[:, 0]
    return float(np.mean((values - encoded.arrays[1].reshape(-1)) ** 2))
