"""Trackings of trainings: what they record, and that their failures stop nothing."""

import csv
import json
import threading

import pytest
from small_disks import BREAKING, small_disk
from small_fits import make_dataset, make_model

from gpukeras.core.errors import DataError, NotSavedWarning, RuntimeMissingError, SpecError
from gpukeras.tracking.folder import FolderTracker
from gpukeras.tracking.options import TrackSpec, check_mlflow
from gpukeras.tracking.tracking import Tracking, close_tracking, open_tracking

tf_test = pytest.mark.tf


class Broken:
    """A tracker whose methods fail from one of them on."""

    where = "nowhere"

    def __init__(self, fails):
        self._fails, self.heard = fails, []

    def _hear(self, name):
        self.heard.append(name)
        if self._fails == name:
            raise OSError("no answer from http://me:secret@host/x")

    def start(self, parameters):
        self._hear("start")

    def epoch(self, number, metrics):
        self._hear("epoch")

    def end(self, status, results, files):
        self._hear("end")


def read_run(folder):
    (run,) = folder.iterdir()
    with (run / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    values = {
        name: json.loads((run / f"{name}.json").read_text()) for name in ("parameters", "result")
    }
    return run, rows, values


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "wandb"}, '`kind` must be one of "csv", "mlflow", not "wandb".'),
        ({}, 'Tracking by "csv" needs `path`, a folder.'),
        ({"path": "x", "uri": "http://a"}, 'Tracking by "csv" has no option `uri`.'),
        ({"kind": "mlflow", "path": "x"}, 'Tracking by "mlflow" has no option `path`.'),
        (
            {"path": "x", "run": "../up"},
            "`run` must be a name of letters, digits, spaces, `_`, `.` and `-`, at most 100.",
        ),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(SpecError) as raised:
        TrackSpec.from_dict(options)
    assert raised.value.message == message


def test_a_missing_mlflow_is_named_with_the_command(monkeypatch):
    monkeypatch.setattr("gpukeras.tracking.options.find_spec", lambda name: None)
    with pytest.raises(RuntimeMissingError) as raised:
        check_mlflow()
    text = "Tracking by MLflow needs the Python package mlflow, which is not installed."
    assert raised.value.message == text
    assert "pip install mlflow-skinny" in raised.value.hint


def test_a_folder_holds_one_training(tmp_path):
    FolderTracker(str(tmp_path), "one")
    with pytest.raises(DataError, match="The folder one of `track` exists: it holds another"):
        FolderTracker(str(tmp_path), "one")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="The folder one of `track` cannot be made: "):
        FolderTracker(str(tmp_path / "file"), "one")
    names = {FolderTracker(str(tmp_path)).where for _ in range(3)}
    assert len(names) == 3


def test_every_metric_of_every_epoch_is_kept(tmp_path):
    tracker, path = FolderTracker(str(tmp_path), "one"), tmp_path / "one/metrics.csv"
    tracker.start({"rate": float("nan"), "loss": "mse", "flag": True})
    tracker.epoch(3, {"loss": 0.5})
    assert path.read_text().splitlines() == ["epoch,loss", "3,0.5"]
    tracker.epoch(4, {"loss": 0.25, "val_loss": 1.0})  # of `validation_freq = 2`
    tracker.epoch(5, {"loss": 0.125})
    expected = ["epoch,loss,val_loss", "3,0.5,", "4,0.25,1.0", "5,0.125,"]
    assert path.read_text().splitlines() == expected
    kept = json.loads((tmp_path / "one/parameters.json").read_text())
    assert kept == {"rate": None, "loss": "mse", "flag": True}


def test_whole_numbers_are_whole_and_what_there_is_not_is_null(tmp_path):
    tracking = Tracking(FolderTracker(str(tmp_path), "one"), keeps_model=False)
    tracking.start({"epochs": 10.0, "rate": 0.1, "at": float("inf"), "flag": True})
    tracking.end("completed", {"rows": 32.0, "best_epoch": None}, [], 30)
    assert not tracking.fault
    texts = [(tmp_path / "one" / f"{name}.json").read_text() for name in ("parameters", "result")]
    assert json.loads(texts[0]) == {"epochs": 10, "rate": 0.1, "at": None, "flag": True}
    assert json.loads(texts[1]) == {"status": "completed", "rows": 32, "best_epoch": None}
    assert "10.0" not in texts[0]
    assert "32.0" not in texts[1]


