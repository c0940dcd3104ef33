"""Synchronizes environment variables: C's copy and Python's copy differ once Python runs.

R's `Sys.setenv()` writes C's environment; `os.environ` is a copy made when Python started, and
writes through to C. So C's copy is always current. CUDA and TensorFlow's C++ read C's, Keras reads
Python's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpukeras.backend import runtime
from gpukeras.system import environment, host

FORCE_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
SYNCED = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "XLA_FLAGS", "KERAS_BACKEND")
PREFIXES = ("TF_", "JAX_", "XLA_PYTHON_CLIENT_", "XLA_CLIENT_")  # synchronized too
SHOWN = (
    *SYNCED,
    FORCE_GROWTH,
    "CUDA_DEVICE_ORDER",
    "TF_CPP_MIN_LOG_LEVEL",
    "NVIDIA_TF32_OVERRIDE",
    "TF_DETERMINISTIC_OPS",
    "TF_MIN_GPU_MULTIPROCESSOR_COUNT",
    "RETICULATE_PYTHON",
    "CUDA_MPS_PIPE_DIRECTORY",
    "JAX_PLATFORMS",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)


@dataclass(frozen=True)
class EnvironmentChange:
    """A variable that R changed after Python's start.

    Args:
        name: The variable.
        c: The C library's value, which R wrote; None if removed.
        python: The value in `os.environ`.
        copied: Whether it was copied to Python; False once the backend is imported.
    """

    name: str
    c: str | None
    python: str | None
    copied: bool


def sync_environment() -> list[EnvironmentChange]:
    """Copies variables that R set after Python's start from C's environment to Python's.

    It does so only until the backend is imported, because it reads its variables once.
    """
    python = environment.python_variables()  # once: each call from R comes here
    known = {*environment.c_variables(), *python}
    names = {*SYNCED, *(name for name in known if name.startswith(PREFIXES))}
    readings = [(name, environment.c_variable(name), python.get(name)) for name in sorted(names)]
    open_ = not runtime.imported()
    changes = [
        EnvironmentChange(*reading, open_) for reading in readings if reading[1] != reading[2]
    ]
    for change in changes if open_ else []:
        environment.set_variable(change.name, change.c)
    return changes


def read_environment(
    seen_by_r: Mapping[str, str] | None = None,
) -> dict[str, dict[str, str | None]]:
    """Returns each variable's values by source; None is unset.

    The sources are C, Python, R (under R), and on Linux the environment at the process's start: the
    system's loader reads LD_LIBRARY_PATH only then.
    """
    sources = {"python": environment.python_variables(), "r": seen_by_r, "start": read_start()}
    known = {who: values for who, values in sources.items() if values is not None}
    return {
        name: {"c": environment.c_variable(name)}
        | {who: values.get(name) for who, values in known.items()}
        for name in SHOWN
    }


def read_start() -> dict[str, str] | None:
    """Returns the environment at the start of this process, or None if it is not available."""
    return host.read_start_environment() or None
