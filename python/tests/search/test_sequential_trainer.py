import shutil
import time
from types import SimpleNamespace

import numpy as np
import pytest
from small_fits import make_dataset
from trialled import build

from gpukeras.checkpoint.store import LOCK, CheckpointStore
from gpukeras.core.file_lock import FolderLock
from gpukeras.many import alone
from gpukeras.many.resamples import open_resamples, split_dataset
from gpukeras.search.building import build_model
from gpukeras.search.sequential_trainer import SequentialTrainer
from gpukeras.search.stopper import Stopper
from gpukeras.search.trials import Trial, summarise
from gpukeras.training.fit import fit

pytestmark = pytest.mark.tf

TRIAL = Trial(1, {"units": 4, "rate": 0.1}, seed=3)
OTHER = Trial(2, {"units": 3, "rate": 0.5, "batch_size": 10.0}, seed=8)


def make_sequential(states=None, builder=build, stopper=None, folds=2):
    data = make_dataset(60)
    resamples = open_resamples(data, folds)
    return SequentialTrainer(
        builder, data, resamples, {"engine": "keras"}, states, stopper or Stopper()
    )


def test_a_trial_is_trained_as_by_fit_on_each_resample(tmp_path):
    sequential = make_sequential()
    (outcome,) = sequential.train([TRIAL], 2)
    for place, fold in enumerate(sequential.resamples):
        model = build_model(build, TRIAL, sequential.data)
        report = fit(
            model,
            split_dataset(sequential.data, fold.train, fold.held_out),
            {"epochs": 2, "engine": "keras"},
        )
        for name, values in outcome.metrics.items():
            assert values[place] == report.history[name][-1]
    assert set(outcome.metrics) == {"val_loss", "val_accuracy"}
    assert set(outcome.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert outcome.history["val_loss"][-1] == pytest.approx(np.mean(outcome.metrics["val_loss"]))
    assert (outcome.trial, outcome.epochs, outcome.error) == (1, 2, "")


@pytest.mark.slow
def test_a_trial_goes_on_as_if_it_had_not_been_interrupted(tmp_path):
    (whole,) = make_sequential().train([TRIAL], 3)
    sequential = make_sequential(tmp_path)
    list(sequential.train([TRIAL, OTHER], 1))
    calls = []
    sequential.build = lambda settings, seed: calls.append(settings) or build(settings, seed)
    (later,) = sequential.train([TRIAL], 3)
    assert later.metrics == whole.metrics
    assert later.history == whole.history
    assert len(calls) == 1  # one model for all resamples
    sequential.drop([TRIAL])
    assert [path.name for path in tmp_path.iterdir()] == ["0002"]
    (anew,) = sequential.train([TRIAL], 3)
    assert anew.metrics == whole.metrics


def test_what_fails_is_an_outcome_and_the_others_go_on(tmp_path):
    def builder(settings, seed):
        if settings["units"] == 4:
            return {"failed": True, "message": "no such layer"}
        if settings["units"] == 5:
            return {"model": None}
        return build(settings, seed)

    wild = Trial(3, {"units": 2, "rate": 1e30}, seed=1)
    wrong = Trial(4, {"units": 5, "rate": 0.1}, seed=1)
    batch = Trial(5, {"units": 2, "rate": 0.1, "batch_size": "all"}, seed=1)
    sequential = make_sequential(tmp_path, builder)
    outcomes = list(sequential.train([TRIAL, wild, wrong, batch, OTHER], 2))
    assert [outcome.trial for outcome in outcomes] == [1, 3, 4, 5, 2]
    assert outcomes[0].error == "`builder` failed: no such layer"
    assert outcomes[1].error == "the loss is not finite in epoch 2"
    assert outcomes[2].error == "`builder()` must be a Keras 3 model, not NULL"
    assert outcomes[3].error == '`batch_size` must be a whole number of at least 1, not "all"'
    assert outcomes[4].error == ""


def test_the_setting_batch_size_is_the_training_s():
    sequential = make_sequential(folds=2)
    (ten,) = sequential.train([OTHER], 1)
    settings = {name: value for name, value in OTHER.settings.items() if name != "batch_size"}
    (own,) = sequential.train([Trial(2, settings, seed=8)], 1)
    assert ten.metrics != own.metrics


def test_a_search_that_is_to_end_leaves_the_trial_without_an_outcome(tmp_path):
    stopper = Stopper(None, lambda event: True)
    sequential = make_sequential(tmp_path, stopper=stopper)
    assert list(sequential.train([TRIAL, OTHER], 2)) == []
    assert stopper.stopped == "interrupted"
    sequential.stopper = Stopper()
    (outcome,) = sequential.train([TRIAL], 2)
    (whole,) = make_sequential().train([TRIAL], 2)
    assert outcome.metrics == whole.metrics


def test_an_interrupted_builder_ends_the_search():
    sequential = make_sequential(builder=lambda settings, seed: {"interrupted": True})
    assert list(sequential.train([TRIAL], 2)) == []
    assert sequential.stopper.stopped == "interrupted"


def test_checkpoints_of_another_model_are_left_and_the_trial_begins_anew(tmp_path):
    sequential = make_sequential(tmp_path)
    list(sequential.train([TRIAL], 1))
    wider = Trial(1, {**TRIAL.settings, "units": 6}, seed=3)
    (outcome,) = sequential.train([wider], 2)
    (whole,) = make_sequential().train([wider], 2)
    assert outcome.metrics == whole.metrics


def test_damaged_checkpoints_go_and_a_user_s_files_stay(tmp_path):
    sequential = make_sequential(tmp_path)
    (whole,) = sequential.train([TRIAL], 1)
    first, second = tmp_path / "0001" / "0001", tmp_path / "0001" / "0002"
    for path in first.glob("checkpoint-*"):
        path.write_bytes(b"damaged")
    (first / "notes.txt").write_text("mine")
    (anew,) = sequential.train([TRIAL], 1)
    assert anew.metrics == whole.metrics
    shutil.rmtree(second)
    second.mkdir()
    (second / "notes.txt").write_text("mine")
    (refused,) = sequential.train([TRIAL], 1)
    assert refused.error == "`checkpoint`: 0002 holds other files, and no checkpoints"
    sequential.drop([TRIAL])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(files) == [first / "notes.txt", second / "notes.txt"]


def test_checkpoints_that_a_dying_worker_holds_are_waited_for(tmp_path, monkeypatch):
    sequential = make_sequential(tmp_path)
    list(sequential.train([TRIAL], 1))
    (whole,) = make_sequential().train([TRIAL], 2)
    held = FolderLock(tmp_path / "0001" / "0002" / LOCK)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: held.close())
    monkeypatch.setattr(alone, "time", clock)
    (outcome,) = sequential.train([TRIAL], 2)
    assert (outcome.error, outcome.metrics) == ("", whole.metrics)
    with CheckpointStore(tmp_path / "0001" / "0001"):
        monkeypatch.setattr(alone, "FREE_S", -1.0)
        (refused,) = sequential.train([TRIAL], 3)
    assert "another training (process" in refused.error


def test_metrics_of_several_numbers_are_metrics_of_their_own():
    histories = [
        {"val_loss": [1.0, 0.5], "val_iou": [[0.1, 0.2], [factor, 0.4]]} for factor in (0.3, 0.5)
    ]
    outcome = summarise(1, 2, histories, 1.0)
    assert outcome.metrics == {
        "val_loss": [0.5, 0.5],
        "val_iou[1]": [0.3, 0.5],
        "val_iou[2]": [0.4, 0.4],
    }
    assert outcome.history["val_iou[1]"] == pytest.approx([0.1, 0.4])
