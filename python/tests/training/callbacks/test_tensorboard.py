"""Event files as TensorFlow's own reader sees them, and, where it is installed, TensorBoard's."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import few
from small_fits import make_dataset, make_model

from gpukeras import SpecError
from gpukeras.backend import runtime, tracing
from gpukeras.engine.engine_facts import find_batch_hook
from gpukeras.training import fit as training_fit
from gpukeras.training.callbacks.keras_class import as_callback
from gpukeras.training.callbacks.tensorboard import (
    Board,
    BoardSpec,
    TraceWindow,
    count_buckets,
    split_runs,
)
from gpukeras.training.progress import Progress

# Options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ("logs", BoardSpec("logs", 0, False)),
        ({"folder": "logs", "histograms": True}, BoardSpec("logs", 1, False)),
        ({"folder": "logs", "histograms": False}, BoardSpec("logs", 0, False)),
        ({"folder": "logs", "histograms": 5.0, "profile": True}, BoardSpec("logs", 5, True)),
    ],
)
def test_options_are_read(given, spec):
    assert BoardSpec.parse(given) == spec


@pytest.mark.parametrize(
    ("given", "arg", "message"),
    [
        ("", "tensorboard", "must be the path of a folder"),
        ({}, "tensorboard", "must be the path of a folder"),
        ({"folder": 3}, "tensorboard", "must be the path of a folder, not 3"),
        ({"folder": "logs", "histograms": -1}, "histograms", "whole number of at least 0"),
        ({"folder": "logs", "histograms": 0.5}, "histograms", "whole number"),
        ({"folder": "logs", "profile": 1}, "profile", "TRUE or FALSE"),
        ({"folder": "logs", "images": True}, "images", "Unknown option"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(given, arg, message):
    with pytest.raises(SpecError, match=message) as caught:
        BoardSpec.parse(given)
    assert caught.value.details["arg"] == arg


# Values ------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.lists(
        st.floats(width=32) | st.sampled_from([0.0, 1.0, 3e38, -3e38, float("nan"), float("inf")])
    )
)
def test_every_finite_value_is_in_one_bucket(values):
    values = np.array(values, dtype=np.float32)
    buckets = count_buckets(values)
    assert (buckets.shape, buckets.dtype) == ((30, 3), np.float64)
    assert np.isfinite(buckets).all()
    left, right, counts = buckets.T
    np.testing.assert_array_equal(left[1:], right[:-1])
    assert (left < right).all()
    finite = values[np.isfinite(values)]
    assert counts.sum() == finite.size
    assert finite.size == 0 or (left[0] <= finite.min() and finite.max() <= right[-1])


def test_buckets_are_counted_as_numpy_does_across_blocks(monkeypatch):
    values = np.random.default_rng(0).normal(size=(7, 11)).astype(np.float32)
    counts, edges = np.histogram(values.astype(np.float64), 30)
    monkeypatch.setattr("gpukeras.training.callbacks.tensorboard.BLOCK", 10)
    left, right, found = count_buckets(values).T
    np.testing.assert_array_equal(found, counts)
    np.testing.assert_allclose([*left, right[-1]], edges)


def test_metrics_go_to_the_run_that_they_are_of():
    metrics = {"loss": 1.0, "val_loss": 2.0, "a_accuracy": 0.5, "val_a_accuracy": 0.25}
    assert split_runs(metrics) == (
        {"epoch_loss": 1.0, "epoch_a_accuracy": 0.5},
        {"epoch_loss": 2.0, "epoch_a_accuracy": 0.25},
    )


# Files -------------------------------------------------------------------------------------------


def read_events(folder):
    """What is in a run's event files: {tag: (plugin, {step: array})}."""
    tf, found = runtime.tensorflow(), {}
    files = sorted(str(path) for path in Path(folder).glob("events.out.tfevents.*"))
    for record in tf.data.TFRecordDataset(files):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            plugin = value.metadata.plugin_data.plugin_name
            known, steps = found.setdefault(value.tag, (plugin, {}))
            assert plugin == known
            steps[event.step] = tf.make_ndarray(value.tensor)
    return found


