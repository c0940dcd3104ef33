"""What gpukeras gives for Keras' arguments is what Keras gives."""

import functools
import itertools

import numpy as np
import pytest
from nightly import few
from precisions import tolerance

from gpukeras.accelerate import calls
from gpukeras.accelerate.decide import BATCHES, ROWS
from gpukeras.accelerate.facts import read_rows
from gpukeras.accelerate.rows import CallRows

# Keras warns so of what it is given, whoever trains.
SHUFFLE, ENDED = "ignore:`shuffle=True` was passed", "ignore:Your input ran out of data"
pytestmark = [
    pytest.mark.tf,
    pytest.mark.filterwarnings(SHUFFLE),
    pytest.mark.filterwarnings(ENDED),
]

DEFAULTS = {
    "y": None,
    "batch_size": None,
    "epochs": 3,
    "verbose": 0,
    "callbacks": None,
    "validation_split": 0.0,
    "validation_data": None,
    "shuffle": True,
    "class_weight": None,
    "sample_weight": None,
    "initial_epoch": 0,
    "steps_per_epoch": None,
    "validation_steps": None,
    "validation_batch_size": None,
    "validation_freq": 1,
}
RNG = np.random.default_rng(2)
X = RNG.normal(size=(200, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.float64)


def classifier(dropout=0.0, loss="binary_crossentropy", metrics=("accuracy",)):
    import keras

    keras.utils.set_random_seed(4)
    layers = [keras.layers.Dense(4, "relu"), keras.layers.Dropout(dropout)]
    model = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(1, "sigmoid")])
    model.compile("adam", loss, metrics=list(metrics))
    return model


def twins():
    import keras

    keras.utils.set_random_seed(4)
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    joined = keras.layers.Concatenate()([a, b])
    heads = [keras.layers.Dense(1, name=name)(joined) for name in ("one", "two")]
    model = keras.Model([a, b], heads)
    model.compile("adam", ["mse", "mae"])
    return model


def root(labels, outputs):
    import keras

    return keras.ops.sqrt(keras.ops.mean(keras.ops.square(keras.ops.subtract(labels, outputs))))


def fits(build, **given):
    """The same training by Keras and by gpukeras."""
    model = build()
    known = model.fit(**given, verbose=0)
    ours = build()
    call = {**DEFAULTS, **given}
    history, how = calls.fit(ours, call, calls.terms_of(ours, call))
    assert how.split(":")[0] in ("graph_loop", "compiled", "keras")
    assert (history.epoch, history.params) == (known.epoch, known.params)
    return known.history, history.history, model, ours


CASES = {
    "shuffled": (classifier, {}),
    "in order": (classifier, {"shuffle": False}),
    "dropout": (lambda: classifier(0.3), {}),
    "the last rows": (classifier, {"validation_split": 0.3, "batch_size": 16}),
    "validation of later epochs": (
        classifier,
        {"validation_data": (X[:50], Y[:50]), "validation_freq": 2, "initial_epoch": 1},
    ),
    "classes": (classifier, {"class_weight": {0: 1.0, 1: 3.0}}),
    "weights": (classifier, {"sample_weight": RNG.uniform(size=200)}),
    "metrics by batch": (
        lambda: classifier(metrics=(root,)),
        {"validation_data": (X[:50], Y[:50, None]), "y": Y[:, None], "batch_size": 20},
    ),
    "several parts": (
        twins,
        {"x": [X[:, :2], X[:, 2:]], "y": [Y, Y], "batch_size": 20},
    ),
    "parts by name": (
        twins,
        {"x": {"a": X[:, :2], "b": X[:, 2:]}, "y": [Y, Y], "batch_size": 20},
    ),
}


DAILY = (
    "dropout",  # which shuffles
    "the last rows",
    "validation of later epochs",
    "metrics by batch",
    "parts by name",
)


