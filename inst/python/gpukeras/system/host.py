"""What the computer is, read from files and NVML alone: no TensorFlow, nothing started.

Every reader follows one convention: None means "not determined", an empty text or list means
"looked, and it is not there". Nothing here raises on an odd machine.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTAINER_MARKERS = (".dockerenv", "run/.containerenv", ".singularity.d")
CONTAINER_GROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc")


def read_text(path: str | Path) -> str | None:
    """A small file's text without surrounding white space, or None if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").strip("\0\n\t ")
    except OSError:
        return None


# Containers, jobs, NVML --------------------------------------------------------------------------


def read_container(
    root: str | Path = "/", environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The sign that this is a container ("" if none), and which GPUs and uses it was promised."""
    root = Path(root)
    found = [f"/{name}" for name in CONTAINER_MARKERS if (root / name).exists()]
    groups = read_text(root / "proc/1/cgroup") or ""
    found += [f"control group {name}" for name in CONTAINER_GROUPS if name in groups]
    found += [name for name in ("KUBERNETES_SERVICE_HOST",) if name in environment]
    return {
        "marker": found[0] if found else "",
        "nvidia_visible_devices": environment.get("NVIDIA_VISIBLE_DEVICES", ""),
        "nvidia_driver_capabilities": environment.get("NVIDIA_DRIVER_CAPABILITIES", ""),
    }


def read_slurm(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The Slurm job that this is ("" if none), and the GPUs that it was given."""
    gpus = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")
    given = [environment[name] for name in gpus if environment.get(name)]
    return {"job_id": environment.get("SLURM_JOB_ID", ""), "gpus": given[0] if given else ""}


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU as NVML, the driver's monitoring library, numbers it (in PCI order)."""

    name: str
    uuid: str
    total_bytes: float
    free_bytes: float


def read_nvml() -> list[NvmlGpu] | None:
    """All GPUs that NVML knows, or None without the package, the driver or permission."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return [_read_nvml_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _read_nvml_gpu(pynvml: Any, index: int) -> NvmlGpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    texts = (pynvml.nvmlDeviceGetName(handle), pynvml.nvmlDeviceGetUUID(handle))
    name, uuid = (text.decode() if isinstance(text, bytes) else text for text in texts)
    return NvmlGpu(name, uuid, float(memory.total), float(memory.free))


def match_nvml(
    labels: Sequence[str], gpus: Sequence[NvmlGpu], visible: str | None
) -> list[NvmlGpu | None]:
    """NVML's record of each of TensorFlow's GPUs, None where it cannot be told.

    NVML counts in PCI order and ignores CUDA_VISIBLE_DEVICES, CUDA counts the fastest first:
    positions are believed only where every name agrees, else a name that occurs once.

    Args:
        labels: TensorFlow's names of its GPUs, in its order.
        gpus: What NVML knows.
        visible: CUDA_VISIBLE_DEVICES, or None if unset.
    """
    chosen = list(gpus)
    if visible is not None:
        named = choose_visible([gpu.uuid for gpu in gpus], visible)
        chosen = [gpus[one] for one in named if isinstance(one, int)]
    if [gpu.name for gpu in chosen] == list(labels):
        return list(chosen)
    namesakes = [[gpu for gpu in gpus if gpu.name == label] for label in labels]
    return [found[0] if len(found) == 1 else None for found in namesakes]


# Processor and memory ----------------------------------------------------------------------------


def read_cpu_label() -> str:
    """The processor's name."""
    for line in (read_text("/proc/cpuinfo") or "").splitlines():
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_total_memory() -> float | None:
    """Bytes of memory of the computer."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        memory = _psutil_memory()
        return None if memory is None else float(memory.total)


def read_free_memory() -> float | None:
    """Bytes that this process can still take: the computer's, or its control group's if less."""
    memory = _psutil_memory()
    lines = (read_text("/proc/meminfo") or "").splitlines()
    shown = [float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    free = [float(memory.available)] if memory is not None else shown
    free += [left for left in (read_group_memory(),) if left is not None]
    return min(free) if free else None


def read_group_memory(root: str | Path = "/") -> float | None:
    """Bytes left in this process's control group (a container's or Slurm's limit), if it has one.

    File cache counts as free: the kernel gives it back before it refuses memory.
    """
    own = (read_text(Path(root, "proc/self/cgroup")) or "").rpartition("::")[2].lstrip("/")
    group = Path(root, "sys/fs/cgroup", own.splitlines()[0] if own else "")
    limit = read_text(group / "memory.max") or "max"
    used = [line.split() for line in (read_text(group / "memory.stat") or "").splitlines()]
    anonymous = [float(words[1]) for words in used if words[0] == "anon"]
    if not limit.isdigit() or not anonymous:
        return None
    return max(0.0, float(limit) - anonymous[0])


def read_process_memory() -> tuple[float | None, float | None]:
    """Bytes that this process holds in memory now, and held at most."""
    pages = (read_text("/proc/self/statm") or "").split()
    now = float(pages[1]) * os.sysconf("SC_PAGE_SIZE") if pages else _psutil_resident()
    try:
        import resource
    except ImportError:  # Windows
        return now, None
    unit = 1 if platform.system() == "Darwin" else 1024
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
    return now, max(peak, now or 0.0)


def _psutil_memory() -> Any:
    try:
        import psutil
    except ImportError:
        return None
    return psutil.virtual_memory()


def _psutil_resident() -> float | None:
    try:
        import psutil
    except ImportError:
        return None
    return float(psutil.Process().memory_info().rss)


# The loader --------------------------------------------------------------------------------------


def read_start_environment() -> dict[str, str]:
    """The environment with which this process was started (Linux); else empty."""
    entries = (read_text("/proc/self/environ") or "").split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def read_library_cache() -> dict[str, str]:
    """Shared libraries that the system's loader knows, by name; empty without `ldconfig`."""
    try:
        command = ["/sbin/ldconfig", "-p"]
        listing = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = [line.split() for line in listing.stdout.splitlines() if "=>" in line]
    return {words[0]: words[-1] for words in lines}


def trim_memory() -> None:
    """Gives memory that is free in this process back to the system, where its C library can."""
    with suppress(AttributeError, OSError):  # glibc's own
        ctypes.CDLL(None).malloc_trim(0)


def choose_visible(uuids: Sequence[str], visible: str) -> list[int | str]:
    """What CUDA_VISIBLE_DEVICES names, in its order: a card's index, or a MIG slice's UUID.

    As CUDA does, it ends at the first that is none.

    Args:
        uuids: Of all cards, in NVML's order.
        visible: The variable's value.
    """
    chosen: list[int | str] = []
    for token in (part.strip() for part in visible.split(",")):
        if token.startswith("MIG-"):
            chosen.append(token)
            continue
        found = [
            index
            for index, uuid in enumerate(uuids)
            if token == str(index) or (token.startswith("GPU-") and uuid.startswith(token))
        ]
        if len(found) != 1:
            break
        chosen += found
    return chosen
