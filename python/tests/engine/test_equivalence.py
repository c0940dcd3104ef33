"""Fed the same batches, gpukeras' engines train as Keras' own `fit()` does.

The engine "keras" ends with the same weights, bit for bit; the others, which let TensorFlow or XLA
put the same sums into another order, with the same loss within 1e-3 relative. No dropout: XLA
draws by another generator.
"""

import numpy as np
import pytest
from keras_fits import (
    EPOCHS,
    OPTIMIZERS,
    RNG,
    ROWS,
    X,
    Y,
    assert_equivalent,
    assert_same_losses,
    classes,
    dataset,
    fit_plain,
    keras,
    optimizer_class,
)
from nightly import few

from gpukeras.backend import runtime
from gpukeras.training import fit

pytestmark = pytest.mark.tf

WHOLE = 40  # rows without it: nothing is traced for it
WEIGHTS = RNG.uniform(0.2, 2, ROWS).astype(np.float32)


def dense():
    """A small network."""
    layers = keras().layers
    hidden = layers.Dense(4, "tanh", use_bias=False)
    return keras().Sequential([keras().Input((5,)), hidden, layers.Dense(3, "softmax")])


def compiled(model, optimizer="sgd", loss="sparse_categorical_crossentropy", **more):
    model.compile(optimizer, loss, **more)
    return model


# Optimizers --------------------------------------------------------------------------------------

NEEDS = {
    "LossScaleOptimizer": lambda made: made(keras().optimizers.Adam(0.02)),
    "MultiOptimizer": lambda made: made(
        keras().optimizers.OptimizerMap(
            keras().optimizers.Adam(0.02), {".*bias": keras().optimizers.SGD(0.1)}
        )
    ),
}
XLA = ("Adam", "LossScaleOptimizer", "Muon", "SGD")


def build_optimized(name):
    """A model with an optimizer that has its variables already.

    Keras 3.15's own `fit()` builds them while it traces, and there ScheduleFreeAdamW's start at the
    weights is lost.
    """
    made = optimizer_class(name)
    optimizer = NEEDS[name](made) if name in NEEDS else made(learning_rate=0.02)
    model = compiled(dense(), optimizer)
    optimizer.build(model.trainable_variables)
    return model


@pytest.mark.parametrize("name", few([*OPTIMIZERS, *NEEDS], "MultiOptimizer"))
def test_every_optimizer_trains_as_in_keras(name):
    engines = ("graph_loop", "compiled") if name in XLA else ("graph_loop",)
    data = dataset(X[:WHOLE], classes(WHOLE))
    assert_equivalent(lambda: build_optimized(name), data, (X[:WHOLE], Y[:WHOLE]), engines)


