"""Loads the wheel's own CUDA libraries before TensorFlow searches them.

TensorFlow 2.21.0 does not search its own cusolver (PR #112973), and a folder on LD_LIBRARY_PATH, of
which R makes one, takes precedence over the wheel's. A library that this process has already loaded
is found by its name, wherever it is, so loading the wheel's libraries in the right order fixes
both.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpukeras.backend import xla_cache
from gpukeras.system import packages

# What R says of a signal, or a C++ program's last line; from there on all passes.
LAST_WORDS = r"/ \*\*\* caught |^F[0-9 ]/,$p"
SWITCH = "GPUKERAS_PRELOAD"  # "false" switches preloading off
# Each library follows those that it needs (from the ELF headers of the wheels for CUDA 12).
ORDER = (
    "libcudart.so",
    "libnvJitLink.so",
    "libcublasLt.so",
    "libcublas.so",
    "libcusparse.so",
    "libcusolver.so",
    "libcufft.so",
    "libcurand.so",
    "libnvrtc.so",
    "libcudnn.so",
    "libnccl.so",
    "libcupti.so",
)


@dataclass(frozen=True)
class Preload:
    """The libraries to load before TensorFlow, and why.

    Args:
        status: "planned", then "done" or "failed"; "not needed", or "too late".
        libraries: Their paths, in the order of loading.
        reason: Why, one phrase.
    """

    status: str
    libraries: tuple[str, ...]
    reason: str


def plan_preload(facts: Mapping[str, Any]) -> Preload:
    """Plans whether to load the wheel's CUDA libraries first.

    Args:
        facts: `wanted`, `imported` (whether TensorFlow is already imported), `is_cuda_build`,
            `driver` (whether there is any sign of an NVIDIA driver), `libraries` (paths of the
            wheel's libraries).
    """
    libraries = tuple(sort_libraries(facts.get("libraries") or ()))
    if facts.get("wanted") is False:
        return Preload("not needed", (), f"{SWITCH} switches it off")
    if facts.get("is_cuda_build") is not True:
        return Preload("not needed", (), "TensorFlow is built without CUDA")
    if not libraries:
        return Preload("not needed", (), "the wheels of the CUDA libraries are not installed")
    if not facts.get("driver"):
        return Preload("not needed", (), "there is no sign of an NVIDIA driver")
    if facts.get("imported"):
        return Preload("too late", (), "TensorFlow was imported before gpukeras")
    return Preload("planned", libraries, "so that TensorFlow finds its own CUDA libraries")


def sort_libraries(paths: Iterable[str]) -> list[str]:
    """Returns the known libraries among these, each after those that it needs."""
    names = {path: Path(path).name for path in paths}
    return [path for first in ORDER for path in sorted(names) if names[path].startswith(first)]


def list_wheel_libraries(site: Path) -> list[str]:
    """Returns the CUDA libraries of the `nvidia-*` wheels in a package folder."""
    return sorted(str(path) for path in site.glob("nvidia/*/lib/lib*.so.*[0-9]"))


def has_driver(root: str | Path = "/") -> bool:
    """Whether there is any sign of an NVIDIA driver: without one the libraries are useless."""
    root = Path(root)
    signs = ("proc/driver/nvidia", "dev/nvidiactl", "dev/nvidia0", "dev/dxg")
    return any((root / sign).exists() for sign in signs) or _loads("libcuda.so.1")


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def apply_preload(plan: Preload) -> Preload:
    """Loads the libraries into this process, visible to everything that is loaded later."""
    if plan.status != "planned":
        return plan
    failed = [error for path in plan.libraries if (error := _load(path))]
    if failed:
        return replace(plan, status="failed", reason="; ".join(failed)[:300])
    return replace(plan, status="done")


def _load(path: str) -> str:
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return ""


def read_preload_facts(imported: bool) -> dict[str, Any]:
    """Returns the facts for `plan_preload()`; the driver comes last, because the check loads it."""
    folder = packages.find_tensorflow()
    build = packages.read_build_info(folder.parent) if folder is not None else None
    cuda = (build or {}).get("is_cuda_build")
    libraries = list_wheel_libraries(folder.parent) if cuda and folder is not None else []
    requested = os.environ.get(SWITCH, "true").lower() not in ("0", "false", "no")
    return {
        "wanted": requested,
        "imported": imported,
        "is_cuda_build": cuda,
        "libraries": libraries,
        "driver": has_driver() if libraries and requested else None,
    }


done: Preload | None = None  # the result in this process, once `prepare()` ran


def prepare(imported: bool | None = None) -> Preload:
    """Loads the wheel's CUDA libraries into this process, once; returns the result.

    Args:
        imported: Whether TensorFlow's code has run; None to look whether its module exists.
    """
    global done
    if done is None:
        xla_cache.prepare_cache()
        late = "tensorflow" in sys.modules if imported is None else imported
        done = apply_preload(plan_preload(read_preload_facts(late)))
    return done


@contextlib.contextmanager
def paused_collector() -> Iterator[None]:
    """Pauses Python's garbage collector: TensorFlow's import makes many objects and no garbage."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def muted_stderr() -> Iterator[None]:
    """Drops C++ output to standard error: the import writes notes at any log level.

    An import may end this process. What then is said passes: R's words on a signal that it caught,
    and TensorFlow's on a fatal error.
    """
    saved = os.dup(2)
    with contextlib.ExitStack() as stack:
        sink = _open_sink(stack)
        stack.callback(os.close, saved)
        stack.callback(os.dup2, saved, 2)
        os.dup2(sink, 2)
        yield


def _open_sink(stack: contextlib.ExitStack) -> int:
    """Opens what drops all but last words: another process passes those on, also after our end."""
    try:
        relay = subprocess.Popen(
            ("sed", "-nE", LAST_WORDS),
            stdin=subprocess.PIPE,
            stdout=2,
            start_new_session=True,  # an interrupt does not end it
        )
    except OSError:  # Windows has no sed
        return stack.enter_context(open(os.devnull, "wb")).fileno()
    assert relay.stdin is not None
    stack.callback(_end, relay)
    stack.callback(relay.stdin.close)
    return relay.stdin.fileno()


def _end(relay: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):  # a child of the import holds the pipe
        relay.wait(1)