def scalars(folder, tag):
    plugin, steps = read_events(folder)[tag]
    assert plugin == "scalars"
    assert {(value.shape, value.dtype.name) for value in steps.values()} == {((), "float32")}
    return {step: float(value) for step, value in steps.items()}


METRICS = ("loss", "accuracy", "val_loss", "val_accuracy")


def train(folder, epochs=3, progress=None, **options):
    """What a training tells a board; gives the board, the metrics and the model."""
    model, progress = make_model(), progress or Progress()
    loader = SimpleNamespace(wait_s=0.0)
    spec = BoardSpec(str(folder), **options)
    board = as_callback(Board, spec, model, epochs, progress, loader)
    for epoch in range(progress.epoch, epochs):
        board.on_epoch_begin(epoch)
        with runtime.tensorflow().profiler.experimental.Trace(f"rows of {epoch}"):
            loader.wait_s += 1e-9
        board.on_test_begin()
        with runtime.tensorflow().profiler.experimental.Trace("validation"):
            values = np.arange(4.0) + epoch / 8
        progress.add(dict(zip(METRICS, values, strict=True)), 0.5, 40, 0.1 / (epoch + 1))
        board.on_epoch_end(epoch)
    board.close()
    return board, progress.history, model


@pytest.mark.tf
def test_an_epochs_figures_are_in_the_files_of_both_runs(tmp_path):
    board, history, _ = train(tmp_path / "new" / "run")
    assert board.notes == []
    folder = tmp_path / "new" / "run"
    for name in ("loss", "accuracy"):
        found = scalars(folder / "train", f"epoch_{name}")
        assert found == pytest.approx(dict(enumerate(history[name])))
        found = scalars(folder / "validation", f"epoch_{name}")
        assert found == pytest.approx(dict(enumerate(history[f"val_{name}"])))
    rates = scalars(folder / "train", "epoch_learning_rate")
    assert rates == pytest.approx({0: 0.1, 1: 0.05, 2: 0.1 / 3})
    assert scalars(folder / "train", "epoch_samples_per_s") == {0: 80.0, 1: 80.0, 2: 80.0}
    shares = scalars(folder / "train", "epoch_input_share")
    assert all(0 < share < 1 for share in shares.values())
    assert sorted(shares) == [0, 1, 2]
    assert sorted(path.name for path in folder.iterdir()) == ["train", "validation"]


@pytest.mark.tf
def test_what_was_done_before_a_resumption_is_not_written_again(tmp_path):
    train(tmp_path, epochs=2)
    earlier = {"loss": [3.0, 2.0], "accuracy": [0.1, 0.2], "val_loss": [1.0, 1.0]}
    progress = Progress(2, {**earlier, "val_accuracy": [0.1, 0.1]}, [1.0] * 2, [40] * 2, [0.1] * 2)
    train(tmp_path, epochs=4, progress=progress)
    assert sorted(scalars(tmp_path / "train", "epoch_loss")) == [0, 1, 2, 3]


@pytest.mark.tf
@pytest.mark.parametrize(("every", "steps"), [(False, []), (True, [0, 1, 2]), (2, [0, 2])])
def test_weights_are_counted_on_request(tmp_path, every, steps):
    _, _, model = train(tmp_path, histograms=every)
    found = read_events(tmp_path / "train")
    for weight in model.weights if every else []:
        plugin, histograms = found[f"{weight.path}/histogram"]
        assert plugin == "histograms"
        assert sorted(histograms) == steps
        np.testing.assert_array_equal(histograms[2], count_buckets(weight.numpy()))
        assert histograms[2][:, 2].sum() == np.prod(weight.shape)
    assert len([tag for tag in found if "histogram" in tag]) == (4 if every else 0)


