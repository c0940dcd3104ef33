"""Waits for whoever imports TensorFlow, to load its CUDA libraries first.

`import gpukeras` alone installs it, so it is small and needs the standard library only: R asks what
is missing from a Python before NumPy is there.
"""

from __future__ import annotations

import sys
from contextlib import suppress


class _Awaiter:
    """A finder of modules that prepares when TensorFlow is looked for; finds nothing itself."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "tensorflow":
            sys.meta_path.remove(self)
            with suppress(Exception):  # the import is not to fail for this; gpu_check() tells it
                from gpukeras.backend import cuda_preload

                cuda_preload.prepare()


def await_tensorflow() -> None:
    """Has `cuda_preload.prepare()` run just before TensorFlow is imported, whoever imports it.

    The libraries take a second to load, and a session may never need them.
    """
    waiting = any(isinstance(finder, _Awaiter) for finder in sys.meta_path)
    if "tensorflow" not in sys.modules and not waiting:
        sys.meta_path.insert(0, _Awaiter())
