"""Slow input and slow models, by sleeping: how busy the computer is changes little about them."""

import time

import numpy as np
from small_fits import make_model

from gpukeras.data import builder


class SlowFunction:
    """A function of the user's that takes its time."""

    def __init__(self, sleep_s, rows=32):
        self.sleep_s, self.rows = sleep_s, rows
        self.rng = np.random.default_rng(1)

    def __call__(self, epoch, batch):
        time.sleep(self.sleep_s)
        x = {"kind": "array", "values": self.rng.normal(size=(self.rows, 5)), "names": []}
        codes = (1 + self.rng.integers(0, 3, self.rows)).astype(np.int32)
        y = {"kind": "factor", "values": codes, "levels": ["a", "b", "c"]}
        return {"features": x, "labels": y, "weights": None}

    def dataset(self, steps=30, batch_size=None):
        features = {"kind": "generator", "call": self, "steps": steps}
        return builder.assemble(features, {"batch_size": batch_size or self.rows})


def make_sleepy_model(sleep_s):
    """A small model whose forward pass takes its time."""
    import keras
    import tensorflow as tf

    class Sleep(keras.layers.Layer):
        def call(self, x):
            return tf.ensure_shape(tf.grad_pass_through(self._wait)(x), x.shape)

        def _wait(self, x):
            def wait(values):
                time.sleep(sleep_s)
                return values

            return tf.numpy_function(wait, [x], x.dtype)

    return make_model(optimizer="adam", layers=[Sleep()])
