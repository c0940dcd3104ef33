"""A training with all its aids survives what happens, and leaves the model as Keras knows it."""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from children import run_python
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras.backend import runtime
from gpukeras.training import fit as training_fit
from gpukeras.training import listener, nan_guard

pytestmark = pytest.mark.tf

SUPPORT = Path(__file__).parents[1] / "support"
RATES = {"kind": "exponential", "decay": 0.5}
WORST = {"patience": 2, "monitor": "loss", "mode": "max"}  # the first epoch's weights
AIDS = {"schedule": RATES, "ema": 0.9, "early_stopping": 5, "clip_norm": 1.0}


def fit(model, data=None, callbacks=(), **options):
    data = make_dataset(validation=0.2) if data is None else data
    options = {"epochs": 3, "engine": "graph_loop", **options}
    return training_fit.fit(model, data, options, callbacks=callbacks)


def assert_usable(model):
    """Nothing of gpukeras is left in it, and Keras' own fit() trains it."""
    assert "train_step" not in vars(model)
    assert (model.train_function, model.test_function) == (None, None)
    assert isinstance(model.optimizer._learning_rate, runtime.keras().Variable)
    assert {"get_config", "_all_reduce_sum_gradients"}.isdisjoint(vars(model.optimizer))
    assert model.optimizer.clipnorm is None
    history = model.fit(*make_dataset().arrays, verbose=0).history
    assert np.isfinite(history["loss"]).all()


# Memory ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory can be limited so on Linux only")
@pytest.mark.parametrize("engine", few(["graph_loop", "keras"], "graph_loop"))
def test_a_training_that_runs_out_of_memory_backs_off_and_finishes(engine):
    variables = {"MALLOC_ARENA_MAX": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
    child = run_python(str(SUPPORT / "memory_child.py"), "700", engine, **variables)
    assert child.returncode == 0, child.stderr[-2000:]
    found = json.loads(child.stdout.splitlines()[-1])
    assert "ran out of memory at batch size 128" in found["stopped"]["error"]
    limited, free = found["limited"][engine], found["free"][engine]
    assert limited["micro"] < free["micro"] == 128
    assert "ran out of memory: batches of 128 rows" in limited["notes"][0]
    assert (limited["rows"], limited["updates"]) == (free["rows"], free["updates"])
    np.testing.assert_allclose(limited["weights"], free["weights"], rtol=1e-3, atol=1e-5)
    for name, values in free["history"].items():
        np.testing.assert_allclose(limited["history"][name], values, rtol=1e-4, err_msg=name)


@pytest.mark.slow
def test_trainings_leave_no_function_behind():
    from tensorflow.python.framework.func_graph import FuncGraph

    def count():
        gc.collect()
        return sum(isinstance(each, FuncGraph) for each in gc.get_objects())

    model = make_model(optimizer="adam")
    fit(model)
    before = count()
    for _ in range(2):
        fit(model)
    assert count() <= before


# Callbacks ---------------------------------------------------------------------------------------


def test_a_schedule_is_followed_and_the_rate_is_the_models_own_afterwards():
    model = make_model()
    before = float(model.optimizer.learning_rate)
    report = fit(model, make_dataset(160, shuffle=False), schedule=RATES)
    assert report.learning_rate == sorted(report.learning_rate, reverse=True)
    assert report.learning_rate[0] > report.learning_rate[-1]
    assert float(model.optimizer.learning_rate) == before


@pytest.mark.slow
def test_averages_are_what_is_validated_and_what_is_left():
    model, data = make_model(optimizer="adam"), make_dataset(300, validation=0.3)
    report = fit(model, data, ema=0.9)
    rows = data.rows("validation")
    loss, _ = model.evaluate(*[array[rows] for array in data.arrays], verbose=0)
    assert report.history["val_loss"][-1] == pytest.approx(loss, rel=1e-5)


@pytest.mark.varies
@pytest.mark.parametrize("options", [{"ema": 0.9}, {"early_stopping": WORST}], ids=str)
def test_the_end_of_a_training_sees_the_weights_that_stay(options):
    seen, model = [], make_model(optimizer="adam")
    keras = runtime.keras()
    end = keras.callbacks.LambdaCallback(on_train_end=lambda logs: seen.append(read(model)))
    data = make_dataset(validation=0.2)
    training_fit.fit(
        model, data, {"epochs": 9, "engine": "graph_loop", **options}, callbacks=[end],
        functions={"on_train_end": lambda metrics: seen.append(read(model)) or {}},
    )  # fmt: skip
    for weights in seen:
        np.testing.assert_array_equal(weights, read(model))


def read(model):
    return np.concatenate([weights.ravel() for weights in model.get_weights()])


def test_weights_that_a_callback_restores_are_not_replaced_by_averages():
    keras = runtime.keras()
    model = make_model()
    first = []
    worst = keras.callbacks.EarlyStopping("loss", mode="max", patience=2, restore_best_weights=True)
    keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: first.append(read(model)))
    report = fit(model, callbacks=[keep, worst], ema=0.9, epochs=9)
    assert report.epochs == 3
    np.testing.assert_array_equal(read(model), first[0])


