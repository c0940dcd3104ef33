"""Runs parts of a file of `support` in a child with Keras on JAX: a process has one backend.

The machine's packages decide whether JAX is there; `python/requirements-dev.txt` names it.
"""

import functools
import json
import os
from importlib.util import find_spec

import precisions
import pytest
from children import PATHS, PATIENCE_S, SUPPORT
from keras_forks import run_fork

# XLA optimizes the tiny programs of tests for longer than they run. Both sides of a comparison are
# compiled so; the other children of JAX, and TensorFlow's engines, with all optimizations.
QUICK = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
}
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")


def run_part(file, name, group=()):
    """Returns what a part found; the parts of its group run in the same child, once a session."""
    records, stderr = run_parts(file, tuple(group) or (name,))
    assert name in records, stderr[-3000:]
    assert "failed" not in records[name], records[name]["failed"]
    return records[name]["found"]


@functools.cache
def run_parts(file, names, backend="jax"):
    environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": PATHS, **QUICK}
    child = run_fork([str(SUPPORT / f"{file}.py"), *names], environment, PATIENCE_S)
    lines = [line for line in child.stdout.splitlines() if line.startswith('{"part"')]
    return {one["part"]: one for one in map(json.loads, lines)}, child.stderr


def report(parts, names):
    """In the child: prints a line of JSON for each part, what it found or how it failed."""
    import traceback

    precisions.set_precision(os.environ.get(precisions.NAME, "float32"))
    for name in names:
        try:
            record = {"found": parts(name)}
        except Exception:
            record = {"failed": traceback.format_exc()}
        print(json.dumps({"part": name, **record}), flush=True)
