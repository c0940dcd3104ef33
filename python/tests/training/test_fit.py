import dataclasses
from importlib.util import find_spec

import numpy as np
import precisions
import pytest
from small_fits import make_dataset, make_model

from gpukeras import DataError, ModelError, SpecError
from gpukeras.backend import devices, runtime
from gpukeras.training import fit

pytestmark = pytest.mark.tf


def test_the_report_says_what_was_done(model):
    report = fit.fit(model, make_dataset(200, validation=0.2), {"epochs": 3})
    assert (report.epochs, report.stopped) == (3, "completed")
    assert report.device == devices.current().device
    assert list(report.history) == ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert all(len(values) == 3 for values in report.history.values())
    assert report.rows == 3 * 160
    assert len(report.epoch_s) == 3
    assert (report.peak_bytes is None) == (report.device == "CPU:0")
    assert report.variables == {report.device: len(model.variables)}
    assert 0 <= report.input_share <= 1
    assert report.precision == precisions.asked


def test_a_session_that_forbids_xla_is_heeded_and_the_model_keeps_its_setting(monkeypatch):
    seen = []

    class Watched(runtime.keras().Sequential):
        def train_step(self, *args):
            seen.append(self.jit_compile)
            return super().train_step(*args)

    model = Watched([runtime.keras().layers.Dense(3, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=True)
    monkeypatch.setattr(devices, "_current", devices.Setup("CPU:0", jit=False))
    fit.fit(model, make_dataset(200), {"epochs": 1, "engine": "keras"})
    assert seen == [False] * len(seen) != []
    assert model.jit_compile is True
    monkeypatch.setattr(devices, "_current", devices.Setup("CPU:0"))
    fit.fit(model, make_dataset(200), {"epochs": 1, "engine": "keras"})
    assert seen[-1] is True


def test_validation_metrics_are_keras_own(model):
    data = make_dataset(300, validation=0.3)
    report = fit.fit(model, data, {"epochs": 2, "engine": "graph_loop"})
    rows = data.rows("validation")
    loss, accuracy = model.evaluate(*[a[rows] for a in data.arrays], verbose=0)
    np.testing.assert_allclose(report.history["val_loss"][-1], loss, rtol=1e-5)
    np.testing.assert_allclose(report.history["val_accuracy"][-1], accuracy, rtol=1e-5)


def test_validation_rows_may_be_given(model):
    data = make_dataset(100)
    report = fit.fit(model, data, {"epochs": 1}, validation=make_dataset(50, seed=9))
    assert "val_loss" in report.history


def test_validation_encoded_by_its_own_means_is_refused(model):
    data, other = make_dataset(100, scale=True), make_dataset(50, seed=9, scale=True)
    with pytest.raises(DataError, match="`validation` was encoded by its own means"):
        fit.fit(model, data, {}, validation=other)


def test_training_on_data_encoded_otherwise_is_refused(model):
    fit.fit(model, make_dataset(100, scale=True), {"epochs": 1})
    with pytest.raises(DataError, match="encoded by its own means"):
        fit.fit(model, make_dataset(100, seed=2, scale=True), {"epochs": 1})


def test_keras_callbacks_work(model):
    stopping = runtime.keras().callbacks.EarlyStopping("loss", patience=0, min_delta=100.0)
    report = fit.fit(model, make_dataset(), {"epochs": 9}, callbacks=[stopping])
    assert (report.stopped, report.epochs) == ("early", 2)


def test_a_callback_that_works_on_batches_sees_every_batch(model):
    class Counter(runtime.keras().callbacks.Callback):
        seen = 0

        def on_train_batch_end(self, batch, logs=None):
            self.seen += 1

    counter, data = Counter(), make_dataset(210, batch_size=20)
    report = fit.fit(model, data, {"epochs": 2}, callbacks=[counter])
    assert counter.seen == 2 * 11
    assert report.engine.engine == "keras"
    assert "Counter works on every batch" in report.engine.reason


@pytest.mark.slow
def test_a_callback_sees_batches_in_groups_where_the_model_executes_several_a_call():
    class Listing(runtime.keras().callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.told = []

        def on_train_batch_begin(self, batch, logs=None):
            self.told.append(("begin", batch))

        def on_train_batch_end(self, batch, logs=None):
            self.told.append(("end", batch, round(float(logs["loss"]), 4)))

    data = make_dataset(210, batch_size=20, shuffle=False)
    told, weights = [], []
    for ours in (True, False):
        model, listing = make_model(), Listing()
        model.steps_per_execution = 4
        more = {"epochs": 2, "callbacks": [listing]}
        if ours:
            callbacks = more.pop("callbacks")
            fit.fit(model, data, more, callbacks=callbacks)
        else:
            model.fit(*data.arrays, batch_size=20, shuffle=False, verbose=0, **more)
        assert model.steps_per_execution == 4
        told.append(listing.told)
        weights.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    assert [one[:2] for one in told[0]][:6] == [
        (kind, batch) for at in (0, 4, 8) for kind, batch in (("begin", at), ("end", at + 3))
    ]
    assert told[0] == told[1]
    np.testing.assert_allclose(*weights, rtol=1e-4, atol=1e-6)


def test_the_listener_is_told_and_may_stop(model):
    events = []

    def listen(event):
        events.append(event)
        return event["kind"] == "epoch" and event["epoch"] == 2

    report = fit.fit(model, make_dataset(), {"epochs": 50}, on_event=listen)
    assert (report.stopped, report.epochs) == ("interrupted", 2)
    last = events[-1]
    assert (last["epoch"], last["epochs"], last["step"], last["steps"]) == (2, 50, 7, 7)
    assert "loss" in last["metrics"]


def test_an_epoch_that_was_stopped_half_way_counts_what_it_trained(model):
    data = make_dataset(5000, batch_size=1)
    report = fit.fit(
        model, data, {"epochs": 3, "engine": "keras"}, on_event=lambda event: event["step"] > 0
    )
    assert report.stopped == "interrupted"
    assert 0 < report.rows < 5000
    assert report.samples_per_s == pytest.approx(report.rows / report.epoch_s[0])


def test_an_interrupt_keeps_the_epochs_done(model):
    def interrupt(event):
        if event["epoch"] == 3:
            raise KeyboardInterrupt

    report = fit.fit(model, make_dataset(), {"epochs": 50}, on_event=interrupt)
    assert report.stopped == "interrupted"
    assert len(report.history["loss"]) == len(report.epoch_s)
    assert 2 <= report.epochs <= 3


def test_keras_fit_works_as_before_afterwards(model):
    model.steps_per_execution = 4
    data = make_dataset()
    fit.fit(model, data, {"epochs": 1})
    assert model.steps_per_execution == 4
    assert model.train_function is None
    model.fit(*data.arrays, epochs=1, verbose=0)


def test_the_same_seed_repeats_bit_for_bit():
    runs = []
    for _ in range(2):
        model = make_model(optimizer="adam")
        fit.fit(model, make_dataset(), {"epochs": 3, "engine": "graph_loop"})
        runs.append(model.get_weights())
    for one, two in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, two)


def test_staged_rows_train_like_resident_ones():
    results = []
    for cache in ("device", "host"):
        model = make_model()
        fit.fit(model, make_dataset(cache=cache), {"epochs": 2, "engine": "graph_loop"})
        results.append(model.get_weights())
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_eager_models_train_with_keras_own_step(model):
    model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    report = fit.fit(model, make_dataset(64, validation=0.5), {"epochs": 1})
    assert report.engine.engine == "keras"
    assert "run_eagerly" in report.engine.reason


@pytest.mark.slow
def test_the_sessions_jit_is_heeded(model, monkeypatch):
    setup = dataclasses.replace(devices.current(), jit=True)
    monkeypatch.setattr(devices, "current", lambda: setup)
    report = fit.fit(model, make_dataset(), {"epochs": 1})
    assert report.engine.engine == "compiled"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "`epochs` must be a whole number of at least 1"),
        ({"epochs": 1.5}, "`epochs` must be a whole number"),
        ({"engine": "fast"}, "`engine` must be one of"),
        ({"epoch": 1}, "Unknown option `epoch`"),
    ],
)
def test_bad_options_are_refused(model, options, message):
    with pytest.raises(SpecError, match=message):
        fit.fit(model, make_dataset(), options)


