"""Runs parts of files of `support` with Keras on JAX, in children: a process has one backend.

The machine's packages decide whether JAX is there; `python/requirements-dev.txt` names it.
"""

import atexit
import functools
import json
import os
import subprocess
from importlib.util import find_spec

import keras_forks
import pytest
from keras_forks import PATHS, SUPPORT

# XLA optimizes the tiny programs of tests for longer than they run. Both sides of a comparison are
# compiled so; the other children of JAX, and TensorFlow's engines, with all optimizations.
QUICK = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_parallel_codegen_split_count=1"
}
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")


@functools.cache
def run_part(file, name):
    """Returns what a part of a file of `support` finds: `file.tell(name)` in that file's child."""
    child, said = open_child(file), []
    child.stdin.write(json.dumps({"part": name, "environment": dict(os.environ)}) + "\n")
    child.stdin.flush()
    for line in child.stdout:
        if line.startswith('{"part"'):
            answer = json.loads(line)
            keras_forks.seconds += answer["seconds"]
            assert "failed" not in answer, answer["failed"]
            return answer["found"]
        said.append(line)
    raise AssertionError(f"the child has ended: {''.join(said)[-3000:]}")


@functools.cache
def open_child(file):
    """A child for all parts of a file, as JAX takes seconds to start; see `jax_parts.py`."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": PATHS, **QUICK}
    program = [str(SUPPORT / "jax_parts.py"), file]
    child = keras_forks.Fork(program, environment, subprocess.STDOUT)
    for stream in (child.stdin, child.stdout, child.stderr):
        atexit.register(stream.close)
    return child
