"""Loads the CUDA libraries just before any code imports TensorFlow, and acts on Keras' import.

`import gpukeras` alone installs the hook, so this module is small and needs the standard library
only: R checks a Python for missing packages before NumPy is installed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from typing import Any


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


class _Follower:
    """A module finder that runs an action once Keras is imported; it finds no other modules."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_act(module: Any) -> None:
            load(module)
            self.action()

        spec.loader.exec_module = load_and_act  # type: ignore[method-assign]
        return spec


def follow_keras(action: Callable[[], Any] | None) -> None:
    """Runs an action as soon as Keras is imported; None for the action asked before no more.

    Args:
        action: The action. It is run at once if Keras is imported.
    """
    for finder in [one for one in sys.meta_path if isinstance(one, _Follower)]:
        sys.meta_path.remove(finder)
    if action is None:
        return
    if "keras" in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Follower(action))
