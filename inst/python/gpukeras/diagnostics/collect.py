"""Reads the facts for `gpu_check()` in layers, cheapest first, until a root cause is proven.

What may crash, hang or take memory runs in child processes (`child_probes`); this session
tells only what it already knows, and at last lists its own GPUs.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpukeras.backend import cuda_preload, runtime
from gpukeras.backend.devices import current, short_name
from gpukeras.backend.env_vars import read_environment, sync_environment
from gpukeras.core.errors import GpuKerasError, RuntimeMissingError
from gpukeras.diagnostics import nvidia
from gpukeras.diagnostics.child_probes import (
    quiet_environment,
    read_driver_answers,
    read_listings,
    read_proof,
)
from gpukeras.diagnostics.verdict import diagnose
from gpukeras.system import host, packages
from gpukeras.system.facts import (
    find_dict,
    find_fact,
    find_list,
    find_number,
    find_records,
    find_text,
    is_simulated,
)

# What a second TensorFlow takes of a GPU before it computes: its CUDA context with cuDNN and cuBLAS
# has some 500 MiB, and TensorFlow leaves the rest of a small card to the system.
CHILD_BYTES = 2**30
EXCLUSIVE_PROCESS = 3  # NVML and CUDA: one process at a time may hold the GPU


def read_facts(
    session: Mapping[str, Any] | None = None,
    model: Any = None,
    data: Any = None,
    root: str | Path = "/",
) -> dict[str, Any]:
    """All facts that are needed; what cannot be read is None and has its reason in `unread`.

    Args:
        session: As in `check()`.
        model: As in `check()`.
        data: As in `check()`.
        root: Where the computer's files are.
    """
    known = dict(session) if isinstance(session, Mapping) else {}
    readings = known.pop("environment", None)
    seen_by_r = dict(readings) if isinstance(readings, Mapping) else {} if known else None
    facts: dict[str, Any] = {"session": known, "skipped": {}, "unread": {}}
    read_files(facts, seen_by_r, Path(root))
    _read_into(facts, "tensorflow", read_imported)
    with quiet_environment() as environment:
        read_driver_answers(facts, environment)
        for name, read in LAYERS.items():
            reason = explain_skip(name, facts)
            if reason:
                facts["skipped"][name] = reason
            else:
                read(facts, environment)
        if model is not None:
            read_own_use(facts, model, data)
    facts["preload"] = None if cuda_preload.done is None else asdict(cuda_preload.done)
    _read_into(facts, "loaded", nvidia.read_loaded_libraries)
    return facts


def explain_skip(layer: str, facts: Mapping[str, Any]) -> str:
    """Why a layer is not needed, or "": the first proven root cause ends the search."""
    cause = diagnose(facts).cause_id
    if cause:
        return f"{cause} was found before"
    if layer == "tensorflow" and find_list(facts, "tensorflow", "physical_gpus"):
        return "this session lists a GPU already"
    if layer == "session":
        return explain_no_import(facts)
    if layer == "compute":
        return explain_no_proof(facts)
    return ""


def explain_no_import(facts: Mapping[str, Any]) -> str:
    """Why TensorFlow is not imported here, or "": what ended a child would end this session."""
    if find_fact(facts, "tensorflow", "imported") is True:
        return ""
    ends = [find_text(tried, "error") or "" for tried in find_dict(facts, "listings").values()]
    last = ends[-1] if ends else ""
    fatal = last.startswith(("killed", "did not end"))
    return f"importing TensorFlow is not safe here: {last}" if fatal else ""


def explain_no_proof(facts: Mapping[str, Any]) -> str:
    """Why computing is not tried in a child process, or ""."""
    if not find_list(facts, "tensorflow", "visible_gpus"):
        return "TensorFlow lists no GPU that could compute"
    modes = [find_number(gpu, "compute_mode") for gpu in find_records(facts, "nvml", "devices")]
    if is_simulated(facts):
        return "the driver is simulated, nothing can be computed on it"
    if find_fact(facts, "tensorflow", "started") is not True:
        return ""
    if EXCLUSIVE_PROCESS in modes:
        return "the GPU admits one process at a time, and this session is the one"
    free = [find_number(gpu, "free_bytes") for gpu in find_records(facts, "nvml", "devices")]
    if any(left is not None and left < CHILD_BYTES for left in free):
        return "this session holds the GPU's memory; give model and data to prove its own training"
    return ""


def _read_into(facts: dict[str, Any], name: str, read: Callable[[], Any]) -> None:
    try:
        facts[name] = read()
    except Exception as error:  # an odd machine must not end the check
        facts[name] = None
        facts["unread"][name] = f"{type(error).__name__}: {error}"


# Files: no TensorFlow, no driver -----------------------------------------------------------------


def read_files(facts: dict[str, Any], seen_by_r: Mapping[str, str] | None, root: Path) -> None:
    """What files, the environment and package metadata say."""
    session = facts["session"]
    readers: dict[str, Callable[[], Any]] = {
        "platform": read_platform,
        "hardware": lambda: {"nvidia_gpus": nvidia.read_pci_gpus(root / "sys/bus/pci/devices")},
        "driver": lambda: nvidia.read_driver(root),
        "toolkits": lambda: nvidia.read_toolkits(root),
        "container": lambda: host.read_container(root),
        "slurm": host.read_slurm,
        "environment": lambda: read_environment(seen_by_r),
        "python": lambda: read_python(session),
        "packages": packages.read_packages,
        "requirements": packages.read_requirements,
        "build": packages.read_build,
        "installation": packages.read_installation,
        "compiler": packages.read_compiler,
        "elsewhere": packages.read_elsewhere,
        "keras": read_keras,
    }
    for name, read in readers.items():
        _read_into(facts, name, read)
    _read_into(facts, "libraries", lambda: packages.read_libraries(facts["build"] or {}))


def read_platform() -> dict[str, str]:
    """The operating system."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
    }