@pytest.mark.slow
def test_a_loss_that_is_no_number_leaves_the_averages(monkeypatch):
    monkeypatch.setattr(nan_guard, "KEEPING_SHARE", 1e9)  # each epoch's beginning is kept
    model, seen = make_model(), []

    class Explode(runtime.keras().callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                self.model.optimizer.learning_rate.assign(1e30)

        def on_epoch_end(self, epoch, logs=None):
            seen.append(read(model))

    report = fit(model, callbacks=[Explode()], ema=0.9, epochs=4)
    assert (report.stopped, report.epochs) == ("non_finite", 2)
    np.testing.assert_array_equal(read(model), seen[1])


@pytest.mark.slow
def test_an_optimizer_that_accumulates_gradients_takes_all_aids():
    optimizer = runtime.keras().optimizers.Adam(0.01, gradient_accumulation_steps=2)
    report = fit(make_model(optimizer=optimizer), ema=0.9, schedule=RATES)
    assert (report.stopped, report.skipped_steps) == ("completed", 0)


# Ends --------------------------------------------------------------------------------------------

HOOKS = ("on_train_begin", "on_epoch_begin", "on_test_end", "on_epoch_end")


def raising(hook, error):
    def fail(*_, **__):
        raise error

    callback = runtime.keras().callbacks.Callback()
    setattr(callback, hook, fail)
    return callback


@pytest.mark.varies
@pytest.mark.parametrize("hook", few(HOOKS, "on_epoch_begin", "on_epoch_end"))
def test_an_interrupt_in_a_callback_ends_the_training_cleanly(hook):
    model = make_model(optimizer="adam")
    report = fit(model, callbacks=[raising(hook, KeyboardInterrupt())], **AIDS)
    assert (report.stopped, report.epochs) == ("interrupted", 0)
    assert_usable(model)


@pytest.mark.slow
def test_an_error_in_a_callback_is_passed_on_and_leaves_the_model_usable():
    model = make_model(optimizer="adam")
    with pytest.raises(ZeroDivisionError, match="mine"):
        fit(model, callbacks=[raising("on_epoch_end", ZeroDivisionError("mine"))], **AIDS)
    assert_usable(model)


@pytest.mark.slow
@pytest.mark.parametrize("same", [True, False])
def test_a_training_may_train_within_a_callback(same):
    model = make_model()
    other, inner = model if same else make_model(seed=3), []

    def train(epoch, logs):
        if epoch == 0:
            inner.append(fit(other, epochs=1))

    callback = runtime.keras().callbacks.LambdaCallback(on_epoch_end=train)
    report = fit(model, callbacks=[callback])
    assert (report.stopped, report.epochs, inner[0].epochs) == ("completed", 3, 1)
    assert_usable(model)


def test_a_training_goes_on_from_its_checkpoint_with_all_aids(tmp_path):
    whole = make_model(optimizer="adam")
    expected = fit(whole, epochs=4, **AIDS)
    options = {"epochs": 4, "checkpoint": str(tmp_path), **AIDS}
    fit(make_model(optimizer="adam"), callbacks=[stop_after(2)], **options)
    model = make_model(optimizer="adam")
    report = fit(model, **options)
    assert (report.resumed_epochs, report.epochs) == (2, 4)
    assert report.notes[0] == "Resumed after epoch 2, from its checkpoint."
    assert report.history == expected.history
    assert report.learning_rate == expected.learning_rate
    for one, other in zip(whole.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def stop_after(epochs):
    def begin(epoch, logs=None):
        if epoch == epochs:
            raise KeyboardInterrupt

    return runtime.keras().callbacks.LambdaCallback(on_epoch_begin=begin)


@pytest.mark.parametrize("kind", ["epoch", "progress"])
def test_an_interrupt_keeps_what_backup_and_restore_has_saved(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(listener, "EVENT_S", 0.0)
    folder = tmp_path / "backup"
    backup = runtime.keras().callbacks.BackupAndRestore(str(folder))
    data, options = make_dataset(validation=0.2), {"epochs": 4, "engine": "graph_loop"}

    def train(stop=None):
        return training_fit.fit(make_model(), data, options, callbacks=[backup], on_event=stop)

    stopped = train(lambda event: (event["kind"], event["epoch"]) == (kind, 2))
    assert (stopped.stopped, stopped.epochs) == ("interrupted", 2)
    assert folder.is_dir()
    report = train()
    assert report.resumed_epochs == (2 if kind == "epoch" else 1)
    assert (report.epochs, folder.exists()) == (4, False)
