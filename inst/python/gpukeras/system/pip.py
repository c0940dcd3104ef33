"""Which Python runs, and how to install packages: by pip, or in a virtual environment."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shlex
import sys
import sysconfig
from collections.abc import Mapping
from typing import Any

ENVIRONMENT = "~/.virtualenvs/r-gpukeras"  # where install_gpukeras() makes it
PYTHON = f"{ENVIRONMENT}/bin/python"


def is_managed() -> bool:
    """Whether this Python is the operating system's, into which pip installs nothing (PEP 668)."""
    marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    return sys.prefix == sys.base_prefix and os.path.isfile(marker)


def install(packages: str) -> str:
    """Returns the command that installs packages for this Python, options of pip included.

    For the operating system's it begins with a new environment.
    """
    if not is_managed():
        return f"pip install {packages}"
    return (
        f"{PYTHON} -m pip install {packages}, after install_gpukeras() in R or python3 -m venv "
        f"{ENVIRONMENT}, since this Python is the operating system's"
    )


def install_with(python: str, packages: str) -> str:
    """Returns the command that installs packages for an interpreter."""
    return install(packages) if is_managed() else f"{shlex.quote(python)} -m pip install {packages}"


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a plain folder of that name does not count."""
    importlib.invalidate_caches()  # finds a package installed since start
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def hint_import(error: BaseException, module: str, packages: str) -> str:
    """Returns what to do about a failed import; only a missing module is told to be installed.

    Args:
        error: What the import raised.
        module: The module that was imported.
        packages: The packages that have it.
    """
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        return f"Install it: {install(packages)}."
    return f"It is installed, and its import fails: {error}."


def read_python(session: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the running Python; R knows the path of its program better than embedded Python."""
    executable = session.get("python")
    return {
        "executable": executable if isinstance(executable, str) else sys.executable,
        "version": platform.python_version(),
        "prefix": sys.prefix,
        "is_managed": is_managed(),
        "pid": os.getpid(),
        "is_requested": _runs_from(session.get("requested_python")),
    }


def _runs_from(program: Any) -> bool:
    """Whether a program belongs to this Python's environment, with links resolved."""
    if not isinstance(program, str) or not os.path.isabs(program):
        return False
    folder, prefix = os.path.realpath(os.path.dirname(program)), os.path.realpath(sys.prefix)
    return prefix in (folder, os.path.dirname(folder))
