"""Trials whose models do not stack, trained one after another and in worker processes."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from children import PATHS
from small_fits import make_dataset
from trialled import build, trace_of, tune

from gpukeras.checkpoint.store import LOCK, CheckpointStore
from gpukeras.core.file_lock import FolderLock
from gpukeras.many import jobs
from gpukeras.many.fits import Fitted, ModelHistory
from gpukeras.many.jobs import JobResult
from gpukeras.many.resamples import open_resamples, split_dataset
from gpukeras.many.workers.pool import WorkersError
from gpukeras.models.label_numbers import NOTHING
from gpukeras.search.alone_trainer import AloneTrainer
from gpukeras.search.stopper import Stopper
from gpukeras.search.trial_models import TrialModels, build_model
from gpukeras.search.trials import Trial, summarise
from gpukeras.training.fit import fit

pytestmark = pytest.mark.tf

TRIAL = Trial(1, {"units": 4, "rate": 0.1}, seed=3)
OTHER = Trial(2, {"units": 3, "rate": 0.5, "batch_size": 10.0}, seed=8)


def make_trainer(states=None, builder=build, stopper=None, folds=2):
    data = make_dataset(60)
    options = {"engine": "keras"}
    resamples = open_resamples(data, folds)
    models = TrialModels(builder, data, resamples, options, states, stopper or Stopper())
    return AloneTrainer(models, "auto", ExitStack())


def test_a_trial_is_trained_as_by_fit_on_each_resample(tmp_path):
    trainer = make_trainer()
    (outcome,) = trainer.train([TRIAL], 2)
    for place, fold in enumerate(trainer.models.resamples):
        model = build_model(build, TRIAL, trainer.models.data)
        report = fit(
            model,
            split_dataset(trainer.models.data, fold.train, fold.held_out),
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
    (whole,) = make_trainer().train([TRIAL], 3)
    trainer = make_trainer(tmp_path)
    list(trainer.train([TRIAL, OTHER], 1))
    calls = []
    trainer.models.build = lambda settings, seed: calls.append(settings) or build(settings, seed)
    (later,) = trainer.train([TRIAL], 3)
    assert later.metrics == whole.metrics
    assert later.history == whole.history
    assert len(calls) == 1  # one model for all resamples
    trainer.models.drop([TRIAL])
    assert [path.name for path in tmp_path.iterdir()] == ["0002"]
    (anew,) = trainer.train([TRIAL], 3)
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
    trainer = make_trainer(tmp_path, builder)
    outcomes = list(trainer.train([TRIAL, wild, wrong, batch, OTHER], 2))
    assert [outcome.trial for outcome in outcomes] == [1, 3, 4, 5, 2]
    assert outcomes[0].error == "`builder` failed: no such layer"
    assert outcomes[1].error == "the loss or a weight is not finite in epoch 2"
    assert outcomes[2].error == "`builder()` must be a Keras 3 model, not NULL"
    assert outcomes[3].error == '`batch_size` must be a whole number of at least 1, not "all"'
    assert outcomes[4].error == ""


def test_the_setting_batch_size_is_the_training_s():
    trainer = make_trainer(folds=2)
    (ten,) = trainer.train([OTHER], 1)
    settings = {name: value for name, value in OTHER.settings.items() if name != "batch_size"}
    (own,) = trainer.train([Trial(2, settings, seed=8)], 1)
    assert ten.metrics != own.metrics


def test_a_search_that_is_to_end_leaves_the_trial_without_an_outcome(tmp_path):
    stopper = Stopper(None, lambda event: True)
    trainer = make_trainer(tmp_path, stopper=stopper)
    assert list(trainer.train([TRIAL, OTHER], 2)) == []
    assert stopper.stopped == "interrupted"
    trainer.models.stopper = Stopper()
    (outcome,) = trainer.train([TRIAL], 2)
    (whole,) = make_trainer().train([TRIAL], 2)
    assert outcome.metrics == whole.metrics


def test_an_interrupted_builder_ends_the_search():
    trainer = make_trainer(builder=lambda settings, seed: {"interrupted": True})
    assert list(trainer.train([TRIAL], 2)) == []
    assert trainer.models.stopper.stopped == "interrupted"


def test_checkpoints_of_another_model_are_left_and_the_trial_begins_anew(tmp_path):
    trainer = make_trainer(tmp_path)
    list(trainer.train([TRIAL], 1))
    wider = Trial(1, {**TRIAL.settings, "units": 6}, seed=3)
    (outcome,) = trainer.train([wider], 2)
    (whole,) = make_trainer().train([wider], 2)
    assert outcome.metrics == whole.metrics


def test_damaged_checkpoints_go_and_a_user_s_files_stay(tmp_path):
    trainer = make_trainer(tmp_path)
    (whole,) = trainer.train([TRIAL], 1)
    first, second = tmp_path / "0001" / "0001", tmp_path / "0001" / "0002"
    for path in first.glob("checkpoint-*"):
        path.write_bytes(b"damaged")
    (first / "notes.txt").write_text("mine")
    (anew,) = trainer.train([TRIAL], 1)
    assert anew.metrics == whole.metrics
    shutil.rmtree(second)
    second.mkdir()
    (second / "notes.txt").write_text("mine")
    (refused,) = trainer.train([TRIAL], 1)
    assert refused.error == "`checkpoint`: 0002 holds other files, and no checkpoints"
    trainer.models.drop([TRIAL])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(files) == [first / "notes.txt", second / "notes.txt"]


def test_checkpoints_that_a_dying_worker_holds_are_waited_for(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path)
    list(trainer.train([TRIAL], 1))
    (whole,) = make_trainer().train([TRIAL], 2)
    held = FolderLock(tmp_path / "0001" / "0002" / LOCK)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: held.close())
    monkeypatch.setattr(jobs, "time", clock)
    (outcome,) = trainer.train([TRIAL], 2)
    assert (outcome.error, outcome.metrics) == ("", whole.metrics)
    with CheckpointStore(tmp_path / "0001" / "0001"):
        monkeypatch.setattr(jobs, "FREE_S", -1.0)
        (refused,) = trainer.train([TRIAL], 3)
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


# In worker processes ------------------------------------------------------------------------------

SUPPORT = Path(__file__).parents[1] / "support"
TRIALS = [Trial(n, {"units": 2 + n, "rate": 0.1}, seed=n) for n in (1, 2)]
REFUSED = "models have functions or classes of your own"


@pytest.mark.slow
def test_a_search_with_workers_finds_what_one_without_finds(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", PATHS)
    data = make_dataset(60)
    alone = tune(data, {"most": 1})
    beside = tune(data, {"most": 1, "workers": 2, "folder": str(tmp_path / "study")})
    assert (
        beside.together
        == "4 trials in 2 worker processes with 1 thread each; not in stacks: as asked"
    )
    for one, other in zip(trace_of(beside), trace_of(alone), strict=True):
        assert one[:3] == other[:3]
        assert one[3] == pytest.approx(other[3], abs=1e-5)
    assert beside.epochs_spent == alone.epochs_spent
    assert not (tmp_path / "study" / "states").exists()


class Pool:
    """Workers that answer at once."""

    def __init__(self, answers, refuses=(), fails=False):
        self.answers, self.refuses, self.fails, self.jobs = answers, refuses, fails, []

    def run(self, jobs, stops):
        if self.fails:
            raise WorkersError("a worker ended, exit status 1")
        for job in jobs:
            if job.model in self.refuses:
                yield job, JobResult(None, REFUSED, crossed=False)
                continue
            self.jobs.append(job)
            yield job, self.answers[len(self.jobs) - 1]
            if stops():
                return


class Numbered(TrialModels):
    """TrialModels whose models are the numbers of their trials."""

    error = ValueError

    def model(self, trial):
        if trial.number in self.failing:
            raise self.error("no such units")
        return trial.number

    def learn(self, trial):
        self.model(trial)
        return [NOTHING] * len(self.resamples)


class Noting(AloneTrainer):
    """AloneTrainer that notes which trials were left to this process."""

    def _run_here(self, jobs, stops):
        self.here = list(dict.fromkeys(job.model for job in jobs))
        return iter(())


def answer(loss, stopped="completed"):
    history = ModelHistory(metrics={"loss": [1.0], "val_loss": [loss]}, stopped=stopped)
    return JobResult(Fitted(history, {}, None), seconds=2.0)


def make_workers(pool, stopper=None, failing=()):
    data = make_dataset(60)
    models = Numbered(build, data, open_resamples(data, 2), {}, None, stopper or Stopper())
    models.failing = failing
    trainer = Noting(models, 2, ExitStack())
    trainer._pool, trainer._words = pool, "2 worker processes"
    return trainer


def train(trainer):
    return [(one.trial, one.metrics, one.error) for one in trainer.train(TRIALS, 1)]


def test_a_trial_is_known_once_all_its_models_are():
    trainer = make_workers(Pool([answer(loss) for loss in (0.4, 0.6, 0.1, 0.3)]))
    first, second = list(trainer.train(TRIALS, 1))
    assert (first.metrics, first.seconds) == ({"val_loss": [0.4, 0.6]}, 4.0)
    assert second.metrics == {"val_loss": [0.1, 0.3]}
    assert trainer.reason == "2 trials in 2 worker processes"
    assert trainer.here == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (JobResult(None, "its worker was killed by SIGKILL"), "its worker was killed by SIGKILL"),
        (answer(0.1, "non_finite"), "the loss or a weight is not finite in epoch 2"),
    ],
)
def test_a_model_that_fails_ends_its_trial_only(given, error):
    pool = Pool([given, answer(0.1), answer(0.3)])
    assert train(make_workers(pool)) == [(1, {}, error), (2, {"val_loss": [0.1, 0.3]}, "")]
    assert len(pool.jobs) == 3


def test_a_builder_that_fails_ends_its_trial_only():
    pool = Pool([answer(0.1), answer(0.3)])
    found = train(make_workers(pool, failing=[1]))
    assert sorted(found)[1] == (2, {"val_loss": [0.1, 0.3]}, "")
    assert sorted(found)[0][2].endswith("no such units")


def test_models_that_cannot_cross_are_left_to_turns():
    trainer = make_workers(Pool([answer(0.1), answer(0.3)], refuses=[1]))
    assert [one[0] for one in train(trainer)] == [2]
    assert trainer.here == [1]
    assert trainer.reason == (
        "1 trial in 2 worker processes, 1 one after another: models have functions or classes of "
        "your own"
    )


def test_workers_that_cannot_start_leave_all_to_turns():
    trainer = make_workers(Pool([], fails=True))
    assert train(trainer) == []
    assert (trainer.here, trainer.reason) == (
        [1, 2],
        "a worker ended, exit status 1",
    )
    assert train(trainer) == []  # they are not tried again
    assert trainer.here == [1, 2]


def test_a_search_that_is_to_end_has_the_outcomes_so_far():
    stopper = Stopper(on_event=lambda event: True)
    trainer = make_workers(Pool([answer(0.1)] * 4), stopper)
    assert train(trainer) == []
    assert stopper.stopped == "interrupted"


def test_a_builder_that_is_interrupted_ends_the_search():
    trainer = make_workers(Pool([answer(0.1)] * 4), failing=[1])
    trainer.models.error = KeyboardInterrupt
    assert train(trainer) == []
    assert trainer.models.stopper.stopped == "interrupted"
    assert trainer._pool.jobs == []


@pytest.mark.slow
def test_workers_of_a_killed_search_end_by_themselves(tmp_path):
    environment = {**os.environ, "PYTHONPATH": PATHS, "TMPDIR": str(tmp_path)}
    command = [sys.executable, str(SUPPORT / "kill_search.py"), str(tmp_path / "study"), "workers"]
    search = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    told = [search.stdout.readline() for _ in range(2)]
    assert told[0] == "begin\n"
    workers = psutil.Process(search.pid).children()
    assert len(workers) == 2
    search.send_signal(signal.SIGKILL)
    search.communicate()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
    assert list(tmp_path.glob("gpukeras-workers-*")) == []
    number, epochs = told[1].split()
    kept = (tmp_path / "study" / "trials" / f"{int(number):04d}.json").read_text()
    assert f'"epochs": {epochs}' in kept