def test_bad_models_are_refused():
    keras = runtime.keras()
    data = make_dataset()
    with pytest.raises(SpecError, match="must be a Keras 3 model, not a list"):
        fit.fit({}, data, {})
    uncompiled = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    with pytest.raises(ModelError, match="not compiled"):
        fit.fit(uncompiled, data, {})
    with pytest.raises(ModelError, match=r"rows of shape \(4,\), but the data's rows have \(5,\)"):
        fit.fit(make_model(columns=4), data, {})


def test_rows_that_cannot_be_evaluated_are_refused(model):
    from gpukeras.data.dataset import map_dataset
    from gpukeras.training import evaluate

    features = {"kind": "array", "values": np.zeros((3, 5))}
    unlabelled = map_dataset.build_dataset(features, {}, recipe=make_dataset().recipe)
    for call in (
        lambda: fit.fit(model, unlabelled, {}),
        lambda: fit.fit(model, make_dataset(), {}, validation=unlabelled),
        lambda: evaluate.evaluate(model, unlabelled),
    ):
        with pytest.raises(DataError, match="has no labels"):
            call()
    with pytest.raises(SpecError, match='`callbacks` must hold Keras callbacks, not "x"'):
        fit.fit(model, make_dataset(), {}, callbacks=["x"])
    with pytest.raises(SpecError, match="`batch_size` must be a whole number of at least 1, not 0"):
        evaluate.evaluate(model, make_dataset(), batch_size=0)