@pytest.mark.parametrize("fails", ["start", "epoch", "end"])
def test_a_failure_ends_the_tracking_once_and_shows_no_password(fails):
    tracker = Broken(fails)
    tracking = Tracking(tracker)
    tracking.start({})
    for number in (1, 2, 3):
        tracking.epoch(number, {"loss": 1.0})
    tracking.end("completed", {}, [], 30)
    what = {"start": "its start", "epoch": "epoch 1", "end": "its end"}[fails]
    reason = "no answer from http://***@host/x"
    assert tracking.fault == f"{what} failed: OSError: {reason}"
    assert tracker.heard[-1] == "end"  # a run that began is ended, whatever failed
    assert tracker.heard.count("epoch") == {"start": 0, "epoch": 1, "end": 3}[fails]


def test_a_tracker_that_hangs_is_not_waited_for():
    class Hanging(Broken):
        def start(self, parameters):
            released.wait(60)

    released = threading.Event()
    tracking = Tracking(Hanging("never"))
    tracking.start({})
    tracking.epoch(1, {"loss": 1.0})  # returns at once
    tracking.end("completed", {}, [], 0.05)
    assert tracking.fault == "it did not answer for 0.05 s after the training"
    released.set()


@tf_test
def test_a_training_is_recorded_in_a_folder(tmp_path):
    from gpukeras.export.archive import load_archive
    from gpukeras.training.fit import fit

    model, data = make_model(), make_dataset(validation=0.2)
    tracking = open_tracking({"path": str(tmp_path)}, model, {"epochs": 3})
    options = {"epochs": 3, "engine": "graph_loop"}
    report = fit(model, data, options, callbacks=[tracking.callback])
    found = close_tracking(tracking, model, report.stopped, {"rows": report.rows})
    run, rows, values = read_run(tmp_path)
    assert found == {"where": str(run), "fault": ""}
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    for name in ("loss", "val_loss", "accuracy", "val_accuracy"):
        assert [float(row[name]) for row in rows] == report.history[name]
    assert [float(row["learning_rate"]) for row in rows] == report.learning_rate
    assert values["parameters"]["optimizer"] == "SGD"
    assert values["parameters"]["weights"] == model.count_params()
    assert values["parameters"]["loss"] == "sparse_categorical_crossentropy"
    assert values["result"] == {"status": "completed", "rows": report.rows}
    again = load_archive(str(run / "model.keras"))
    assert (again["model"].get_weights()[0] == model.get_weights()[0]).all()
    assert json.loads(again["history"])["history"] == report.history
    # A tracker that fails in the middle changes nothing of the same training.
    broken, model = Tracking(Broken("epoch")), make_model()
    other = fit(model, data, options, callbacks=[broken.callback])
    ended = close_tracking(broken, model, "completed")
    assert other.history == report.history
    assert ended["fault"].startswith("epoch 1 failed: OSError")


@pytest.mark.parametrize("breaking", BREAKING)
def test_a_disk_that_fails_leaves_whole_files_and_is_told_at_once(tmp_path, breaking):
    picture = tmp_path / "history.png"
    picture.write_bytes(bytes(2_000_000))
    with small_disk(tmp_path / "disk") as disk:
        tracker = FolderTracker(str(disk.folder), "run")
        folder = disk.folder / "run"
        tracker.start({"units": 4})
        tracker.epoch(1, {"loss": 0.5})
        rows = (folder / "metrics.csv").read_bytes()
        getattr(disk, breaking)()
        told = r"not tracked any more, and goes on: epoch \d+ failed"
        with pytest.warns(NotSavedWarning, match=told):  # noqa: PT031 (in the tracking's thread)
            tracking = Tracking(tracker)
            for number in range(2, 1000):  # the last page of the file has room
                tracking.epoch(number, {"loss": 0.25})
            tracking.end("completed", {}, [picture], 60.0)
        assert tracking.fault
        if breaking != "vanish":
            assert (folder / "metrics.csv").read_bytes().startswith(rows)
            assert (folder / "metrics.csv").read_bytes().endswith(b"\n")
            names = {path.name for path in folder.iterdir()}
            assert names == {"parameters.json", "metrics.csv"}
