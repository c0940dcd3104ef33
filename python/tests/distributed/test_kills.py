"""A worker that dies or hangs at any moment is named on all others, and the restart goes on.

GPUKERAS_CLUSTER_KILLS=20 does so as often as that, with two to four workers.
"""

import os
import signal
import time

import numpy as np
import pytest
from clusters import plan_workers, started

pytestmark = pytest.mark.tf
KILLS = int(os.environ.get("GPUKERAS_CLUSTER_KILLS", "2"))
SIZES, EPOCHS = ((2, 2, 2, 3, 4), 30) if KILLS >= 10 else ((2,), 12)  # of 0.1 s each and more
TIMEOUT_S, JOIN_S = 10.0, 60.0
NEAR = 1e-5


def plan(size, folder):
    plans = plan_workers(size, [["long", {"folder": folder, "epochs": EPOCHS}]], TIMEOUT_S)
    return [{**one, "join_s": JOIN_S} for one in plans]


def train(size, folder):
    """Trains to the end: what the workers found, and how long it took from joining on."""
    with started([{**one, "join_s": 120} for one in plan(size, folder)]) as workers:
        began = begin(workers)
        for worker in workers:
            assert worker.finish() == 0, worker.explain()
        found = [worker.cases()[0] for worker in workers]
    assert len({each["hash"] for each in found}) == 1
    assert found[0]["stopped"] == "completed"
    return found[0], max(worker.ended for worker in workers) - began


def begin(workers):
    """The moment at which all have loaded their packages, and look for each other."""
    return max(worker.wait_for("started")["at"] for worker in workers)


def train_until(size, folder, victim, number, delay):
    """Sends a worker a signal some seconds after joining began; gives the others."""
    with started(plan(size, folder)) as workers:
        time.sleep(max(0.0, begin(workers) + delay - time.monotonic()))
        if workers[victim].process.poll() is None and not workers[victim].told("case"):
            workers[victim].process.send_signal(number)
        survivors = [worker for place, worker in enumerate(workers) if place != victim]
        for worker in survivors:
            worker.finish()
        return survivors


def check_survivors(survivors, victim):
    """Each has told who was lost; `finish()` waits for no more than its patience."""
    for worker in survivors:
        told = [*worker.told("failed"), *worker.told("case")]
        assert told, worker.explain()
        found = told[-1]["found"]
        if "weights" in found:  # it was through already
            continue
        assert found.get("error") == "ClusterError", worker.explain()
        assert found["worker"] == victim + 1, found
        assert f"orker {victim + 1} (127.0.0.1:" in found["message"]


def ended_well(survivors):
    """Whether the worker was hit when all had trained to the end."""
    return all(worker.cases() and "weights" in worker.cases()[0] for worker in survivors)


@pytest.mark.nightly
def test_survivors_name_the_lost_worker_and_the_restart_ends_as_if_nothing_had_happened(tmp_path):
    rng = np.random.default_rng(KILLS)
    expected, lasts = train(2, "")
    durations, kills, runs = {2: lasts}, 0, 0
    while kills < KILLS:
        runs += 1
        size = int(rng.choice(SIZES))
        victim, number = int(rng.integers(size)), rng.choice([signal.SIGKILL, signal.SIGSTOP])
        delay = rng.uniform(0, durations.get(size, lasts * size / 2))
        folder = str(tmp_path / f"run-{runs}")
        survivors = train_until(size, folder, victim, int(number), delay)
        if not ended_well(survivors):
            check_survivors(survivors, victim)
            kills += 1
        found, durations[size] = train(size, folder)
        np.testing.assert_allclose(found["weights"], expected["weights"], rtol=0, atol=NEAR)
        for name, values in expected["history"].items():
            np.testing.assert_allclose(found["history"][name], values, rtol=0, atol=NEAR)
        print(f"{size} workers, signal {number} to {victim + 1} at {delay:.1f} s: ", end="")
        print(f"{found['resumed']} epochs resumed in {durations[size]:.1f} s", flush=True)
