"""Checkpoints that are saved, damaged and cut off."""

import os
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import gpukeras


def save(store, number, size=1000):
    store.save({"number": number}, {"all": np.full(size, float(number)), "none": np.empty((0, 3))})


def numbers(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def run_python(code, *args):
    core = str(Path(gpukeras.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": core, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def damage(path):
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 4
    path.write_bytes(whole)


@contextmanager
def small_files(most):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
