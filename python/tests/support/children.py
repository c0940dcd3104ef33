"""Runs a script in a child process: what must find TensorFlow unstarted, or may kill it."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from keras_forks import CORE, PATHS, SUPPORT, run_fork  # noqa: F401

needs_gpu = pytest.mark.skipif(
    not Path("/dev/nvidia0").exists(), reason="there is no NVIDIA GPU in this computer"
)
needs_no_gpu = pytest.mark.skipif(
    not (Path("/sys/bus/pci").exists() and not Path("/dev/nvidia0").exists()),
    reason="this computer has an NVIDIA GPU, or does not show its PCI bus",
)
# What a test waits for what surely comes: a guard against hanging, never a measure of anything.
PATIENCE_S = 600


def run_python(*arguments, fork=False, **variables):
    """Runs Python; with `fork` in a process that has imported Keras already."""
    inherited = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment = {**inherited, "PYTHONPATH": PATHS, "TF_CPP_MIN_LOG_LEVEL": "2", **variables}
    if fork:
        return run_fork(arguments, environment, PATIENCE_S)
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def run_script(script, fork=False, **variables):
    """Runs a script that sets `answer`; gives it back through JSON. See `run_python()`."""
    source = textwrap.dedent(script) + "\nimport json; print('\\n' + json.dumps(answer))"
    child = run_python("-c", source, fork=fork, **variables)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])
