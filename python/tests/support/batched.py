"""Models whose results may depend on how rows are batched, with rows for them."""

import keras
import numpy as np
from keras import layers, ops

ROWS, WHOLE = 107, 96  # in batches of 32 the last one is short, or is not
RNG = np.random.default_rng(7)
X = RNG.normal(size=(ROWS, 6)).astype(np.float32)
Y = (X[:, :1] + RNG.normal(size=(ROWS, 1))).astype(np.float32)
BINARY = (np.arange(ROWS) % 7 == 6).astype(np.float32)[:, None]
BINARY[:64] = 0  # no positive among the first rows
CODES = np.minimum(np.arange(ROWS) % 5, 3).astype(np.int32)
STEPS = (np.arange(ROWS * 6).reshape(ROWS, 6) * 7 % 11).astype(np.float32)
STEPS[np.arange(ROWS), 5 - np.arange(ROWS) % 4] = 0  # which are masked
WEIGHTS = RNG.uniform(0.2, 3, ROWS).astype(np.float32)


def centred(x):
    return x - ops.mean(x, axis=0, keepdims=True)


def furthest(y, predicted):
    return ops.max(ops.abs(y - ops.cast(predicted, y.dtype)))


def root(y, predicted):
    return ops.sqrt(ops.mean(ops.square(y - predicted)))


def recall(y, predicted):
    return ops.sum(y * ops.cast(predicted > 0.4, "float32")) / (ops.sum(y) + 1e-7)


@keras.saving.register_keras_serializable("batched")
class Adding(layers.Layer):
    def call(self, x):
        self.add_loss(ops.sum(ops.square(x)))
        return x


class Counting(layers.Layer):
    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.calls.assign_add(1.0)
        return x * self.calls


class Noisy(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.generator = keras.random.SeedGenerator(5)

    def call(self, x):
        return x + keras.random.normal(ops.shape(x), dtype=x.dtype, seed=self.generator)


class Stepping(keras.Sequential):
    """A model with a test step of its own (TensorFlow)."""

    def test_step(self, data):
        x, y = data
        error = ops.max(ops.abs(y - self(x, training=False)))
        return {"loss": error, "nested": {"worst": error * 2}}


class Predicting(keras.Sequential):
    """A model with a predict step of its own (TensorFlow)."""

    def predict_step(self, data):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return centred(self(x, training=False))


def chain(*between, kind=keras.Sequential, shape=(6,), **options):
    model = kind([keras.Input(shape), *between])
    return compiled(model, **options)


def compiled(model, loss="mse", metrics=("mae",), **options):
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=list(metrics) or None, **options)
    return model


def graph(build, **options):
    given = keras.Input((6,))
    return compiled(keras.Model(given, build(given)), **options)


def two_ways():
    a, b = keras.Input((2,), name="a"), keras.Input((4,), name="b")
    joined = layers.Concatenate()([a, b])
    outputs = {
        "one": layers.Dense(1)(joined),
        "two": layers.Dense(1, activation=centred)(joined),
    }
    model = keras.Model({"a": a, "b": b}, outputs)
    model.compile("sgd", {"one": "mse", "two": "mae"})
    return model


def masked(**options):
    return chain(
        layers.Embedding(11, 3, mask_zero=True),
        layers.LSTM(3, return_sequences=True),
        layers.Dense(1),
        **options,
    )


def stateful():
    model = keras.Sequential(
        [
            keras.Input(batch_shape=(8, 6)),
            layers.Reshape((3, 2)),
            layers.LSTM(3, stateful=True),
            layers.Dense(1, activation=centred),
        ]
    )
    return compiled(model)


def dense(units=1, activation=None, **options):
    return layers.Dense(units, activation, **options)