@pytest.mark.varies
@pytest.mark.parametrize("case", few(CASES, *DAILY))
def test_a_training_gives_the_losses_and_weights_of_keras(case, request):
    if case == "dropout" and request.config.getoption("--pretend-gpu"):
        pytest.skip("XLA for a CPU draws other numbers, in Keras' own program too")
    build, given = CASES[case]
    known, found, model, ours = fits(build, **{"x": X, "y": Y, "epochs": 3, **given})
    assert list(known) == list(found)
    for name, values in known.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    for one, other in zip(model.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def pipeline(labels=Y, shuffled=True):
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((X, labels))
    return (rows.shuffle(150) if shuffled else rows).batch(32)


def noisy():
    import tensorflow as tf

    return pipeline().map(lambda x, y: (x + tf.random.normal([5]), y))


def sequence():
    import keras

    class Batches(keras.utils.PyDataset):
        order = np.arange(5)

        def __len__(self):
            return 5

        def __getitem__(self, index):
            rows = slice(40 * self.order[index], 40 * self.order[index] + 40)
            return X[rows], Y[rows]

        def on_epoch_end(self):
            self.order = np.roll(self.order, 1)

    return Batches()


def of_open_shape(varies=False):
    """Sequences whose length the pipeline does not tell, for `averaging()`."""
    import tensorflow as tf

    def widen(rows, labels):
        length = 2 + tf.cast(tf.reduce_sum(labels), tf.int32) % 3 if varies else 2
        return tf.tile(rows[:, None], [1, length, 1]), labels

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).map(widen)


def averaging():
    import keras

    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((None, 5)), layers.GlobalAveragePooling1D(), layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
    return model


def generator():
    while True:
        for start in range(0, 200, 25):
            yield X[start : start + 25], Y[start : start + 25]


# Rows that come in the batches of Keras' own iterator, made anew for each training.
BATCHES_OF_KERAS = {
    "shuffled": lambda: {"x": pipeline()},
    "validation": lambda: {"x": pipeline(), "validation_data": pipeline(), "validation_freq": 2},
    "validation of arrays": lambda: {"x": pipeline(), "validation_data": (X[:50], Y[:50])},
    "drawn numbers": lambda: {"x": noisy()},
    "steps": lambda: {"x": pipeline().repeat(), "steps_per_epoch": 4},
    "fewer steps": lambda: {"x": pipeline(), "steps_per_epoch": 3},
    "validation steps": lambda: {
        "x": pipeline(),
        "validation_data": pipeline().repeat(),
        "validation_steps": 3,
    },
    "steps of arrays": lambda: {"x": X, "y": Y, "steps_per_epoch": 3},
    "batches in another order": lambda: {"x": X, "y": Y, "shuffle": "batch"},
    "classes": lambda: {"x": pipeline(), "class_weight": {0: 1.0, 1: 3.0}},
    "a sequence": lambda: {"x": sequence(), "validation_data": sequence()},
    "a generator": lambda: {"x": generator(), "steps_per_epoch": 8},
    "negative weights": lambda: {"x": X, "y": Y, "sample_weight": -Y},
    "rows of an unknown shape": lambda: {"x": of_open_shape()},
    "rows whose shape varies": lambda: {"x": of_open_shape(varies=True)},
    "of unknown number": lambda: {"x": pipeline().filter(lambda x, y: True), "epochs": 3},
    "a generator that ends": lambda: {"x": itertools.islice(generator(), 7), "epochs": 2},
}


def train_both(build, make):
    """A training by Keras and one by gpukeras in Keras' batches: history and weights of each."""
    import keras

    found = []
    for ours in (False, True):
        keras.utils.set_random_seed(5)
        model, call = build(), {**DEFAULTS, **make()}
        if ours:
            with calls.unnoticed(model):
                calls.fit(model, call, calls.terms_of(model, call), BATCHES)
        else:
            model.fit(**call)
        found.append((model.history.history, model.history.params, model.get_weights()))
    return found


