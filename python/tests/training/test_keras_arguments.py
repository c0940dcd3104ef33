"""Arguments of Keras' `fit()` that shape epochs: each trains as Keras itself does."""

import math

import numpy as np
import pytest

from gpukeras.backend import runtime
from gpukeras.core.errors import SpecError
from gpukeras.data.dataset.map_dataset import Request, build_dataset
from gpukeras.data.dataset.streams import build_stream
from gpukeras.training import fit

pytestmark = pytest.mark.tf

ROWS, SIZE = 52, 8  # 6 full batches and a short one
RNG = np.random.default_rng(7)
X = RNG.normal(size=(ROWS, 3)).astype("float32")
Y = (X @ np.float32([1, -2, 0.5]))[:, None]


def make_model():
    keras = runtime.keras()
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


def rows(count=ROWS, share=0.0):
    features = {"kind": "array", "values": X[:count]}
    labels = {"kind": "numeric", "name": "y", "values": Y[:count, 0], "levels": [], "names": []}
    return build_dataset(
        features, {"batch_size": SIZE, "shuffle": False, "validation": share}, labels
    )


class Seen:
    """A schedule by epochs that Keras' callback asks, and what it was asked."""

    def __init__(self):
        self.epochs = []
        keras = runtime.keras()
        self.callback = keras.callbacks.LearningRateScheduler(self.rate)

    def rate(self, epoch, rate):
        self.epochs.append(epoch)
        return 0.05 / (1 + epoch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras', at the end of a pass
@pytest.mark.parametrize("engine", ["graph_loop", "keras"])
@pytest.mark.parametrize(
    "asked",
    [
        {"epochs": 5, "steps_per_epoch": 3},  # 3, 3, and the short batch alone
        {"epochs": 4, "steps_per_epoch": 7},
        {"epochs": 2, "steps_per_epoch": 9},  # more than a pass has
        {"epochs": 3, "steps_per_epoch": 1},
        {"epochs": 5, "initial_epoch": 3},
        {"epochs": 7, "initial_epoch": 3, "steps_per_epoch": 4},
        {"epochs": 2, "initial_epoch": 2},  # nothing is left to train
    ],
    ids=str,
)
def test_epochs_are_those_of_keras(asked, engine):
    ours, theirs = make_model(), make_model()
    mine, native = Seen(), Seen()
    history = theirs.fit(
        X, Y, batch_size=SIZE, shuffle=False, verbose=0, callbacks=[native.callback], **asked
    )
    options = {**asked, "engine": engine}
    report = fit.fit(ours, rows(), options, callbacks=[mine.callback])
    for part, wanted in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(part, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        report.history.get("loss", []), history.history.get("loss", []), 1e-5
    )
    assert mine.epochs == native.epochs
    assert ours.history.epoch == history.epoch
    assert int(ours.optimizer.iterations.numpy()) == int(theirs.optimizer.iterations.numpy())


@pytest.mark.varies
@pytest.mark.parametrize("freq", [2, [1, 4]])
def test_only_some_epochs_are_validated(freq):
    ours, theirs = make_model(), make_model()
    history = theirs.fit(
        X, Y, batch_size=SIZE, shuffle=False, verbose=0, epochs=5,
        validation_data=(X[:11], Y[:11]), validation_freq=freq,
    ).history  # fmt: skip
    report = fit.fit(
        ours, rows(), {"epochs": 5, "engine": "graph_loop", "validation_freq": freq},
        validation=rows(11),
    )  # fmt: skip
    found = [value for value in report.history["val_loss"] if not math.isnan(value)]
    np.testing.assert_allclose(found, history["val_loss"], rtol=1e-5)
    np.testing.assert_allclose(ours.history.history["val_loss"], history["val_loss"], rtol=1e-5)


def test_early_stopping_waits_for_the_next_validation():
    options = {"epochs": 9, "engine": "graph_loop", "validation_freq": 3}
    report = fit.fit(make_model(), rows(share=0.3), {**options, "early_stopping": {"patience": 5}})
    assert report.best_epoch in (3, 6, 9)
    assert report.stopped == "completed"


@pytest.mark.tensorflow
def test_the_batches_of_a_validation_are_those_asked_for():
    keras = runtime.keras()

    class Batches(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.counts = keras.layers.Dense(1), []

        def call(self, x):
            return self.dense(x)

        def test_step(self, data):
            return {"rows": keras.ops.cast(keras.ops.shape(data[0])[0], "float32")}

    model = Batches()
    model.compile("sgd", "mse")
    options = {"epochs": 1, "engine": "keras", "validation_batch_size": 4}
    report = fit.fit(model, rows(), options, validation=rows(11))
    assert report.history["val_rows"] == [3.0]  # of the last batch: 4, 4 and 3


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "size"), [(1, None), (2, None), (3, 5), (99, None)])
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_validation_of_so_many_steps_takes_the_first_rows(steps, size):
    ours, theirs = make_model(), make_model()
    history = theirs.fit(
        X, Y, batch_size=SIZE, shuffle=False, verbose=0, epochs=3,
        validation_data=(X[:27], Y[:27]), validation_steps=steps, validation_batch_size=size,
    ).history  # fmt: skip
    options = {"engine": "graph_loop", "validation_steps": steps, "validation_batch_size": size}
    report = fit.fit(ours, rows(), {"epochs": 3, **options}, validation=rows(27))
    np.testing.assert_allclose(report.history["val_loss"], history["val_loss"], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"initial_epoch": -1}, "`initial_epoch` must be a whole number of at least 0"),
        ({"steps_per_epoch": 0}, "`steps_per_epoch` must be a whole number of at least 1"),
        ({"validation_freq": [0]}, "`validation_freq` must be a whole number of at least 1"),
        ({"validation_steps": 0}, "`validation_steps` must be a whole number of at least 1"),
        ({"validation_batch_size": 1.5}, "`validation_batch_size` must be a whole number"),
        ({"steps_per_epoch": 3, "schedule": {"kind": "exponential"}}, "epochs of equal length"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(SpecError, match=message):
        fit.fit(make_model(), rows(), {"epochs": 2, **options})


def test_steps_of_a_validation_in_sequence_are_refused():
    batches = runtime.tensorflow().data.Dataset.from_tensor_slices((X, Y)).batch(SIZE)
    given = build_stream({"kind": "tfdata", "dataset": batches, "steps": None}, Request({}))
    with pytest.raises(SpecError, match="`validation_steps` needs rows by number on one device"):
        fit.fit(make_model(), rows(), {"epochs": 1, "validation_steps": 2}, validation=given)


@pytest.mark.slow
def test_a_schedule_goes_on_at_the_initial_epoch():
    schedule = {"kind": "exponential", "decay": 0.5}
    whole = fit.fit(make_model(), rows(), {"epochs": 4, "schedule": schedule})
    later = fit.fit(make_model(), rows(), {"epochs": 4, "schedule": schedule, "initial_epoch": 2})
    np.testing.assert_allclose(later.learning_rate, whole.learning_rate[2:], rtol=1e-6)