# By name: a model, its rows, labels and weights.
CASES = {
    # Known: rows are their own.
    "layers of Keras'": lambda: (chain(dense(8, "relu"), layers.Dropout(0.2), dense()), X, Y),
    "batch normalisation": lambda: (chain(layers.BatchNormalization(), dense()), X, Y, WEIGHTS),
    "penalties of outputs": lambda: (chain(dense(activity_regularizer="l2")), X, Y, WEIGHTS),
    "a bidirectional layer": lambda: (
        chain(layers.Reshape((3, 2)), layers.Bidirectional(layers.LSTM(2)), dense()),
        X,
        Y,
    ),
    "steps masked within": lambda: (
        chain(layers.Embedding(11, 3, mask_zero=True), layers.LSTM(3), dense()),
        STEPS,
        Y,
    ),
    "a residual": lambda: (graph(lambda x: dense()(x + dense(6, "tanh")(x) * 2)), X, Y),
    "scores of classes": lambda: (
        chain(
            dense(4, "softmax"),
            loss="categorical_crossentropy",
            metrics=["accuracy", keras.metrics.F1Score(), keras.metrics.AUC(name="auc")],
        ),
        X,
        np.eye(4, dtype=np.float32)[CODES],
    ),
    # Layers that mix rows.
    "a lambda": lambda: (chain(dense(4), layers.Lambda(centred), dense()), X, Y, WEIGHTS),
    "a lambda of each row": lambda: (chain(layers.Lambda(lambda x: x * 2), dense()), X, Y),
    "operations of the graph": lambda: (graph(lambda x: dense()(centred(x))), X, Y),
    "an activation": lambda: (chain(dense(4), layers.Activation(centred), dense()), X, Y),
    "a function of a layer": lambda: (chain(dense(4, centred), dense()), X, Y),
    "layers at each time": lambda: (
        chain(
            layers.Reshape((3, 2)),
            layers.TimeDistributed(dense(1, centred)),
            layers.Flatten(),
            dense(),
        ),
        X,
        Y,
    ),
    "a model in a model": lambda: (
        chain(keras.Sequential([layers.Lambda(centred)]), dense()),
        X,
        Y,
    ),
    "softmax over rows": lambda: (chain(dense(3), layers.Softmax(axis=0), dense()), X, Y),
    "unit norm over rows": lambda: (chain(layers.UnitNormalization(axis=0), dense()), X, Y),
    "weights of 0 behind": lambda: (
        chain(layers.Lambda(centred), dense(kernel_initializer="zeros", bias_initializer="ones")),
        X,
        Y,
    ),
    "several inputs and outputs": lambda: (
        two_ways(),
        {"a": X[:WHOLE, :2], "b": X[:WHOLE, 2:]},
        {"one": Y[:WHOLE], "two": Y[:WHOLE]},
    ),
    "a counter": lambda: (chain(Counting(), dense()), X, Y),
    "random numbers": lambda: (chain(Noisy(), dense()), X, Y),
    "training within": lambda: (
        graph(lambda x: dense()(layers.BatchNormalization()(x, training=True))),
        X,
        Y,
    ),
    "a state": lambda: (stateful(), X[:104], Y[:104]),
    # Losses and metrics of batches.
    "a metric of the largest": lambda: (chain(dense(), metrics=[furthest]), X, Y),
    "a recall without positives": lambda: (
        chain(dense(1, "sigmoid"), loss="binary_crossentropy", metrics=[recall]),
        X,
        BINARY,
    ),
    "a loss as metric": lambda: (
        chain(dense(), metrics=[keras.losses.MeanSquaredError(name="as_metric")]),
        X,
        Y,
    ),
    "a loss of one's own": lambda: (chain(dense(), loss=root), X, Y, WEIGHTS),
    "a sum": lambda: (chain(dense(), loss=keras.losses.Huber(reduction="sum")), X, Y),
    "a mean by weights": lambda: (
        chain(dense(), loss=keras.losses.Huber(reduction="mean_with_sample_weight")),
        X,
        Y,
        WEIGHTS,
    ),
    "masked steps": lambda: (masked(metrics=[]), STEPS, np.repeat(Y[:, None], 6, 1)),
    "classes left out": lambda: (
        chain(
            dense(4, "softmax"),
            loss=keras.losses.SparseCategoricalCrossentropy(ignore_class=3),
            metrics=["accuracy"],
        ),
        X,
        CODES,
    ),
    "hinge of 0 and 1": lambda: (chain(dense(1, "tanh"), loss="hinge"), X, BINARY),
    "hinge as metric": lambda: (chain(dense(1, "tanh"), metrics=["squared_hinge"]), X, BINARY),
    "dice": lambda: (chain(dense(1, "sigmoid"), loss="dice"), X, BINARY),
    "a layer that adds to the loss": lambda: (chain(dense(), Adding()), X, Y),
    "a penalty of one's own": lambda: (
        chain(dense(2, activity_regularizer=lambda x: ops.max(x)), dense()),
        X,
        Y,
    ),
    "an output without axis": lambda: (
        graph(lambda x: ops.sum(dense(2)(x), axis=1), metrics=["mae"]),
        X,
        Y[:, 0],
        WEIGHTS,
    ),
}
TENSORFLOW = {
    "a test step": lambda: (chain(dense(), kind=Stepping, metrics=[]), X, Y),
    "a predict step": lambda: (chain(dense(), kind=Predicting), X, Y),
}


def make(name):
    """Returns a model with its rows, labels and weights; the same ones each time."""
    keras.utils.set_random_seed(3)
    model, x, y, *weights = {**CASES, **TENSORFLOW}[name]()
    return model, x, y, weights[0] if weights else None
