"""Tells a module that is missing from one whose import fails, and remembers such failures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from gpukeras.core.child_process import run_child
from gpukeras.core.errors import RuntimeMissingError
from gpukeras.system import host
from gpukeras.system.environment import current_variables

# An import runs the code of many packages: one may even call sys.exit().
IMPORT_FAULTS = (Exception, SystemExit)
TRIAL_LIMIT_S = 60
failures: dict[str, str] = {}  # by module: the first error, since a second attempt says another


def refuse_import(title: str, module: str, error: BaseException, hint: str) -> RuntimeMissingError:
    """Returns the error for a failed import, and remembers what failed for `gpu_check()`.

    Args:
        title: Name for people, such as "TensorFlow".
        module: Name of the module, such as "tensorflow".
        error: What its import raised.
        hint: How to install it, said only where it is missing.
    """
    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    what = str(error).rstrip(".")
    said = failures.setdefault(module, f"{title} cannot be imported: {kind}{what}.")
    if not (isinstance(error, ModuleNotFoundError) and error.name == module):
        hint = "It is installed: gpu_check() says why its import fails."
    return RuntimeMissingError(said, hint=hint)


@contextmanager
def importing(title: str, module: str, hint: str) -> Iterator[None]:
    """Tells how an import of TensorFlow or JAX fails, see `refuse_import()` for the arguments.

    Raises:
        RuntimeMissingError: if it fails, would end this session, or gives another module.
    """
    check_processor(title, module)
    try:
        yield
        check_package(sys.modules[module])
    except IMPORT_FAULTS as error:
        raise refuse_import(title, module, error, hint) from error


def check_processor(title: str, module: str) -> None:
    """Refuses an import that would end this session, R's as a rule, on a processor without AVX.

    There a new process tries the import first: some packages are built for such processors.

    Args:
        title: Name for people, such as "TensorFlow".
        module: Name of the module, such as "tensorflow".

    Raises:
        RuntimeMissingError: if that process is killed.
    """
    if module in sys.modules or not host.lacks_avx():
        return
    end = run_child(sys.executable, ("-c", f"import {module}"), current_variables(), TRIAL_LIMIT_S)
    if end.problem.startswith("killed"):
        raise RuntimeMissingError(
            f"{title} cannot be imported: a process that only imports it is {end.problem}, and the "
            "processor has no AVX.",
            hint="It would have ended this session. gpu_check() says what to do.",
        )


def check_package(module: ModuleType) -> None:
    """Refuses what has only the name of TensorFlow, JAX or Keras, which all tell their version.

    It may be a script of the user's, or a folder that is left of a package that was removed.

    Args:
        module: What was imported.

    Raises:
        ImportError: if it is another module.
    """
    if not hasattr(module, "__version__"):
        place = getattr(module, "__file__", None) or next(iter(module.__path__), "")
        raise ImportError(f"{place} has its name and is another module: rename or remove it")
