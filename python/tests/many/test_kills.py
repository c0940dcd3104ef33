"""Many trainings that are killed, or asked to end, at any moment end as if they had not been."""

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
SCRIPT = Path(__file__).parents[1] / "support" / "kill_many.py"

pytestmark = [pytest.mark.tf, NIGHTLY]  # by day: signals at the end of epochs, in test_saved.py


def run(folder, way, delay=None, number=signal.SIGKILL):
    """Trains; returns the models, or None if a signal came after some seconds and ended it."""
    env = {**os.environ, "PYTHONPATH": PATHS, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, str(SCRIPT), str(folder), way]
    child = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "begin\n", child.communicate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(delay)
    if child.poll() is None:
        workers = psutil.Process(child.pid).children()  # a queue's signal comes to them too
        for process in [child] if number == signal.SIGKILL else [*workers, child]:
            process.send_signal(number)
    out, err = child.communicate(timeout=600)
    assert child.returncode in (0, -number, REQUEUE_STATUS), err
    return json.loads(out) if child.returncode == 0 else None


@pytest.mark.parametrize("way", ["stack", "alone", "workers"])
def test_kills_lose_nothing(tmp_path, way):
    began = time.monotonic()
    whole = run(tmp_path / "undisturbed", way)
    most_s = time.monotonic() - began
    rng, kills, folders = np.random.default_rng(7), 0, 0
    while kills < 17:
        folders += 1
        folder, ended = tmp_path / f"fits-{folders}", None
        while kills < 17 and ended is None:
            ended = run(folder, way, rng.uniform(0.1, most_s), rng.choice(SIGNALS))
            kills += ended is None
        assert (ended or run(folder, way)) == whole
