"""A search that is killed, or asked to end, at any moment loses no outcome that it has told of."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from children import PATHS
from nightly import NIGHTLY

from gpukeras.core.preemption import REQUEUE_STATUS

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1]
SUPPORT = Path(__file__).parents[1] / "support"

pytestmark = [pytest.mark.tf, NIGHTLY]  # by day: a kill between writes, in test_study.py


def start(folder, way):
    """A search in a process of its own, at the moment when it begins."""
    env = {**os.environ, "PYTHONPATH": PATHS, "PYTHONDONTWRITEBYTECODE": "1"}
    child = subprocess.Popen(
        [sys.executable, str(SUPPORT / "kill_search.py"), str(folder), way],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "begin\n", child.communicate()
    return child


def finish(folder, way):
    """Searches to the end; what it told of, and the whole trace."""
    *told, trace = talk(start(folder, way))
    return told, json.loads(trace)


def talk(child, delay=None, number=signal.SIGKILL):
    """The lines of a search, which gets a signal after some seconds if it has not ended.

    A queue's signal comes to its workers too.
    """
    with suppress(subprocess.TimeoutExpired):
        child.wait(delay)
    if child.poll() is None:
        workers = psutil.Process(child.pid).children()
        for process in [child] if number == signal.SIGKILL else [*workers, child]:
            process.send_signal(number)
    out, err = child.communicate(timeout=600)
    assert child.returncode in (0, -number, REQUEUE_STATUS), err
    if child.returncode == REQUEUE_STATUS:
        assert number != signal.SIGKILL
    return out.splitlines()


def kept(folder):
    """The outcomes of a folder's files, as lines like those of a search."""
    found = []
    for path in sorted((folder / "trials").glob("*.json")):
        trial = json.loads(path.read_text())  # whole, whenever the process died
        found += [f"{trial['number']} {rung['epochs']}" for rung in trial["rungs"]]
    return found


def values_of(trace):
    """The numbers of a trace, in order."""
    return [value for *_, metrics in trace for _, value in sorted(metrics.items())]


@pytest.mark.parametrize(
    ("wanted", "way"), [(2, "sequential"), (20, "sequential"), (20, "stacks"), (20, "workers")]
)
def test_kills_lose_no_finished_trial(tmp_path, wanted, way):
    began = time.monotonic()
    told, expected = finish(tmp_path / "undisturbed", way)
    most_s = time.monotonic() - began
    assert len(told) >= 5
    rng = np.random.default_rng(wanted)
    kills = searches = 0
    while kills < wanted:  # a search that comes to its end is followed by another one
        searches += 1
        folder, heard, ended = tmp_path / f"study-{searches}", [], False
        while kills < wanted and not ended:
            lines = talk(start(folder, way), rng.uniform(0.1, most_s), rng.choice(SIGNALS))
            ended = any(line.startswith("[") for line in lines)
            kills += not ended
            heard += [line for line in lines if not line.startswith("[")]
            assert set(heard) <= set(kept(folder)), f"lost after {kills} kills"
        if not ended:
            *more, trace = talk(start(folder, way))
            heard += more
            trace = json.loads(trace)
            assert [row[:3] for row in trace] == [row[:3] for row in expected]
            # Stacks of other sizes add sums in another order.
            digits = 1e-5 if way == "stacks" else 0.0
            assert values_of(trace) == pytest.approx(values_of(expected), abs=digits, rel=0.0)
        # One that was written, but not told of when the process died, is not trained again either.
        assert len(heard) == len(set(heard))
        assert set(heard) <= set(told)
