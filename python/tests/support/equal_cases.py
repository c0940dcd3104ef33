"""Trainings that must end on several devices as they do on one, see `distributed_child`."""

import keras
import numpy as np
import tensorflow as tf
from logical_devices import (
    BATCH,
    DEVICES,
    ODD,
    compare,
    differ,
    differ_history,
    fit,
    layers,
    make_data,
    make_model,
    optimizers,
)
from streamed import CODES, Function, X, stream

from gpukeras.data.dataset import map_dataset


def dense():
    return compare(make_model, lambda: make_data(**ODD), devices=4)


def odd_devices():
    """One row is left for three devices."""
    return compare(make_model, lambda: make_data(batch_size=33, **ODD), devices=3)


def batch_norm():
    return compare(
        lambda: make_model(layers.BatchNormalization()),
        lambda: make_data(**ODD),
        options={"clip_global_norm": 0.05},
    )


def averages():
    """Averages of ours, while gradients of two batches are added up."""
    made = {"gradient_accumulation_steps": 2}
    return compare(
        lambda: make_model(optimizer=optimizers.AdamW(0.01, **made)),
        lambda: make_data(**ODD),
        options={"ema": 0.9},
    )


def keras_averages():
    """Of rows that the host gathers."""
    made = {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 3}
    build = lambda: make_model(optimizer=optimizers.SGD(0.1, momentum=0.9, **made))  # noqa: E731
    return compare(build, lambda: make_data(cache="host"))


def loss_scale():
    def build():
        scale = {"initial_scale": 2.0**14, "dynamic_growth_steps": 3}
        return make_model(optimizer=optimizers.LossScaleOptimizer(optimizers.Adam(0.01), **scale))

    return compare(build)


def regularizer():
    """Of rows with weights, with a schedule of the rate."""

    def build():
        penalty = keras.regularizers.L2(0.1)
        return make_model(
            layers.Dense(8, kernel_initializer="identity", kernel_regularizer=penalty)
        )

    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(211, 5)), rng.integers(0, 3, 211).astype(np.int32)

    def data():
        features = {"kind": "array", "values": np.asfortranarray(x)}
        labels = {"kind": "factor", "values": y + 1, "levels": ["a", "b", "c"]}
        return map_dataset.build_dataset(
            features, {"batch_size": BATCH, "seed": 1}, labels, weights=weights
        )

    weights = rng.uniform(0.1, 3, 211)
    schedule = {"kind": "one_cycle", "max_rate": 0.02}
    return compare(build, data, options={"schedule": schedule})


def scalar_loss():
    """A loss of the user's own that gives a mean instead of one value a row."""

    def mean_loss(y, predicted):
        return keras.ops.mean(keras.ops.square(y - predicted))

    def build():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(1)])
        model.compile(optimizers.Adam(0.01), mean_loss)
        return model

    def data():
        rng = np.random.default_rng(1)
        x = rng.normal(size=(331, 5))
        labels = {"kind": "numeric", "values": x[:, 0] + rng.normal(size=331), "levels": []}
        features = {"kind": "array", "values": np.asfortranarray(x)}
        return map_dataset.build_dataset(features, {"batch_size": BATCH, "seed": 1}, labels)

    return compare(build, data)


def sum_loss():
    """With a penalty, and a last batch of three rows: for two devices, and for each of four."""
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="sum")

    def build():
        penalty = keras.regularizers.L2(0.1)
        between = layers.Dense(8, kernel_initializer="identity", kernel_regularizer=penalty)
        return make_model(between, loss=loss, optimizer=optimizers.SGD(0.001))

    return [compare(build, lambda: make_data(35), devices) for devices in (2, 4)]


class OwnStep(keras.Model):
    """Trains by a step of its own, which logs a metric, a loss that is none, and a norm."""

    def train_step(self, data):
        x, y = data[0], data[1]
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        accuracy = self.compute_metrics(x, y, predicted)["accuracy"]
        norm = tf.linalg.global_norm(self.trainable_variables)
        return {"loss": loss, "accuracy": accuracy, "norm": norm}


def own_step():
    return compare(lambda: make_model(base=OwnStep), lambda: make_data(282))


def embedding():
    """Gradients of embeddings are few rows of a table."""

    def build():
        keras.utils.set_random_seed(1)
        parts = [keras.Input((4,)), layers.Embedding(20, 3), layers.Flatten()]
        model = keras.Sequential([*parts, layers.Dense(3, "softmax")])
        model.compile(optimizers.Adam(0.05), "sparse_categorical_crossentropy")
        return model

    def data():
        rng = np.random.default_rng(1)
        x = rng.integers(0, 20, (200, 4)).astype(float)
        labels = {"kind": "factor", "values": 1 + (x[:, 0] > 9), "levels": ["a", "b", "c"]}
        labels["values"] = labels["values"].astype(np.int32)
        features = {"kind": "array", "values": np.asfortranarray(x)}
        return map_dataset.build_dataset(features, {"batch_size": BATCH, "seed": 1}, labels)

    return compare(build, data)


def streamed():
    """Rows that come in sequence, in pieces of odd sizes."""
    return compare(make_model, lambda: stream(Function(X, CODES, [7, 60, 1, 32]), batch_size=BATCH))


def every_batch():
    """A callback that must see each batch."""
    seen = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen[-1].append(float(logs["loss"]))

    def fitted(*args, **more):
        seen.append([])
        return fit(*args, callbacks=[Watch()], **more)

    found = compare(make_model, lambda: make_data(265), fitted=fitted, options={"engine": "auto"})
    alone, several = seen
    found["batches"] = [len(alone), len(several)]
    found["losses"] = max(abs(a - b) for a, b in zip(alone, several, strict=True))
    return found


def rate_scaling():
    """Twice the devices train as one does at twice the rate."""
    alone, several = (make_model(optimizer=optimizers.SGD(rate)) for rate in (0.2, 0.1))
    first = fit(alone, make_data())
    second = fit(several, make_data(), DEVICES[:2], {"rate_scaling": "linear"})
    rate = float(several.optimizer.learning_rate)
    return {
        "weights": differ(alone, several),
        "history": differ_history(first, second),
        "rate": rate,
        "told": second.reasons["learning_rate"],
        "rates": second.learning_rate,
    }