OPTIONS = {
    "clipnorm": {"clipnorm": 0.05},
    "global_clipnorm": {"global_clipnorm": 0.05},
    "accumulation": {"gradient_accumulation_steps": 3},
    "ema": {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2},
    "ema at the end": {"use_ema": True, "ema_momentum": 0.9},
    "weight decay": {"weight_decay": 0.1},
    "loss scale": {"loss_scale_factor": 128.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", few(OPTIONS, "accumulation", "ema"))
def test_an_optimizer_with_options_trains_as_in_keras(case):
    def build():
        return compiled(dense(), keras().optimizers.Adam(0.05, **OPTIONS[case]))

    engines = ("graph_loop", "compiled") if case == "clipnorm" else ("graph_loop",)
    data = dataset(X[:WHOLE], classes(WHOLE))
    assert_equivalent(build, data, (X[:WHOLE], Y[:WHOLE]), engines)


@pytest.mark.slow
def test_a_learning_rate_schedule_of_keras_is_followed():
    def build():
        decay = keras().optimizers.schedules.ExponentialDecay(0.5, 3, 0.5, staircase=True)
        return compiled(dense(), keras().optimizers.SGD(decay, momentum=0.9))

    assert_equivalent(build, dataset(X[:WHOLE], classes(WHOLE)), (X[:WHOLE], Y[:WHOLE]))


@pytest.mark.slow
def test_gradients_too_large_for_half_precision_are_left_out_alike():
    def build():
        sgd = keras().optimizers.SGD(0.1)
        optimizer = keras().optimizers.LossScaleOptimizer(sgd, initial_scale=2.0**20)
        return compiled(half("mixed_float16"), optimizer)

    data, skipped = dataset(X[:WHOLE], classes(WHOLE)), []
    history, weights = fit_plain(build, (X[:WHOLE], Y[:WHOLE]))
    for engine in ("keras", "graph_loop"):
        keras().utils.set_random_seed(7)
        report = fit.fit(build(), data, {"epochs": EPOCHS, "engine": engine})
        assert_same_losses(report.history, history)
        skipped.append(report.skipped_steps)
    assert skipped[0] == skipped[1] > 0


# Models ------------------------------------------------------------------------------------------


def half(policy):
    layers = keras().layers
    return keras().Sequential(
        [
            keras().Input((5,)),
            layers.Dense(4, "tanh", dtype=policy),
            layers.BatchNormalization(dtype=policy),
            layers.Dense(3, "softmax", dtype="float32"),
        ]
    )


def residual():
    """With normalisation, a branch, a regulariser and a layer that is not trained."""
    layers, inputs = keras().layers, keras().Input((5,))
    hidden = layers.BatchNormalization()(layers.Dense(5, kernel_regularizer="l2")(inputs))
    frozen = layers.Dense(4)
    frozen.trainable = False
    joined = layers.Add()([inputs, layers.Activation("relu")(hidden)])
    outputs = layers.Dense(3, "softmax")(layers.LayerNormalization()(frozen(joined)))
    return keras().Model(inputs, outputs)


def own_step():
    tf = runtime.tensorflow()

    class Noisy(keras().Model):
        def __init__(self):
            super().__init__()
            self.dense = keras().layers.Dense(3, "softmax")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            weights = self.trainable_variables
            gradients = [tf.sign(g) * 0.1 for g in tape.gradient(loss, weights)]
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return {"loss": loss, "size": tf.reduce_sum(tf.abs(weights[0]))}

    return Noisy()


def recurrent(name):
    layers = keras().layers
    return keras().Sequential(
        [keras().Input((6, 2)), getattr(layers, name)(3), layers.Dense(3, "softmax")]
    )


def convolutional():
    layers = keras().layers
    shape = [layers.Conv2D(2, 2, activation="relu"), layers.BatchNormalization()]
    rest = [layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(3, "softmax")]
    return keras().Sequential([keras().Input((5, 5, 1)), *shape, *rest])


MODELS = {
    "batch norm": (residual, (5,), ("graph_loop", "compiled")),
    "own step": (own_step, (5,), ("graph_loop",)),
    "LSTM": (lambda: recurrent("LSTM"), (6, 2), ("graph_loop",)),
    "GRU": (lambda: recurrent("GRU"), (6, 2), ("graph_loop",)),
    "Conv2D": (convolutional, (5, 5, 1), ("graph_loop",)),
    "mixed_float16": (lambda: half("mixed_float16"), (5,), ("graph_loop",)),
    "mixed_bfloat16": (lambda: half("mixed_bfloat16"), (5,), ("graph_loop",)),
}


@pytest.mark.varies
@pytest.mark.parametrize("case", few(MODELS, "batch norm", "own step"))
def test_a_model_trains_as_in_keras(case):
    make, shape, engines = MODELS[case]
    x = np.random.default_rng(2).normal(size=(WHOLE, *shape)).astype(np.float32)
    build = lambda: compiled(make(), keras().optimizers.SGD(0.1, momentum=0.5))  # noqa: E731
    assert_equivalent(build, dataset(x, classes(WHOLE)), (x, Y[:WHOLE]), engines)


# Weights -----------------------------------------------------------------------------------------


def test_sample_weights_and_weighted_metrics_count_as_in_keras():
    build = lambda: compiled(dense(), "sgd", weighted_metrics=["accuracy"])  # noqa: E731
    data = dataset(weights=WEIGHTS.astype(np.float64))
    assert_equivalent(build, data, (X, Y), sample_weight=WEIGHTS)


@pytest.mark.slow
def test_class_weights_count_as_in_keras():
    data = dataset(class_weight={"a": 2.0, "b": 1.0, "c": 0.25})
    build = lambda: compiled(dense(), "sgd")  # noqa: E731
    assert_equivalent(build, data, (X, Y), class_weight={0: 2.0, 1: 1.0, 2: 0.25})


@pytest.mark.slow
@pytest.mark.parametrize("weighted", few([True, False], True))
def test_validation_rows_with_weights_count_as_in_keras(weighted):
    build = lambda: compiled(  # noqa: E731
        dense(),
        metrics=["accuracy"],
        weighted_metrics=["accuracy", "sparse_categorical_crossentropy"],
    )
    data, kept = dataset(), slice(5, 32)  # three batches of Keras' and a short one
    labels, own = {**classes(), "values": Y[kept] + 1}, WEIGHTS[kept]
    validation = dataset(
        X[kept], labels, recipe=data.recipe, weights=own.astype(np.float64) if weighted else None
    )
    rows = (X[kept], Y[kept], own) if weighted else (X[kept], Y[kept])
    expected, _ = fit_plain(build, (X, Y), validation_data=rows)
    assert {"val_loss", "val_accuracy", "val_weighted_accuracy"} <= set(expected)
    for engine in ("keras", "graph_loop"):
        keras().utils.set_random_seed(7)
        options = {"epochs": EPOCHS, "engine": engine}
        report = fit.fit(build(), data, options, validation=validation)
        assert_same_losses(report.history, expected)
