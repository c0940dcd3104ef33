"""Loads the CUDA libraries just before any code imports TensorFlow.

`import gpukeras` alone installs the hook, so this module is small and needs the standard library
only: R checks a Python for missing packages before NumPy is installed.
"""

from __future__ import annotations

import sys
from contextlib import suppress


class _Awaiter:
    """A module finder that runs the preload when TensorFlow is imported; it finds no modules."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "tensorflow":
            sys.meta_path.remove(self)
            with suppress(Exception):  # the import must not fail here; gpu_check() reports it
                from gpukeras.backend import cuda_preload

                cuda_preload.prepare()


def await_tensorflow() -> None:
    """Installs a hook that runs `cuda_preload.prepare()` just before any import of TensorFlow.

    The libraries take a second to load, and a session may never need them.
    """
    waiting = any(isinstance(finder, _Awaiter) for finder in sys.meta_path)
    if "tensorflow" not in sys.modules and not waiting:
        sys.meta_path.insert(0, _Awaiter())
