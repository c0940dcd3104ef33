"""Runs parts of a file of `support` in a child with Keras on JAX: a process has one backend.

The machine's packages decide whether JAX is there; `python/requirements-dev.txt` names it.
"""

import functools
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from children import CORE

SUPPORT = Path(__file__).parent
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")


def run_part(file, name, group=()):
    """Returns what a part found; the parts of its group run in the same child, once a session."""
    records, stderr = run_parts(file, tuple(group) or (name,))
    assert name in records, stderr[-3000:]
    assert "failed" not in records[name], records[name]["failed"]
    return records[name]["found"]


@functools.cache
def run_parts(file, names, backend="jax"):
    paths = os.pathsep.join([str(CORE), str(SUPPORT)])
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": paths}
    command = [sys.executable, str(SUPPORT / f"{file}.py"), *names]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    lines = [line for line in child.stdout.splitlines() if line.startswith('{"part"')]
    return {one["part"]: one for one in map(json.loads, lines)}, child.stderr


def report(parts, names):
    """In the child: prints a line of JSON for each part, what it found or how it failed."""
    import traceback

    for name in names:
        try:
            record = {"found": parts(name)}
        except Exception:
            record = {"failed": traceback.format_exc()}
        print(json.dumps({"part": name, **record}), flush=True)
