"""Runs actions just before or after the code of a module, whoever imports it and when.

`import gpukeras` alone installs a hook, so this module is small and needs the standard library
only: R checks a Python for missing packages before NumPy is installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], Any]


class _Hook:
    """A module finder that adds actions to the execution of one module; it finds no modules.

    The other finders find the module, and its loader runs the actions. So who only asks whether the
    module is there, as TensorFlow asks for Keras, changes nothing, and a module whose import failed
    or that is imported anew has its actions again.

    Args:
        module: Name of the module.
        before: Is called with the module before its code runs, or None.
        after: Is called with it afterwards, if that did not fail, or None.
    """

    def __init__(
        self, module: str, before: Action | None = None, after: Action | None = None
    ) -> None:
        self.module = module
        self.before = before
        self.after = after

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.module:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None:
                self._extend(spec.loader)
                return spec
        return None

    def _extend(self, loader: Any) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None or getattr(execute, "hook", None) is self:
            return

        def exec_module(module: ModuleType) -> None:
            named = module.__name__ == self.module  # a loader may be that of many modules
            if named and self.before is not None:
                self.before(module)
            execute(module)
            if named and self.after is not None:
                self.after(module)

        exec_module.hook = self  # type: ignore[attr-defined]
        loader.exec_module = exec_module


def _find(module: str) -> list[_Hook]:
    return [hook for hook in sys.meta_path if isinstance(hook, _Hook) and hook.module == module]


def await_tensorflow() -> None:
    """Installs a hook that runs `cuda_preload.prepare()` just before any import of TensorFlow.

    The libraries take a second to load, and a session may never need them.
    """
    if "tensorflow" not in sys.modules and not _find("tensorflow"):
        sys.meta_path.insert(0, _Hook("tensorflow", before=_prepare))


def _prepare(module: ModuleType) -> None:
    with suppress(Exception):  # the import must not fail here; gpu_check() reports it
        from gpukeras.backend import cuda_preload

        cuda_preload.prepare(imported=False)


def follow(name: str, action: Action | None) -> None:
    """Runs an action after each import of a module from now on; None for none any more.

    Args:
        name: Name of the module.
        action: Is called with the module. It takes the place of an earlier one.
    """
    for hook in _find(name):
        sys.meta_path.remove(hook)
        hook.after = None  # a loader may be about to run it
    if action is not None:
        sys.meta_path.insert(0, _Hook(name, after=action))
