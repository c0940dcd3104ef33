import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras.backend import runtime
from gpukeras.core.errors import GeneratorError, SpecError
from gpukeras.data.dataset.chunks import GeneratorInterrupt
from gpukeras.engine.engine_facts import find_batch_hook
from gpukeras.training import fit
from gpukeras.training.callbacks.functions import FunctionHooks, check_hooks
from gpukeras.training.callbacks.keras_class import as_callback

GO_ON = {"stop": False}
STOP = {"stop": True}
FAILED = {"failed": True}
INTERRUPTED = {"interrupted": True}


def recorder(calls, answers=()):
    """A function for each hook that records its arguments; `answers` by (hook, epoch)."""

    def make(hook):
        def function(*args):
            calls.append((hook, *args))
            epochs = [value for value in args if isinstance(value, int)]
            return dict(answers).get((hook, *epochs), GO_ON)

        return function

    return {name: make(name) for name in ("on_train_begin", "on_epoch_begin", "on_epoch_end")} | {
        "on_train_end": make("on_train_end")
    }


@pytest.mark.parametrize("name", ["on_train_batch_end", "epoch_end", "", "on_test_end"])
def test_unknown_hooks_are_refused(name):
    with pytest.raises(SpecError, match="on_epoch_end") as caught:
        check_hooks({name: print})
    assert caught.value.details["arg"] == "callbacks"


def test_what_cannot_be_called_is_refused():
    with pytest.raises(SpecError, match="`callbacks` must have a function for `on_epoch_end`"):
        FunctionHooks({"on_epoch_end": 3})


def hooks_of(functions):
    hooks = FunctionHooks(functions)
    hooks.model = SimpleNamespace(stop_training=False)
    return hooks


def test_epochs_count_from_one_and_arguments_are_those_of_the_hook():
    calls = []
    hooks = hooks_of(recorder(calls))
    hooks.on_train_begin()
    hooks.on_epoch_begin(4)  # a resumed training
    hooks.on_epoch_end(4, {"loss": 0.5})
    assert hooks.model.stop_training is False
    hooks.on_train_end({"loss": 0.5})
    assert calls == [
        ("on_train_begin",),
        ("on_epoch_begin", 5),
        ("on_epoch_end", 5, {"loss": 0.5}),
        ("on_train_end", {"loss": 0.5}),
    ]
    assert (hooks.stopped, hooks.reason) == ("", "")


def test_hooks_without_a_function_do_nothing():
    hooks = hooks_of({})
    hooks.on_train_begin()
    hooks.on_epoch_begin(0)
    hooks.on_epoch_end(0, None)
    assert hooks.model.stop_training is False
    hooks.on_train_end(None)


@pytest.mark.parametrize("at", [("on_train_begin",), ("on_epoch_begin", 1), ("on_epoch_end", 1)])
def test_a_wish_to_stop_is_granted_after_the_epoch(at):
    hooks = hooks_of(recorder([], {at: STOP}))
    hooks.on_train_begin()
    hooks.on_epoch_begin(0)
    hooks.on_epoch_end(0, {})
    assert hooks.model.stop_training is True
    assert hooks.stopped == "early"
    assert hooks.reason == f'{at[0]}() said "stop" in epoch 1'


def test_an_interrupt_after_an_epoch_is_no_exception():
    hooks = hooks_of(recorder([], {("on_epoch_end", 1): INTERRUPTED}))
    hooks.on_epoch_begin(0)
    hooks.on_epoch_end(0, {})
    assert hooks.model.stop_training is True
    assert hooks.stopped == "interrupted"


def test_an_interrupt_counts_more_than_a_wish_to_stop():
    hooks = hooks_of(recorder([], {("on_epoch_begin", 1): STOP, ("on_epoch_end", 1): INTERRUPTED}))
    hooks.on_epoch_begin(0)
    hooks.on_epoch_end(0, {})
    assert (hooks.stopped, hooks.reason) == ("interrupted", "")


def test_an_interrupt_before_an_epoch_is_a_keyboard_interrupt():
    hooks = hooks_of(recorder([], {("on_epoch_begin", 2): INTERRUPTED}))
    hooks.on_epoch_begin(0)
    with pytest.raises(KeyboardInterrupt, match="`on_epoch_begin` in epoch 2"):
        hooks.on_epoch_begin(1)
    assert issubclass(GeneratorInterrupt, KeyboardInterrupt)


def test_an_interrupt_at_the_end_is_noted():
    hooks = hooks_of({"on_train_end": lambda metrics: INTERRUPTED})
    hooks.on_train_end({})
    assert hooks.stopped == "interrupted"


# Through Keras' own fit() ------------------------------------------------------------------------


def small_model():
    keras = runtime.keras()
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
    return model


def train(model, functions, epochs=3):
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(16, 2)
    callback = as_callback(FunctionHooks, functions)
    model.fit(
        x, x[:, :1], epochs=epochs, verbose=0, callbacks=[callback], validation_data=(x, x[:, :1])
    )
    return callback