@pytest.mark.tf
def test_tensorboards_own_reader_understands_the_files(tmp_path):
    reason = "TensorBoard is not installed: pip install tensorboard"
    module = "tensorboard.backend.event_processing.event_accumulator"
    reader = pytest.importorskip(module, reason=reason)
    arrays = pytest.importorskip("tensorboard.util.tensor_util", reason=reason)
    _, history, model = train(tmp_path, histograms=True)
    run = reader.EventAccumulator(str(tmp_path / "train"), size_guidance={"tensors": 0}).Reload()
    events = run.Tensors("epoch_loss")
    losses = [float(arrays.make_ndarray(event.tensor_proto)) for event in events]
    assert losses == pytest.approx(history["loss"])
    tag = f"{model.weights[0].path}/histogram"
    assert tag in run.PluginTagToContent("histograms")
    assert [event.step for event in run.Tensors(tag)] == [0, 1, 2]


@pytest.mark.tf
def test_keras_own_fit_calls_the_board(tmp_path):
    model, progress = make_model(), Progress()
    model.run_eagerly = True  # a few batches are not worth a graph
    loader = SimpleNamespace(wait_s=0.0)
    board = as_callback(Board, BoardSpec(str(tmp_path)), model, 2, progress, loader)

    def count(epoch, logs):
        progress.add({name: float(value) for name, value in logs.items()}, 0.5, 40, 0.1)

    hook = runtime.keras().callbacks.LambdaCallback(on_epoch_end=count)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)), rng.integers(0, 3, 40)
    callbacks = [hook, board]
    history = model.fit(x, y, validation_split=0.25, epochs=2, verbose=0, callbacks=callbacks)
    board.close()
    for run, name in (("train", "loss"), ("validation", "val_loss")):
        found = scalars(tmp_path / run, "epoch_loss")
        assert found == pytest.approx(dict(enumerate(history.history[name])))


@pytest.mark.tf
def test_the_callback_does_not_ask_for_every_batch(tmp_path):
    board = as_callback(Board, BoardSpec(str(tmp_path)), None, 2, Progress(), None)
    assert find_batch_hook([board]) == ""


# Traces ------------------------------------------------------------------------------------------


def traces(folder):
    return [str(path.relative_to(folder)) for path in Path(folder).glob("plugins/profile/*/*.pb")]


def marks_in(path):
    """The names of what the test itself did while it was traced."""
    trace = tracing.trace_message()
    trace.ParseFromString(Path(path).read_bytes())
    names = [known.name for plane in trace.planes for known in plane.event_metadata.values()]
    return {name for name in names if name.startswith(("rows of", "validation"))}


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize(
    ("first", "epochs", "traced"), [(0, 1, 0), (0, 3, 1), (2, 4, 3), (3, 4, 3)]
)
def test_the_second_epoch_is_traced_or_the_only_one(tmp_path, first, epochs, traced):
    metrics = {"loss": [1.0] * first} if first else {}
    progress = Progress(first, metrics, [1.0] * first, [40] * first, [0.1] * first)
    board, _, _ = train(tmp_path, epochs=epochs, progress=progress, profile=True)
    assert board.notes == []
    (path,) = traces(tmp_path)
    assert marks_in(tmp_path / path) == {f"rows of {traced}"}


@pytest.mark.tensorflow
@pytest.mark.tf
def test_a_trace_ends_by_itself(tmp_path):
    window = TraceWindow(str(tmp_path), seconds=0.02)
    window.open()
    runtime.tensorflow().random.normal([10, 10])
    window._timer.join(600)
    assert len(traces(tmp_path)) == 1
    window.close()
    assert window.problem == ""
    assert len(traces(tmp_path)) == 1


@pytest.mark.tensorflow
@pytest.mark.tf
def test_a_profile_of_somebody_else_goes_on(tmp_path):
    with tracing.profile(str(tmp_path / "theirs")):
        board, _, _ = train(tmp_path / "ours", profile=True)
    assert len(traces(tmp_path / "theirs")) == 1
    assert traces(tmp_path / "ours") == []
    assert board.notes == ["There is no trace for TensorBoard: Another profiler is running."]
    assert sorted(scalars(tmp_path / "ours" / "train", "epoch_loss")) == [0, 1, 2]


