"""What a script gets under `accelerate()` has the structure, the values and the errors of Keras."""

import numpy as np
import pytest
from nightly import few

from gpukeras.accelerate import switch

pytestmark = [pytest.mark.tf, pytest.mark.filterwarnings("ignore::UserWarning")]

RNG = np.random.default_rng(1)
ROWS, HELD = 203, 50
X = RNG.normal(size=(ROWS, 6)).astype(np.float32)
Y = (X[:, :1] + RNG.normal(size=(ROWS, 1))).astype(np.float32)
CODES = (np.arange(ROWS) * 7 % 4).astype(np.int32)
CLASSES = np.eye(4, dtype=np.float32)[CODES]
STEPS = (np.arange(ROWS * 6).reshape(ROWS, 6) % 5).astype(np.int32)


def chain(*between, kind=None, loss="mse", metrics=None):
    import keras

    model = (kind or keras.Sequential)([keras.Input((6,)), *between])
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=metrics)
    return model


def dense(units=1, activation=None):
    import keras

    return keras.layers.Dense(units, activation)


def arrays():
    import keras

    metrics = [keras.metrics.F1Score(), "accuracy"]
    loss = "categorical_crossentropy"
    return chain(dense(4, "softmax"), loss=loss, metrics=metrics), X, CLASSES


def dicts():
    import keras

    class Both(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="both")
            self.total = self.add_variable((), "zeros", name="total")

        def update_state(self, y, predicted, sample_weight=None):
            self.total.assign_add(keras.ops.mean(keras.ops.abs(y - predicted)))

        def result(self):
            return {"one": self.total, "two": self.total * 2}

    return chain(dense(), metrics=[Both(), "mae"]), X, Y


def nested():
    import keras

    class Nested(keras.Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            return {"zeta": logs["loss"], "deep": {"b": logs["loss"] * 2, "a": logs["loss"]}}

        def test_step(self, data):
            x, y = data
            outputs = keras.ops.cast(self(x, training=False), y.dtype)  # of mixed precision
            error = keras.ops.mean((y - outputs) ** 2)
            return {"zeta": error, "deep": {"b": error * 2, "a": error}, "alpha": error}

    return chain(dense(), kind=Nested), X, Y


def of_a_class():
    import keras

    class Several(keras.Model):
        def __init__(self):
            super().__init__()
            self.one, self.two = dense(), dense(2)

        def call(self, x):
            return {"one": self.one(x), "two": self.two(x)}

    model = Several()
    model.compile("sgd", {"one": "mse", "two": "mae"}, metrics={"two": ["mse"]})
    return model, X, {"one": Y, "two": np.hstack([Y, Y])}


def of_one_size():
    import keras

    def shaped(y, predicted):
        return keras.ops.mean(keras.ops.reshape(predicted, (20, 1)))

    return chain(dense(), metrics=[shaped]), X[:200], Y[:200]


def called_otherwise():
    import keras
    import tensorflow as tf

    class Scaled(keras.Model):
        def __init__(self):
            super().__init__()
            self.one = dense()

        def call(self, x, scale):
            return self.one(x) * scale

        def loss_of(self, data):
            return keras.ops.mean((data[1] - self(data[0], scale=2.0)) ** 2)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = self.loss_of(data)
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            return {"loss": loss}

        def test_step(self, data):
            return {"loss": self.loss_of(data)}

    model = Scaled()
    model.compile("sgd")
    return model, X, Y


def drawing():
    import keras
    from batched import Noisy

    return chain(keras.layers.Dropout(0.3), Noisy(), dense()), X, Y


def counting():
    from batched import Counting

    return chain(Counting(), dense(), metrics=["mae"]), X, Y


def mixing():
    from batched import centred, furthest

    return chain(dense(3, centred), dense(), metrics=[furthest]), X, Y


CASES = {
    one.__name__: one
    for one in (
        *(arrays, dicts, nested, of_a_class, of_one_size, called_otherwise),
        *(drawing, counting, mixing),
    )
}


def run(on, make):
    """Returns what calls give with and without gpukeras, and which engine ran them."""
    import keras

    keras.utils.set_random_seed(2)
    model, x, y = make()
    held = keras.tree.map_structure(lambda one: one[:40], (x, y))
    seen = []
    look = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(dict(logs)))
    switch.switch(on)
    switch.report(clear=True)
    given = {"verbose": 0, "batch_size": 20}
    try:
        history = model.fit(x, y, epochs=3, validation_data=held, callbacks=[look], **given)
        found = {"fit": history.history, "seen": seen}
        found["evaluate"] = model.evaluate(x, y, return_dict=True, **given)
        found["listed"] = model.evaluate(x, y, **given)
        if make is not called_otherwise:
            found["predict"] = model.predict(x, **given)
    finally:
        switch.switch(False)
    return found, [call.engine for call in switch.report(clear=True)]


