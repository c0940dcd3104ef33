"""The loop of a training and of an evaluation: what callbacks see of it, and may do within it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from small_fits import make_dataset, make_model

from gpukeras.backend import runtime
from gpukeras.data.dataset.map_dataset import Request, build_dataset
from gpukeras.data.dataset.streams import build_stream
from gpukeras.training import fit
from gpukeras.training.loop import Calls, count_calls

pytestmark = pytest.mark.tf

PARTS = ("train", "validation")


def train(model, data, callbacks, **options):
    return fit.fit(
        model, data, {"epochs": 2, "engine": "graph_loop", **options}, callbacks=callbacks
    )


def hook(**hooks):
    return runtime.keras().callbacks.LambdaCallback(**hooks)


# What a callback does itself ----------------------------------------------------------------------


@pytest.mark.varies
@pytest.mark.parametrize("executed", [1, 3])
def test_a_callback_evaluates_and_predicts_by_keras_own_functions(executed):
    data, other = make_dataset(validation=0.2), make_dataset(99, seed=7)
    x, y = other.arrays
    model, found, wanted = make_model(), [], []
    model.steps_per_execution = executed

    def look(epoch, logs):
        found.append((model.evaluate(x, y, verbose=0)[0], model.predict(x, verbose=0)))
        fresh = make_model()
        fresh.set_weights(model.get_weights())
        wanted.append((fresh.evaluate(x, y, verbose=0)[0], fresh.predict(x, verbose=0)))

    report = train(model, data, [hook(on_epoch_end=look)])
    for (loss, predicted), (expected, outputs) in zip(found, wanted, strict=True):
        assert loss == pytest.approx(expected, rel=1e-5)
        np.testing.assert_allclose(predicted, outputs, rtol=1e-5, atol=1e-6)
    rows = data.rows("validation")
    own = model.evaluate(*[array[rows] for array in data.arrays], verbose=0)[0]
    assert report.history["val_loss"][-1] == pytest.approx(own, rel=1e-5)


@pytest.mark.slow
def test_a_callback_fits_by_keras_own_function_as_within_keras_fit():
    data, other = make_dataset(shuffle=False, validation=0.2), make_dataset(64, seed=7)
    x, y = other.arrays
    weights, losses = [], []
    for ours in (True, False):
        model, inner = make_model(), []

        def again(epoch, logs, model=model, inner=inner):
            own = model.fit(x, y, shuffle=False, verbose=0, validation_data=(x, y))
            inner.append(own.history["val_loss"])

        callbacks = [hook(on_epoch_end=again)]
        if ours:
            train(model, data, callbacks)
        else:
            known, held = ([array[data.rows(part)] for array in data.arrays] for part in PARTS)
            model.fit(
                *known, batch_size=32, epochs=2, shuffle=False, verbose=0,
                validation_data=held, callbacks=callbacks,
            )  # fmt: skip
        weights.append(np.concatenate([one.ravel() for one in model.get_weights()]))
        losses.append(np.ravel(inner))
    np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.slow
def test_a_callback_evaluates_losses_of_outputs_as_keras_does():
    keras, rng = runtime.keras(), np.random.default_rng(5)
    x, y = rng.normal(size=(35, 3)), {name: rng.normal(size=35) for name in ("a", "b")}

    def build():
        keras.utils.set_random_seed(2)
        given = keras.Input((3,))
        model = keras.Model(given, [keras.layers.Dense(1, name=name)(given) for name in y])
        model.compile("sgd", {"a": "mse", "b": "mae"})
        return model

    outputs = [
        {"name": name, "labels": {"kind": "numeric", "values": values, "levels": []}}
        for name, values in y.items()
    ]
    data = build_dataset(
        {"kind": "array", "values": x}, {"batch_size": 8}, {"kind": "outputs", "outputs": outputs}
    )
    model, found, wanted = build(), [], []

    def look(epoch, logs):
        found.append(model.evaluate(x, y, batch_size=8, verbose=0))
        wanted.append(model.get_weights())

    train(model, data, [hook(on_epoch_end=look)], epochs=1)
    other = build()
    other.set_weights(wanted[0])
    np.testing.assert_allclose(found[0], other.evaluate(x, y, batch_size=8, verbose=0), rtol=1e-6)


# What callbacks see -------------------------------------------------------------------------------


def make_listing(batches):
    """A Keras callback that lists what it is told; `batches` if it is told of batches too."""
    told = [f"on_{part}_{when}" for part in ("train", "epoch", "test") for when in ("begin", "end")]
    told += ["on_train_batch_begin", "on_train_batch_end"] if batches else []

    class Listing(runtime.keras().callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

    def listing(name):
        def hear(self, *given, logs=None):
            numbers = [one for one in given if isinstance(one, int)]
            logs = logs or next((one for one in given if isinstance(one, dict)), {})
            steps = self.params["steps"] if batches else None
            self.seen.append((name, *numbers, self.params["epochs"], steps, {**logs}))

        return hear

    for name in told:
        setattr(Listing, name, listing(name))
    return Listing()


def make_stop(batches):
    """A callback that ends a training in its fourth epoch, before its last batch or after it."""

    class Stop(runtime.keras().callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_epoch_end(self, epoch, logs=None):
            self.stop()

        def stop(self, *_, **__):
            self.model.stop_training = self.epoch == 3

    if batches:
        Stop.on_train_batch_end = Stop.stop
    return Stop()


@pytest.mark.varies
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras', at the end of a pass
@pytest.mark.parametrize("batches", [True, False])
@pytest.mark.parametrize(
    "asked",
    [
        {"epochs": 3, "validation_freq": 2},
        {"epochs": 6, "initial_epoch": 2},  # stopped in its fourth epoch
        {"epochs": 5, "steps_per_epoch": 3},  # the last epoch of a pass is shorter
        {"epochs": 2, "initial_epoch": 2},  # nothing is left to train
    ],
    ids=str,
)
def test_callbacks_see_what_they_see_under_keras(asked, batches):
    data, listings, models = make_dataset(shuffle=False, validation=0.2), [], []
    known, held = ([array[data.rows(part)] for array in data.arrays] for part in PARTS)
    for ours in (True, False):
        model, listing, stop = make_model(), make_listing(batches), make_stop(batches)
        if ours:
            train(model, data, [listing, stop], **asked)
        else:
            model.fit(
                *known, batch_size=32, shuffle=False, verbose=0, validation_data=held,
                callbacks=[listing, stop], **asked,
            )  # fmt: skip
        listings.append(listing.seen)
        models.append(model)
    assert [one[:-1] for one in listings[0]] == [one[:-1] for one in listings[1]]
    for (*_, mine), (*_, theirs) in zip(*listings, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)
    first, second = (model.history for model in models)
    assert first.epoch == second.epoch
    assert list(first.history) == list(second.history)
    assert (models[0].stop_training, first.params["epochs"]) == (
        models[1].stop_training,
        second.params["epochs"],
    )


@pytest.mark.parametrize("streams", [True, False])
def test_an_epoch_that_ends_as_no_number_is_not_validated(streams):
    rows, held, tested = make_dataset(), make_dataset(40, seed=7), []
    if streams:
        slices = runtime.tensorflow().data.Dataset.from_tensor_slices
        rows, held = (
            build_stream({"kind": "tfdata", "dataset": slices(one.arrays).batch(32)}, Request({}))
            for one in (rows, held)
        )
    model = make_model(optimizer=runtime.keras().optimizers.SGD(1e30))
    options = {"epochs": 3, "engine": "graph_loop"}
    callbacks = [hook(on_epoch_end=lambda epoch, logs: tested.append("val_loss" in logs))]
    report = fit.fit(model, rows, options, validation=held, callbacks=callbacks)
    assert (report.stopped, report.epochs, tested) == ("non_finite", 0, [False])
    assert all(np.isfinite(weights).all() for weights in model.get_weights())


def test_keras_limits_of_epochs_and_steps_hold():
    config, model = runtime.keras().config, make_model()
    config.set_max_epochs(2)
    config.set_max_steps_per_epoch(1)
    try:
        with pytest.warns(UserWarning, match="Limiting") as warned:
            report = train(model, make_dataset(batch_size=32), [], epochs=4)
    finally:
        config.set_max_epochs(None)
        config.set_max_steps_per_epoch(None)
    said = {str(one.message) for one in warned}
    assert said == {"Limiting epochs to 2", "Limiting steps_per_epoch to 1"}
    assert (report.epochs, report.stopped, model.history.epoch) == (2, "early", [0, 1])
    assert (report.rows, int(model.optimizer.iterations.numpy())) == (64, 2)


# Calls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "capacity", "expected"),
    [(None, 1, 1), (1, 1, 1), (1023, 1, 1), (10**6, 1, 20)]
    + [(3125, 1, 3), (3125, 3125, 1), (3125, 1563, 2), (3125, 44, 3)],
)
def test_an_epoch_has_few_calls_and_each_is_at_least_a_block(steps, capacity, expected):
    assert count_calls(steps, capacity) == expected


def calls_of(steps, capacity=1, exact=True, done=0, **options):
    """The calls of an epoch, from a batch on, that does nothing else."""
    loader = SimpleNamespace(steps=steps, exact=exact, capacity=capacity)
    runner = SimpleNamespace(position=done, begin=lambda blocks, done: None)
    runner.has_more = lambda: False
    calls = Calls(runner, loader, lambda epoch: ((), done), expected=steps, **options)
    return calls.count(), list(calls.of(0))


@pytest.mark.parametrize(
    ("steps", "capacity", "targets"),
    [
        (3125, 782, [782, 2346, 3125]),
        (3125, 1000, [1000, 2000, 3125]),
        (2048, 1024, [1024, 2048]),
        (2500, 1250, [1250, 2500]),
        (30_000, 44, [1496, 2992, 4488, 5984, 7480]),
    ],
)
def test_calls_end_where_blocks_do(steps, capacity, targets):
    count, calls = calls_of(steps, capacity)
    ends = [target for _, _, target in calls]
    assert ends[: len(targets)] == targets
    assert (ends[-1], ends, len(ends)) == (steps, sorted(ends), count)


def test_calls_of_an_epoch_that_was_begun_before_are_those_that_are_left():
    assert calls_of(3125, 1000, done=1000) == (3, [(1, 1, 2000), (2, 2, 3125)])
    assert calls_of(3125, 1000, done=3125) == (3, [(2, 2, 3125)])
    assert calls_of(7, done=5, together=2) == (7, [(4, 5, 6), (6, 7, 8)])


def test_calls_of_an_epoch_of_unknown_length_go_on_to_its_end():
    assert calls_of(600, exact=False) == (1, [(0, 0, math.inf)])
    assert calls_of(None, exact=False) == (1, [(0, 0, math.inf)])
    count, calls = calls_of(5, exact=False, together=2)
    assert (count, [first for first, _, _ in calls]) == (5, [0, 2, 4])