# What may go wrong -------------------------------------------------------------------------------


@pytest.mark.tf
def test_a_folder_that_is_a_file_is_refused_before_anything_is_trained(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SpecError, match="`tensorboard` cannot be written") as caught:
        train(tmp_path / "file")
    assert caught.value.details["arg"] == "tensorboard"
    assert caught.value.details["path"] == str(tmp_path / "file")
    assert "[Op:" not in caught.value.message
    assert "{{" not in caught.value.message
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.tf
def test_a_training_goes_on_when_nothing_can_be_written(tmp_path):
    (tmp_path / "validation").write_text("in the way")
    board, history, _ = train(tmp_path)
    assert len(history["loss"]) == 3
    assert len(board.notes) == 1
    assert board.notes[0].startswith("TensorBoard's files are not whole: ")
    assert board.notes[0].endswith("(epoch 1).")
    assert "{{" not in board.notes[0]


# A training of gpukeras --------------------------------------------------------------------------


@pytest.mark.tf
@pytest.mark.parametrize("engine", few(["keras", "graph_loop"], "graph_loop"))
def test_a_training_writes_what_its_report_says(tmp_path, engine):
    options = {"folder": str(tmp_path), "histograms": True, "profile": True}
    report = training_fit.fit(
        make_model(),
        make_dataset(validation=0.2),
        {
            "epochs": 3,
            "engine": engine,
            "tensorboard": options,
            "ema": 0.5,
            "schedule": {"kind": "exponential", "decay": 0.5},
            "early_stopping": {"patience": 1, "monitor": "loss"},
        },
    )
    assert report.tensorboard == str(tmp_path)
    assert report.notes == ()
    for run, prefix in (("train", ""), ("validation", "val_")):
        for name in ("loss", "accuracy"):
            found = scalars(tmp_path / run, f"epoch_{name}")
            assert found == pytest.approx(dict(enumerate(report.history[prefix + name])))
    rates = scalars(tmp_path / "train", "epoch_learning_rate")
    assert rates == pytest.approx(dict(enumerate(report.learning_rate)))
    speeds = np.divide(report.epoch_rows, report.epoch_s)
    found = scalars(tmp_path / "train", "epoch_samples_per_s")
    assert found == pytest.approx(dict(enumerate(speeds)))
    assert len(traces(tmp_path)) == 1


@pytest.mark.tf
def test_epochs_that_are_not_validated_have_no_point(tmp_path):
    options = {"epochs": 4, "engine": "graph_loop", "validation_freq": 2}
    data = make_dataset(validation=0.2)
    report = training_fit.fit(make_model(), data, {**options, "tensorboard": str(tmp_path)})
    losses = scalars(tmp_path / "validation", "epoch_loss")
    assert losses == pytest.approx({epoch: report.history["val_loss"][epoch] for epoch in (1, 3)})


@pytest.mark.slow
@pytest.mark.tf
def test_a_resumed_training_goes_on_in_its_folder(tmp_path):
    def fit(epochs):
        data = make_dataset(validation=0.2, seed=1)
        options = {"engine": "graph_loop", "checkpoint": str(tmp_path / "saved")}
        options["tensorboard"] = str(tmp_path / "board")
        return training_fit.fit(make_model(), data, {"epochs": epochs, **options})

    fit(2)
    report = fit(4)
    assert report.resumed_epochs == 2
    losses = scalars(tmp_path / "board" / "train", "epoch_loss")
    assert losses == pytest.approx(dict(enumerate(report.history["loss"])))


@pytest.mark.tf
def test_a_training_that_cannot_write_says_so(tmp_path):
    (tmp_path / "validation").write_text("in the way")
    options = {"epochs": 2, "engine": "graph_loop", "tensorboard": str(tmp_path)}
    report = training_fit.fit(make_model(), make_dataset(validation=0.2), options)
    assert report.epochs == 2
    assert report.notes[0].startswith("TensorBoard's files are not whole: ")
