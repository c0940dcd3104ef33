"""Makes XLA keep its compiled programs on disk between sessions.

They lie in the folder for caches that R gives gpukeras, see `cache_folder`; `GPUKERAS_XLA_CACHE`
names another folder, or is "off". The program of a small model takes 0.4 MB, and makes its
compilation 7 times shorter (from 5.1 s to 0.7 s, measured on a busy computer). Programs contain
instructions of a CPU or a GPU, and different computers may share a home folder: each version of
TensorFlow or JAX with each kind of CPU and GPU has its own subfolder. `xla_cache_files` bounds
their size.

TensorFlow writes a program beside its place and renames it, so several processes share a folder. A
program that it cannot read or write is an error of the training, which is why the folder is tried
and damaged programs are removed before it starts. JAX compiles anew what it cannot read, with a
warning.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import warnings
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from gpukeras.backend import xla_cache_files
from gpukeras.core import cache_folder
from gpukeras.system import packages

SWITCH = "GPUKERAS_XLA_CACHE"
FLAGS = "TF_XLA_FLAGS"
FOLDER_FLAG = "--tf_xla_persistent_cache_directory="
CPU_FLAG = "--tf_xla_persistent_cache_device_types=CPU"


def find_folder(variables: Mapping[str, str], system: str, home: Path) -> Path | None:
    """Returns the folder of all programs, or None if none are to be kept; see `cache_folder`."""
    return cache_folder.find_folder("xla", SWITCH, variables, system, home)


def write_flags(folder: Path, cpu_only: bool) -> str:
    """Returns the flags that make XLA keep its programs in a folder."""
    flags = f'{FOLDER_FLAG}"{folder}"'
    return f"{flags} {CPU_FLAG}" if cpu_only else flags


def name_kind(version: str, cpu: str, gpu: str = "") -> str:
    """Returns a folder's name for a version, such as "jax-0.7.1", a CPU's features and a GPU."""
    processors = f"{cpu}\n{gpu}" if gpu else cpu
    return f"{version}-{hashlib.sha256(processors.encode()).hexdigest()[:12]}"


def read_cpu(path: str | Path = "/proc/cpuinfo") -> str:
    """Returns the CPU's model and features, as far as this system lists them."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    fields = ("model name", "flags", "Features", "CPU part")
    features = sorted({line for line in lines if line.partition(":")[0].strip() in fields})
    return "\n".join([platform.machine(), platform.processor(), *features])


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


def find_kept_folder() -> Path | None:
    """Returns the folder in which TensorFlow keeps programs, if gpukeras has told it so."""
    match = re.search(re.escape(FOLDER_FLAG) + '"([^"]+)"', os.environ.get(FLAGS, ""))
    whole = cache_folder.read_folder("xla", SWITCH)
    if match is None or whole is None or Path(match[1]).parent != whole:
        return None
    return Path(match[1])


def prepare_cache() -> None:
    """Sets the flags, before TensorFlow starts; with flags of the user's own nothing is changed."""
    if os.environ.get(FLAGS):
        return
    tensorflow, gpus = packages.find_tensorflow(), read_gpus()
    version = "" if tensorflow is None else packages.find_version(tensorflow.parent)
    one_gpu = len(gpus) == 1
    folder = open_folder(f"tensorflow-{version}", next(iter(gpus)) if one_gpu else "")
    if folder is not None:
        os.environ[FLAGS] = write_flags(folder, cpu_only=not one_gpu)


def prepare_jax_cache(jax: Any) -> None:
    """Makes JAX keep its programs, small ones too; a folder of the user's own is not changed.

    A small model has dozens of programs, each compiled in less than JAX's limit of a second. JAX's
    key of a program names the GPU.

    Args:
        jax: The module.
    """
    if jax.config.jax_compilation_cache_dir is not None:
        return
    folder = open_folder(f"jax-{jax.__version__}")
    if folder is not None:
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        # Of a program that another process is just writing, or that the disk has no room for.
        message = "Error (reading|writing) persistent compilation cache"
        warnings.filterwarnings("ignore", message)


def open_folder(version: str, gpu: str = "") -> Path | None:
    """Returns the folder of a kind of programs, made and cleaned; None if none are to be kept.

    A folder that cannot be used is left out without a word; of a folder named by the user this
    warns.

    Args:
        version: See `name_kind()`.
        gpu: See `name_kind()`.
    """
    whole = cache_folder.read_folder("xla", SWITCH)
    if whole is None:
        return None
    folder = whole / name_kind(version, read_cpu(), gpu)
    for place in (whole, folder):
        if risk := cache_folder.find_risk(place):
            _warn(f"{place.name} {risk}, and programs in it would be run")
            return None
    if not xla_cache_files.can_keep(folder):
        _warn(f"nothing can be written to {whole.name}, or its disk is nearly full")
        return None
    xla_cache_files.clean(whole)
    return folder


def _warn(why: str) -> None:
    if os.environ.get(SWITCH):
        warnings.warn(f"{SWITCH} is not used: {why}.", RuntimeWarning, stacklevel=4)