def assert_same(known, found):
    assert (list(known[0]), known[1]) == (list(found[0]), found[1])
    for name, values in known[0].items():
        if tolerance() and "accuracy" in name:  # of rows near the threshold it counts any or none
            continue
        np.testing.assert_allclose(found[0][name], values, rtol=1e-5, err_msg=name)
    for one, other in zip(known[2], found[2], strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


KEPT = "validation", "classes", "a sequence", "of unknown number", "rows of an unknown shape"


@pytest.mark.tensorflow
@pytest.mark.varies
@pytest.mark.parametrize("case", few(BATCHES_OF_KERAS, *KEPT))
def test_batches_of_keras_give_its_losses_and_weights(case):
    builds = {"of unknown number": functools.partial(classifier, 0.3)}
    build = averaging if case.startswith("rows") else builds.get(case, classifier)
    assert_same(*train_both(build, BATCHES_OF_KERAS[case]))


@pytest.mark.slow
@pytest.mark.parametrize("arrays", few([True, False], True))
def test_losses_of_several_outputs_are_those_of_keras_where_the_last_batch_is_short(arrays):
    def make():
        x, y, held = [X[:, :2], X[:, 2:]], [Y, Y], slice(77)
        given = {"validation_data": ([x[0][held], x[1][held]], [Y[held], Y[held]])}
        return {"x": x, "y": y, **given, "shuffle": True if arrays else "batch"}

    known, found = train_both(twins, make)
    assert_same(known, found)
    model, call = twins(), {**DEFAULTS, **make(), "return_dict": False}
    expected = model.evaluate(call["x"], call["y"], verbose=0)
    for way in (ROWS, BATCHES):
        assert calls.evaluate(model, call, way)[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_nothing():
    import keras

    def build():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e30), "mse")
        return model

    known, found, *_ = fits(build, x=X, y=Y, epochs=3)
    np.testing.assert_array_equal(known["loss"], found["loss"])
    assert len(found["loss"]) == 3


def test_callbacks_hear_what_keras_tells():
    import keras

    class Listener(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.heard = []

        def on_train_begin(self, logs=None):
            self.heard.append(("train", dict(self.params)))

        def on_epoch_end(self, epoch, logs=None):
            self.heard.append((epoch, sorted(logs), float(self.model.optimizer.iterations)))

    heard = []
    for run in ("keras", "gpukeras"):
        model, one = classifier(), Listener()
        stopping = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1.0)
        given = {"x": X, "y": Y, "epochs": 5, "callbacks": [one, stopping]}
        if run == "keras":
            model.fit(**given, verbose=0)
        else:
            call = {**DEFAULTS, **given}
            calls.fit(model, call, calls.terms_of(model, call))
        heard.append(one.heard)
    assert heard[0] == heard[1]
    assert len(heard[0]) == 3


def test_an_evaluation_gives_the_values_of_keras():
    model = classifier(metrics=["mean_absolute_error"])
    for given in ({"return_dict": False}, {"return_dict": True}, {"sample_weight": Y + 1}):
        known = model.evaluate(X, Y, verbose=0, **given)
        found, how = calls.evaluate(
            model, {**DEFAULTS, "return_dict": False, "x": X, "y": Y, **given}
        )
        assert type(known) is type(found)
        assert list(known) == pytest.approx(list(found)) if isinstance(known, list) else True
        if isinstance(known, dict):
            assert list(known) == list(found)
            assert found == pytest.approx(known, rel=1e-5)
        assert how == "200 rows in large batches"


@pytest.mark.parametrize("build", [classifier, twins])
def test_a_prediction_has_the_form_of_keras(build):
    model = build()
    x = X if build is classifier else [X[:, :2], X[:, 2:]]
    known = model.predict(x, verbose=0)
    found, _ = calls.predict(model, {"x": x, "batch_size": None, "verbose": 0})
    assert type(known) is type(found)
    for one, other in zip(known, found, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_weights_of_classes_are_those_of_keras():
    from keras.src.trainers.data_adapters import data_adapter_utils

    weights = {0: 0.5, 2: 3.0}
    for labels in (np.array([0, 1, 2, 2]), np.array([[0.0], [2.0]]), np.eye(3)[[2, 0, 1]]):
        found = calls._weigh_classes(CallRows(labels, labels), weights).weights
        known = data_adapter_utils.class_weight_to_sample_weights(labels, weights)
        np.testing.assert_array_equal(found, known)


def test_steps_are_counted_as_keras_does():
    assert CallRows(X).count_batches(32) == 7
    assert CallRows(object()).count_batches(32) is None
    given, held = read_rows({"x": X, "y": Y, "validation_split": 0.5})
    assert (given.count_batches(32), held.count) == (4, 100)
