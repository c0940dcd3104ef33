"""A training that is killed at any moment and started again ends as if nothing had happened."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from children import PATHS
from keras_forks import Fork

from gpukeras.checkpoint.store import CheckpointStore
from gpukeras.core.preemption import REQUEUE_STATUS

SUPPORT = Path(__file__).parents[1] / "support"
EPOCHS, ROWS = 6, 20_000
FEW_ROWS = 2_000  # where the moment of the kill is told, not drawn

pytestmark = pytest.mark.tf


def start(folder, weights, engine, *then, rows=ROWS):
    """A training in a process of its own, at the moment when its first step may come."""
    env = {**os.environ, "PYTHONPATH": PATHS, "PYTHONDONTWRITEBYTECODE": "1"}
    arguments = [str(SUPPORT / "kill_child.py"), str(folder), str(weights), engine]
    child = Fork([*arguments, str(EPOCHS), str(rows), *map(str, then)], env)
    assert child.stdout.readline() == "begin\n", child.communicate()
    return child


def train(folder, weights, engine, *then, **rows):
    """Trains to the end; the weights and the history, and seconds from the first step on."""
    child, began = start(folder, weights, engine, *then, **rows), time.monotonic()
    out, err = child.communicate(timeout=300)
    assert child.returncode == 0, out + err
    with np.load(weights) as values:
        return dict(values), time.monotonic() - began


def train_until(folder, weights, engine, delay, number):
    """Sends a training a signal after some seconds; whether that ended it, and epochs it had told.

    Before the training catches the signals, they end it as any other process.
    """
    child = start(folder, weights, engine)
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout=delay)
    child.send_signal(number)
    out, err = child.communicate(timeout=300)
    ended = {-number} if number == signal.SIGKILL else {-number, REQUEUE_STATUS}
    killed = child.returncode in ended
    assert killed or child.returncode == 0, err
    told = [int(line.split()[1]) for line in out.splitlines() if line.startswith("epoch")]
    return killed, max(told, default=0)


def count_saved(folder):
    """Epochs that the newest checkpoint has, all of which must be whole."""
    with CheckpointStore(folder) as store:
        saved = store.load()
    assert saved is None or saved.notes == ()
    return 0 if saved is None else saved.plain["state"]["epoch"]


def assert_equal(found, expected, kills):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].tobytes() == value.tobytes(), f"{name} differs after {kills} kills"


def kill(tmp_path, engine, wanted, signals=(signal.SIGKILL,)):
    """Ends trainings so many times, and compares each with one that nothing disturbs."""
    expected, lasts = train("none", tmp_path / "undisturbed.npz", engine)
    rng = np.random.default_rng([wanted, len(engine)])
    kills = trainings = 0
    while kills < wanted:  # a training that comes to its end is followed by another one
        trainings += 1
        folder, weights = tmp_path / f"run-{trainings}", tmp_path / f"{trainings}.npz"
        killed, before = True, kills
        while killed and kills < wanted:
            delay, number = rng.uniform(0, 0.7 * lasts), signals[kills % len(signals)]
            killed, told = train_until(folder, weights, engine, delay, number)
            assert count_saved(folder) >= told  # no finished epoch is lost
            kills += killed
        found, _ = train(folder, weights, engine)
        assert_equal(found, expected, kills - before)


def test_a_training_that_is_killed_ends_with_the_weights_of_an_undisturbed_one(tmp_path):
    folder, undisturbed = tmp_path / "run", tmp_path / "undisturbed.npz"
    child = start(folder, tmp_path / "killed.npz", "auto", 3, rows=FEW_ROWS)
    out, err = child.communicate(timeout=300)
    assert child.returncode == -signal.SIGKILL, out + err
    told = max(map(int, out.split()[1::2]))  # it is killed within the third epoch or at its end
    assert 2 <= told <= count_saved(folder) < EPOCHS  # no finished epoch is lost
    found, _ = train(folder, tmp_path / "found.npz", "auto", undisturbed, rows=FEW_ROWS)
    with np.load(undisturbed) as expected:
        assert_equal(found, dict(expected), 1)


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["auto", "keras", "graph_loop", "compiled"])
def test_trainings_of_each_engine_are_killed_twenty_times(tmp_path, engine):
    kill(tmp_path, engine, 20)


@pytest.mark.nightly  # test_preempted.py sends the signals in each run
def test_trainings_are_ended_fifty_times_by_three_signals(tmp_path):
    kill(tmp_path, "auto", 50, (signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL))