@pytest.mark.varies
@pytest.mark.parametrize("name", few(CASES, "arrays", "nested", "of_a_class", "drawing", "mixing"))
def test_results_are_those_of_keras(name):
    import keras

    known, _ = run(False, CASES[name])
    found, engines = run(True, CASES[name])
    assert set(engines) == {"gpukeras"}
    for what, value in known.items():
        assert outline(found[what]) == outline(value), what
        pairs = zip(keras.tree.flatten(found[what]), keras.tree.flatten(value), strict=True)
        for one, two in pairs:
            np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6, err_msg=what)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_rows_of_float64_keep_their_digits():
    import keras

    def precise():
        return chain(dense(4, "tanh"), dense()), 1e6 + X.astype(np.float64), Y.astype(np.float64)

    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    try:
        known, _ = run(False, precise)
        found, engines = run(True, precise)
    finally:
        keras.config.set_floatx(before)
    assert engines == ["gpukeras", "gpukeras", "gpukeras", "keras"]
    for what in ("fit", "evaluate", "predict"):
        pairs = zip(keras.tree.flatten(found[what]), keras.tree.flatten(known[what]), strict=True)
        for one, two in pairs:
            np.testing.assert_allclose(one, two, rtol=1e-10, err_msg=what)


def two_outputs():
    import keras

    given = keras.Input((6,))
    parts = [keras.layers.Dense(1, name=name)(given) for name in ("one", "two")]
    model = keras.Model(given, parts)
    model.compile(keras.optimizers.SGD(0.01), ["mse", "mae"], loss_weights=[1.0, 0.3])
    return model, [Y, Y**2]


WEIGHTS = [RNG.uniform(size=ROWS), RNG.uniform(size=ROWS)]
NAMES = ("one", "two")


@pytest.mark.tensorflow  # on JAX Keras runs what it averages by batch
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    "weights", [WEIGHTS, [WEIGHTS[0], None], dict(zip(NAMES, WEIGHTS, strict=True))]
)
def test_weights_of_outputs_are_taken_and_refused_as_by_keras(weights, named):
    import keras

    def train(on):
        keras.utils.set_random_seed(2)
        model, labels = two_outputs()
        if named:
            labels = dict(zip(NAMES, labels, strict=True))
        given = {"y": labels, "sample_weight": weights, "batch_size": 20, "verbose": 0}
        switch.switch(on)
        switch.report(clear=True)
        try:
            history = model.fit(X, epochs=3, shuffle=False, **given).history
            found = history["loss"], model.evaluate(X, **given)
        except (KeyError, ValueError) as error:
            found = type(error)
        finally:
            switch.switch(False)
        return found, {call.engine for call in switch.report(clear=True)}

    known, _ = train(False)
    found, engines = train(True)
    if isinstance(known, type):
        assert found is known
        return
    assert engines == {"gpukeras"}
    for one, two in zip(found, known, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


def outline(value):
    """The structure of a result: its classes, shapes and names in their order."""
    if isinstance(value, dict):
        return [(name, outline(one)) for name, one in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(outline, value)]
    return type(value).__name__, np.shape(value), str(getattr(value, "dtype", ""))


# Errors ------------------------------------------------------------------------------------------


def embedded():
    import keras

    layers = [keras.layers.Embedding(5, 3), keras.layers.Flatten(), dense(4, "softmax")]
    return chain(*layers, loss="sparse_categorical_crossentropy"), STEPS, CODES


BAD_CODES, BAD_LABELS = STEPS[:HELD].copy(), CODES[:HELD].copy()
BAD_CODES[40, 2], BAD_LABELS[30] = 7, 9
ERRORS = {
    "codes": (embedded, (BAD_CODES, CODES[:HELD])),
    "labels": (embedded, (STEPS[:HELD], BAD_LABELS)),
    "columns": (lambda: (chain(dense()), X, Y), (X[:HELD, :4], Y[:HELD])),
    "outputs": (lambda: (chain(dense(3)), X, Y.repeat(3, 1)), (X[:HELD], Y[:HELD].repeat(2, 1))),
    "no labels": (lambda: (chain(dense()), X, Y), (X[:HELD],)),
}


def fail(on, make, held):
    import keras

    keras.utils.set_random_seed(2)
    model, x, y = make()
    switch.switch(on)
    try:
        with pytest.raises(Exception) as caught:  # noqa: PT011 (Keras' own, whatever it is)
            model.fit(x, y, epochs=2, batch_size=20, verbose=0, validation_data=held)
    finally:
        switch.switch(False)
    return caught.value, [np.array(one) for one in model.weights], int(model.optimizer.iterations)


@pytest.mark.varies
@pytest.mark.cpu(reason="Keras refuses no codes on a GPU")
@pytest.mark.parametrize("name", few(ERRORS, "codes", "columns"))
def test_errors_of_validation_rows_are_those_of_keras(name):
    error, weights, steps = fail(False, *ERRORS[name])
    ours, found, trained = fail(True, *ERRORS[name])
    assert type(ours) is type(error)
    assert str(ours).splitlines()[0].split("{{")[0] == str(error).splitlines()[0].split("{{")[0]
    assert trained == steps
    assert steps in (10, 11)  # loss scaling leaves one out
    for one, two in zip(found, weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)
