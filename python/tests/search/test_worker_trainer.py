"""Trials that workers train have the outcomes of trials that are trained one after another."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from children import PATHS
from small_fits import make_dataset
from trialled import build, trace_of, tune

from gpukeras.many.fits import Fitted
from gpukeras.many.histories import ModelHistory
from gpukeras.many.resamples import open_resamples
from gpukeras.many.workers.pool import TaskResult, TransferError, WorkersError
from gpukeras.models.label_numbers import NOTHING
from gpukeras.search.sequential_trainer import SequentialTrainer
from gpukeras.search.stopper import Stopper
from gpukeras.search.trials import Trial
from gpukeras.search.worker_trainer import WorkerTrainer

SUPPORT = Path(__file__).parents[1] / "support"
TRIALS = [Trial(n, {"units": 2 + n, "rate": 0.1}, seed=n) for n in (1, 2)]

pytestmark = pytest.mark.tf


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
        self.answers, self.refuses, self.fails, self.tasks = answers, refuses, fails, []

    def keep_model(self, model):
        if model in self.refuses:
            raise TransferError("models have functions or classes of your own")
        return "model-1.keras"

    def drop_model(self, name):
        assert name == "model-1.keras"

    def run(self, tasks, stops):
        if self.fails:
            raise WorkersError("a worker ended, exit status 1")
        for order in tasks:
            self.tasks.append(order)
            yield order, self.answers[len(self.tasks) - 1]
            if stops():
                return


class Turned(SequentialTrainer):
    """SequentialTrainer without models, which tell what was left to them."""

    error = ValueError

    def model(self, trial):
        if trial.number in self.failing:
            raise self.error("no such units")
        return trial.number

    def learn(self, trial):
        self.model(trial)
        return [NOTHING] * len(self.resamples)

    def train(self, trials, epochs):
        self.left = [trial.number for trial in trials]
        return iter(())


def answer(loss, stopped="completed"):
    history = ModelHistory(metrics={"loss": [1.0], "val_loss": [loss]}, stopped=stopped)
    return TaskResult(Fitted(history, {}, None), seconds=2.0)


def make_trainer(pool, stopper=None, failing=()):
    data = make_dataset(60)
    sequential = Turned(build, data, open_resamples(data, 2), {}, None, stopper or Stopper())
    sequential.failing, sequential.left = failing, None
    trainer = WorkerTrainer(sequential, 2, ExitStack())
    trainer._pool, trainer._words = pool, "2 worker processes"
    return trainer


def train(trainer):
    return [(one.trial, one.metrics, one.error) for one in trainer.train(TRIALS, 1)]


def test_a_trial_is_known_once_all_its_models_are():
    trainer = make_trainer(Pool([answer(loss) for loss in (0.4, 0.6, 0.1, 0.3)]))
    first, second = list(trainer.train(TRIALS, 1))
    assert (first.metrics, first.seconds) == ({"val_loss": [0.4, 0.6]}, 4.0)
    assert second.metrics == {"val_loss": [0.1, 0.3]}
    assert trainer.reason == "2 trials in 2 worker processes"
    assert trainer.sequential.left == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (TaskResult(None, "its worker was killed by SIGKILL"), "its worker was killed by SIGKILL"),
        (answer(0.1, "non_finite"), "the loss is not finite in epoch 2"),
    ],
)
def test_a_model_that_fails_ends_its_trial_only(given, error):
    pool = Pool([given, answer(0.1), answer(0.3)])
    assert train(make_trainer(pool)) == [(1, {}, error), (2, {"val_loss": [0.1, 0.3]}, "")]
    assert len(pool.tasks) == 3


def test_a_builder_that_fails_ends_its_trial_only():
    pool = Pool([answer(0.1), answer(0.3)])
    found = train(make_trainer(pool, failing=[1]))
    assert sorted(found)[1] == (2, {"val_loss": [0.1, 0.3]}, "")
    assert sorted(found)[0][2].endswith("no such units")


def test_models_that_cannot_cross_are_left_to_turns():
    trainer = make_trainer(Pool([answer(0.1), answer(0.3)], refuses=[1]))
    assert [one[0] for one in train(trainer)] == [2]
    assert trainer.sequential.left == [1]
    assert trainer.reason == (
        "1 trial in 2 worker processes, 1 one after another: models have functions or classes of "
        "your own"
    )


def test_workers_that_cannot_start_leave_all_to_turns():
    trainer = make_trainer(Pool([], fails=True))
    assert train(trainer) == []
    assert (trainer.sequential.left, trainer.reason) == (
        [1, 2],
        "a worker ended, exit status 1",
    )
    assert train(trainer) == []  # they are not tried again
    assert trainer.sequential.left == [1, 2]


def test_a_search_that_is_to_end_has_the_outcomes_so_far():
    stopper = Stopper(on_event=lambda event: True)
    trainer = make_trainer(Pool([answer(0.1)] * 4), stopper)
    assert train(trainer) == []
    assert stopper.stopped == "interrupted"


def test_a_builder_that_is_interrupted_ends_the_search():
    trainer = make_trainer(Pool([answer(0.1)] * 4), failing=[1])
    trainer.sequential.error = KeyboardInterrupt
    assert train(trainer) == []
    assert trainer.sequential.stopper.stopped == "interrupted"
    assert trainer._pool.tasks == []


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
