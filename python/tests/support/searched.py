"""A model with every kind of state, and rows in sequence: for searches that change nothing."""

import numpy as np
from small_fits import make_model

from gpukeras.backend import runtime
from gpukeras.data.dataset import streams
from gpukeras.data.dataset.map_dataset import Request
from gpukeras.models import state


def state_of(model):
    return {name: np.array(v.numpy()) for name, v in state.state_variables(model).items()}


def assert_same(model, before):
    after = state_of(model)
    assert after.keys() == before.keys()
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def stochastic_model():
    """A model with every kind of state: moments, moving statistics, random generators."""
    keras = runtime.keras()
    layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    return make_model(optimizer="adam", layers=layers)


def train_once(model, data):
    """One update by Keras' own function, so that optimizer and random state have moved."""
    return model.train_on_batch(*[array[:32] for array in data.arrays])


def make_stream(calls):
    """Endless chunks of 20 rows."""
    rng = np.random.default_rng(1)

    def call(epoch, batch):
        calls.append((epoch, batch))
        features = {"kind": "array", "values": np.asfortranarray(rng.normal(size=(20, 5)))}
        codes = np.arange(20, dtype=np.int32) % 3 + 1
        labels = {"name": "y", "kind": "factor", "values": codes, "levels": list("abc")}
        return {"features": {**features, "names": []}, "labels": labels, "weights": None}

    return streams.build_stream({"kind": "generator", "call": call, "steps": None}, Request({}))
