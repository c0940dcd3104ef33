"""XLA's compiled programs kept on disk between sessions, where the user names a folder for them.

`GPUKERAS_XLA_CACHE=DIR`: nothing is kept otherwise. A program of a small model takes 0.4 MB, and
makes its compiling 7 times shorter (5.1 s and 0.7 s, measured on a busy computer). XLA deletes
nothing, so the folder grows with every other model, batch size and block of rows. Programs for the
CPU hold its own instructions, and homes are shared by unlike computers: a folder for each kind of
CPU and each TensorFlow.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path

from gpukeras.system import packages

SWITCH = "GPUKERAS_XLA_CACHE"
FLAGS = "TF_XLA_FLAGS"
OPTION = "--tf_xla_persistent_cache_directory="


def plan_cache(variables: Mapping[str, str], kind: str) -> str | None:
    """The flags that make XLA keep its programs; None where nothing is to be set.

    Args:
        variables: The environment; flags of the user's own are left as they are.
        kind: What tells computers apart that cannot share programs.
    """
    folder = variables.get(SWITCH, "")
    if not folder or variables.get(FLAGS):
        return None
    return f'{OPTION}"{Path(folder).expanduser().resolve() / kind}"'


def name_kind(version: str, cpu: str) -> str:
    """A folder's name for a TensorFlow and a CPU's features."""
    return f"tensorflow-{version}-{hashlib.sha256(cpu.encode()).hexdigest()[:12]}"


def read_cpu(path: str | Path = "/proc/cpuinfo") -> str:
    """The CPU's model and features, as far as this system shows them."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    requested = ("model name", "flags", "Features", "CPU part")
    found = sorted({line for line in lines if line.partition(":")[0].strip() in requested})
    return "\n".join([platform.machine(), platform.processor(), *found])


def find_risk(folder: Path) -> str:
    """Why programs must not be taken from a folder, or "": TensorFlow would run them."""
    try:
        found = folder.stat()
    except OSError:
        return ""
    if os.name != "posix":
        return ""
    if found.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    return "can be written to by all users" if found.st_mode & stat.S_IWOTH else ""


def prepare_cache() -> None:
    """Sets the flags, before TensorFlow starts; warns of a folder that others can write to."""
    if not os.environ.get(SWITCH):
        return
    folder = packages.find_tensorflow()
    version = "" if folder is None else packages.find_version(folder.parent)
    kind = name_kind(version, read_cpu())
    flags = plan_cache(os.environ, kind)
    if flags is None:
        return
    whole = Path(os.environ[SWITCH]).expanduser().resolve()
    for place in (whole, whole / kind):
        if risk := find_risk(place):
            text = f"{SWITCH} is not used: {place.name} {risk}, and programs in it would be run."
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return
    os.environ[FLAGS] = flags
