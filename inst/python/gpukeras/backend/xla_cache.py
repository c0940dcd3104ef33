"""Makes XLA keep its compiled programs on disk between sessions.

They lie in the folder for caches that R gives gpukeras; `GPUKERAS_XLA_CACHE` names another folder,
or is "off". The program of a small model takes 0.4 MB, and makes its compilation 7 times shorter
(from 5.1 s to 0.7 s, measured on a busy computer). Programs contain instructions of a CPU or a GPU,
and different computers may share a home folder: each TensorFlow version with each kind of CPU and
GPU has its own subfolder. `xla_cache_files` bounds their size.

TensorFlow writes a program beside its place and renames it, so several processes share a folder. A
program that it cannot read or write is an error of the training, which is why the folder is tried
and damaged programs are removed before it starts.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import sys
import warnings
from collections.abc import Mapping, Set
from pathlib import Path

from gpukeras.backend import xla_cache_files
from gpukeras.system import packages

SWITCH = "GPUKERAS_XLA_CACHE"
OFF = ("off", "0", "false", "no")
FLAGS = "TF_XLA_FLAGS"
FOLDER_FLAG = "--tf_xla_persistent_cache_directory="
CPU_FLAG = "--tf_xla_persistent_cache_device_types=CPU"


def find_folder(variables: Mapping[str, str], system: str, home: Path) -> Path | None:
    """Returns the folder of all programs, or None if none are to be kept.

    Without the variable it is `tools::R_user_dir("gpukeras", "cache")` and "xla".

    Args:
        variables: The environment; with flags of the user's own for XLA nothing is changed.
        system: The operating system, as `sys.platform` names it.
        home: The user's home folder.
    """
    named = variables.get(SWITCH, "")
    if variables.get(FLAGS) or named.lower() in OFF:
        return None
    if named:
        return Path(named).expanduser().resolve()
    places = {"win32": Path(variables.get("LOCALAPPDATA", ""), "R", "cache")}
    places["darwin"] = home / "Library" / "Caches" / "org.R-project.R"
    given = variables.get("R_USER_CACHE_DIR") or variables.get("XDG_CACHE_HOME")
    caches = Path(given).expanduser() if given else places.get(system, home / ".cache")
    return (caches / "R" / "gpukeras" / "xla").absolute()


def write_flags(folder: Path, cpu_only: bool) -> str:
    """Returns the flags that make XLA keep its programs in a folder."""
    flags = f'{FOLDER_FLAG}"{folder}"'
    return f"{flags} {CPU_FLAG}" if cpu_only else flags


def name_kind(version: str, cpu: str, gpu: str = "") -> str:
    """Returns a folder's name for a TensorFlow version, a CPU's features and a GPU."""
    found = f"{cpu}\n{gpu}" if gpu else cpu
    return f"{xla_cache_files.KIND}{version}-{hashlib.sha256(found.encode()).hexdigest()[:12]}"


def read_cpu(path: str | Path = "/proc/cpuinfo") -> str:
    """Returns the CPU's model and features, as far as this system lists them."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    fields = ("model name", "flags", "Features", "CPU part")
    found = sorted({line for line in lines if line.partition(":")[0].strip() in fields})
    return "\n".join([platform.machine(), platform.processor(), *found])


def read_gpus(driver: str | Path = "/proc/driver/nvidia") -> Set[str]:
    """Returns the models of the NVIDIA GPUs with the driver's version, as far as Linux lists them.

    XLA's key of a program does not name the GPU.
    """
    files = Path(driver).glob("gpus/*/information")
    try:
        version = (Path(driver) / "version").read_text(errors="replace").strip()
        texts = [file.read_text(errors="replace") for file in files]
    except OSError:
        return set()
    lines = (line for text in texts for line in text.splitlines())
    return {f"{line}\n{version}" for line in lines if line.startswith("Model")}


def find_risk(folder: Path) -> str:
    """Returns why programs must not be loaded from a folder, or "": TensorFlow would run them."""
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
    """Sets the flags, before TensorFlow starts; warns of a named folder that others can write to.

    A folder that cannot be used is left out without a word.
    """
    whole = find_folder(os.environ, sys.platform, Path(os.path.expanduser("~")))
    if whole is None:
        return
    tensorflow, gpus = packages.find_tensorflow(), read_gpus()
    version = "" if tensorflow is None else packages.find_version(tensorflow.parent)
    one_gpu = len(gpus) == 1
    folder = whole / name_kind(version, read_cpu(), next(iter(gpus)) if one_gpu else "")
    for place in (whole, folder):
        if risk := find_risk(place):
            _warn(f"{place.name} {risk}, and programs in it would be run")
            return
    if xla_cache_files.can_keep(folder):
        xla_cache_files.clean(whole)
        os.environ[FLAGS] = write_flags(folder, cpu_only=not one_gpu)


def _warn(why: str) -> None:
    if os.environ.get(SWITCH):
        warnings.warn(f"{SWITCH} is not used: {why}.", RuntimeWarning, stacklevel=3)