def test_validation_labels_are_checked_by_their_own_range():
    from gpukeras.data.dataset import map_dataset

    def numbers(codes):
        x = {"kind": "array", "values": np.zeros((len(codes), 5))}
        y = {"kind": "integer", "values": np.array(codes), "levels": []}
        recipe = data.recipe if codes[-1] > 2 else None
        return map_dataset.build_dataset(x, {}, y, recipe=recipe)

    data = numbers([0, 2, 0, 1, 2])
    with pytest.raises(DataError, match="from 0 to 7"):
        fit.fit(make_model(), data, {}, validation=numbers([0, 1, 7]))


def test_a_model_that_keras_cannot_build_is_refused():
    keras = runtime.keras()
    model = keras.Sequential([keras.layers.Conv2D(2, 3), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ModelError, match="Keras cannot build the model on this data"):
        fit.fit(model, make_dataset(), {})


def test_a_schedule_and_a_callback_that_sets_the_rate_are_one_too_many():
    callback = runtime.keras().callbacks.ReduceLROnPlateau()
    options = {"schedule": {"kind": "constant"}}
    with pytest.raises(SpecError, match="`schedule` and the callback ReduceLROnPlateau both set"):
        fit.fit(make_model(), make_dataset(), options, callbacks=[callback])


def saved_by(callback, engine="auto"):
    """The report of a training of 2 epochs of 4 batches."""
    data = make_dataset(40, batch_size=10)
    return fit.fit(make_model(), data, {"epochs": 2, "engine": engine}, callbacks=[callback])


def test_keras_callbacks_that_count_batches_count_each(tmp_path):
    checkpoint = runtime.keras().callbacks.ModelCheckpoint
    report = saved_by(checkpoint(str(tmp_path / "{epoch}-{batch}.keras"), save_freq=3))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1-3.keras", "2-2.keras"]
    assert report.engine.engine == "keras"
    report = saved_by(checkpoint(str(tmp_path / "last.keras")), engine="graph_loop")
    assert report.engine.engine == "graph_loop"


def test_backup_and_restore_goes_on_where_it_ended(tmp_path):
    keras, data = runtime.keras().callbacks, make_dataset(40, batch_size=10)

    def fail(epoch, logs):
        if epoch == 1:
            raise RuntimeError("power cut")

    def backup():
        return keras.BackupAndRestore(str(tmp_path))

    model = make_model()
    calls = [backup(), keras.LambdaCallback(on_epoch_end=fail)]
    with pytest.raises(RuntimeError, match="power cut"):
        fit.fit(model, data, {"epochs": 4}, callbacks=calls)
    report = fit.fit(model, data, {"epochs": 4}, callbacks=[backup()])
    assert (report.epochs, report.resumed_epochs, report.stopped) == (4, 2, "completed")
    assert len(report.epoch_s) == 2
    assert any("BackupAndRestore" in note for note in report.notes)
    assert len(model.fit(*data.arrays, verbose=0).epoch) == 1  # of which Keras knows nothing
    assert fit.fit(model, data, {"epochs": 1}).resumed_epochs == 0
    options = {"epochs": 1, "checkpoint": str(tmp_path / "own")}
    with pytest.raises(SpecError, match="both resume"):
        fit.fit(model, data, options, callbacks=[backup()])
    with pytest.raises(SpecError, match="sees the averages of `ema` in the weights' place"):
        fit.fit(model, data, {"epochs": 1, "ema": 0.9}, callbacks=[backup()])


def test_the_tensorboard_callback_needs_its_package(tmp_path):
    board = runtime.keras().callbacks.TensorBoard(str(tmp_path))
    if find_spec("tensorboard"):
        assert saved_by(board).epochs == 2
        return
    with pytest.raises(SpecError, match="needs the Python package tensorboard"):
        saved_by(board)