@pytest.mark.tf
def test_keras_calls_each_function():
    calls = []
    hooks = train(small_model(), recorder(calls), epochs=2)
    assert [call[0] for call in calls] == [
        "on_train_begin",
        *["on_epoch_begin", "on_epoch_end"] * 2,
        "on_train_end",
    ]
    assert [call[1] for call in calls if call[0] == "on_epoch_end"] == [1, 2]
    assert list(calls[2][2]) == ["loss", "mae", "val_loss", "val_mae"]
    assert calls[-1][1] == calls[-2][2]
    assert hooks.stopped == ""


@pytest.mark.tf
def test_a_function_stops_keras():
    calls, model = [], small_model()
    hooks = train(model, recorder(calls, {("on_epoch_end", 2): STOP}), epochs=9)
    assert len(model.history.history["loss"]) == 2
    assert calls[-1][0] == "on_train_end"
    assert hooks.stopped == "early"


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_epoch_end"])
def test_a_failure_comes_out_of_keras_as_it_is_and_the_model_keeps_what_it_learned(hook):
    model = small_model()
    before = model.get_weights()[0]
    with pytest.raises(GeneratorError, match=f"The function `{hook}` failed in epoch 2"):
        train(model, recorder([], {(hook, 2): FAILED}))
    assert not np.array_equal(model.get_weights()[0], before)
    train(model, {}, epochs=1)  # and goes on


@pytest.mark.tf
def test_it_is_no_hook_on_batches():
    assert find_batch_hook([as_callback(FunctionHooks, recorder([]))]) == ""


# Keras callbacks ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.tf
@pytest.mark.parametrize("engine", few(["keras", "graph_loop", "compiled"], "graph_loop"))
def test_a_given_engine_calls_what_works_on_batches_as_keras_does(engine):
    class Losses(runtime.keras().callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append((batch, float(logs["loss"])))

    data, mine, theirs = make_dataset(210, shuffle=False), Losses(), Losses()
    make_model().fit(
        *data.arrays, batch_size=32, epochs=2, shuffle=False, verbose=0, callbacks=[theirs]
    )
    fit.fit(make_model(), data, {"epochs": 2, "engine": engine}, callbacks=[mine])
    np.testing.assert_allclose(mine.seen, theirs.seen, rtol=1e-5)


@pytest.mark.tf
def test_a_callback_on_batches_of_validation_rows_is_told_of(tmp_path):
    class Tests(runtime.keras().callbacks.Callback):
        def on_test_batch_end(self, batch, logs=None):
            pass

    report = fit.fit(make_model(), make_dataset(validation=0.2), {"epochs": 1}, callbacks=[Tests()])
    assert report.notes == (
        "The callback Tests sees all validation rows as one batch: they are evaluated together.",
    )
    assert fit.fit(make_model(), make_dataset(), {"epochs": 1}, callbacks=[Tests()]).notes == ()
    board = runtime.keras().callbacks.ModelCheckpoint(tmp_path / "m.keras", save_freq=3)
    board.save_freq = "batch"
    assert find_batch_hook([board]) == "ModelCheckpoint"


@pytest.mark.tf
@pytest.mark.parametrize(
    ("engine", "each"),
    few(
        itertools.product(("keras", "graph_loop"), (False, True)),
        ("keras", True),
        ("graph_loop", False),
    ),
)
def test_callbacks_see_the_end_of_an_epoch_that_ended_as_no_number(engine, each, tmp_path, capsys):
    keras = runtime.keras()
    log = tmp_path / "log.csv"

    class Each(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    class Saved(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.epoch, self.logs, self.weights = epoch, logs, self.model.get_weights()

    saved = Saved()
    given = [keras.callbacks.TerminateOnNaN(), keras.callbacks.CSVLogger(str(log)), saved]
    model = make_model(optimizer=keras.optimizers.SGD(1e30))
    report = fit.fit(
        model,
        make_dataset(210),
        {"epochs": 3, "engine": engine},
        callbacks=[*given, *([Each()] if each else [])],
    )
    assert report.stopped == "non_finite"
    assert "Invalid loss, terminating training" in capsys.readouterr().out
    assert log.read_text().splitlines()[1].split(",")[2] == "nan"
    assert given[1].csv_file.closed
    assert (saved.epoch, len(model.history.history["loss"])) == (0, 1)
    assert math.isnan(saved.logs["loss"])
    assert all(np.isfinite(weights).all() for weights in saved.weights)  # none saves what is NaN


@pytest.mark.tf
def test_a_class_made_in_r_may_be_of_no_module():
    made: dict = {"base": runtime.keras().callbacks.Callback}
    exec("kind = type('Mine', (base,), {'on_train_batch_end': lambda *args: None})", made)
    assert not hasattr(made["kind"], "__module__")
    assert find_batch_hook([made["kind"]()]) == "Mine"