def read_python(session: Mapping[str, Any]) -> dict[str, Any]:
    """The Python that runs; R knows its program's path better than an embedded Python does."""
    executable = session.get("python")
    return {
        "executable": executable if isinstance(executable, str) else sys.executable,
        "version": platform.python_version(),
        "prefix": sys.prefix,
        "pid": os.getpid(),
        "is_requested": _runs_from(session.get("requested_python")),
    }


def _runs_from(program: Any) -> bool:
    """Whether a program is of this Python's environment; either may be reached by a link."""
    if not isinstance(program, str) or not os.path.isabs(program):
        return False
    folder, prefix = os.path.realpath(os.path.dirname(program)), os.path.realpath(sys.prefix)
    return prefix in (folder, os.path.dirname(folder))


def read_keras() -> dict[str, str]:
    """Keras' backend: of the imported Keras, else what it would choose under gpukeras."""
    backend = getattr(sys.modules.get("keras"), "backend", None)
    if backend is not None:
        return {"backend": backend.backend()}
    return {"backend": runtime.python_variables().get("KERAS_BACKEND", "tensorflow")}


# This session ------------------------------------------------------------------------------------


def read_imported() -> dict[str, Any]:
    """What TensorFlow lists in this session, if it is imported already."""
    if not runtime.imported():
        return {"imported": False}
    return read_tensorflow()


def read_tensorflow() -> dict[str, Any]:
    """Version and GPUs in this process, without starting them."""
    sync_environment()
    try:
        version = runtime.tensorflow().__version__
    except RuntimeMissingError as error:
        return {"imported": False, "error": error.message}
    return {
        "imported": True,
        "version": version,
        "started": runtime.started(),
        "physical_gpus": [short_name(gpu) for gpu in runtime.physical_devices("GPU")],
        "visible_gpus": [short_name(gpu) for gpu in runtime.visible_devices("GPU")],
    }


def read_session(facts: dict[str, Any], environment: Mapping[str, str]) -> None:
    """Lists the GPUs here too: what a child sees proves the computer, not this session."""
    if find_list(facts, "tensorflow", "physical_gpus") is None:
        _read_into(facts, "tensorflow", read_tensorflow)


def read_own_use(facts: dict[str, Any], model: Any, data: Any) -> None:
    """Trains the user's own model for a few steps where it would be trained."""
    from gpukeras.diagnostics import usage  # with all of `data`, which a check alone need not load

    try:
        facts["use"] = usage.read_use(model, data, current().device)
    except GpuKerasError:  # this model cannot be trained at all: that is the answer
        raise
    except Exception as error:
        facts["use"] = None
        facts["unread"]["use"] = f"{type(error).__name__}: {error}"


LAYERS: Mapping[str, Callable[[dict[str, Any], Mapping[str, str]], None]] = {
    "tensorflow": read_listings,
    "session": read_session,
    "compute": read_proof,
}
