"""How to install packages: by pip, or in a virtual environment where pip is refused."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shlex
import sys
import sysconfig

ENVIRONMENT = "~/.virtualenvs/r-gpukeras"  # where install_gpukeras() makes it
PYTHON = f"{ENVIRONMENT}/bin/python"


def is_managed() -> bool:
    """Whether this Python is the operating system's, into which pip installs nothing (PEP 668)."""
    marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
    return sys.prefix == sys.base_prefix and os.path.isfile(marker)


def install(packages: str) -> str:
    """Returns the command that installs packages for this Python, options of pip included."""
    return describe_install(packages, is_managed())


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


def describe_install(packages: str, managed: bool) -> str:
    """Returns the command that installs packages, into a new environment for a managed Python."""
    if not managed:
        return f"pip install {packages}"
    return (
        f"{PYTHON} -m pip install {packages}, after install_gpukeras() in R or python3 -m venv "
        f"{ENVIRONMENT}, since this Python is the operating system's"
    )
