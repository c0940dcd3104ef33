"""Reads facts about the computer from files and NVML, without TensorFlow or starting a GPU.

Every reader follows one convention: None means "not determined", an empty string or list means
"looked for and not found". No reader raises on an unusual machine.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from gpukeras.system.environment import c_library

CONTAINER_MARKERS = (".dockerenv", "run/.containerenv", ".singularity.d")
CONTAINER_GROUPS = ("docker", "kubepods", "containerd", "libpod", "lxc")
UNLIMITED = 2**62  # bytes: for no limit, groups of version 1 have 2**63 less a page


def read_text(path: str | Path) -> str | None:
    """Reads a small text file without surrounding white space; None if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace").strip("\0\n\t ")
    except OSError:
        return None


def lacks_avx(root: str | Path = "/") -> bool:
    """Whether this is a processor of Intel's kind without AVX, which TensorFlow and JAX need."""
    flags = read_text(Path(root) / "proc/cpuinfo") or ""
    return re.search(r"^flags\s*:(?!.* avx\b)", flags, re.MULTILINE) is not None


# Containers, jobs, NVML --------------------------------------------------------------------------


def read_container(
    root: str | Path = "/", environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Returns the container marker ("" if none), and the container's NVIDIA variables."""
    root = Path(root)
    markers = [f"/{name}" for name in CONTAINER_MARKERS if (root / name).exists()]
    groups = read_text(root / "proc/1/cgroup") or ""
    markers += [f"control group {name}" for name in CONTAINER_GROUPS if name in groups]
    markers += [name for name in ("KUBERNETES_SERVICE_HOST",) if name in environment]
    return {
        "marker": markers[0] if markers else "",
        "nvidia_visible_devices": environment.get("NVIDIA_VISIBLE_DEVICES", ""),
        "nvidia_driver_capabilities": environment.get("NVIDIA_DRIVER_CAPABILITIES", ""),
    }


def read_slurm(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the Slurm job's id ("" if none) and its allocated GPUs."""
    gpus = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")
    named = [environment[name] for name in gpus if environment.get(name)]
    return {"job_id": environment.get("SLURM_JOB_ID", ""), "gpus": named[0] if named else ""}


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU as listed, in PCI order, by NVML, the driver's monitoring library."""

    name: str
    uuid: str
    total_bytes: float
    free_bytes: float
    processes: tuple[tuple[int, float | None], ...] = ()  # that compute on it, with their bytes


def read_nvml() -> list[NvmlGpu] | None:
    """Returns the GPUs that NVML lists; None without the package, the driver or permission.

    Under Slurm NVML counts cards of other jobs too, and refuses them: they are left out.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handles, gpus = list_handles(pynvml), list[NvmlGpu]()
        for handle in handles:
            with suppress(pynvml.NVMLError):
                gpus.append(_read_nvml_gpu(pynvml, handle))
        return gpus if gpus or not handles else None
    except pynvml.NVMLError:
        return None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def list_handles(pynvml: Any) -> list[Any]:
    """Returns the handles of the cards that this process may ask; NVML is initialized.

    Raises:
        NVMLError: if it refuses all of them.
    """
    handles = []
    errors = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handles.append(pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError as error:
            errors.append(error)
    if errors and not handles:
        raise errors[0]
    return handles


def as_text(text: Any) -> str:
    """Returns a text of NVML, which older packages give as bytes, or None where it fails."""
    return text.decode(errors="replace") if isinstance(text, bytes) else text or ""


def _read_nvml_gpu(pynvml: Any, handle: Any) -> NvmlGpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = as_text(pynvml.nvmlDeviceGetName(handle))
    uuid = as_text(pynvml.nvmlDeviceGetUUID(handle))
    processes: list[Any] = []
    with suppress(pynvml.NVMLError):
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    used = [
        None if process.usedGpuMemory is None else float(process.usedGpuMemory)
        for process in processes
    ]
    pids = tuple(zip((process.pid for process in processes), used, strict=True))
    return NvmlGpu(name, uuid, float(memory.total), float(memory.free), pids)


def read_cuda_order(names: Sequence[str]) -> list[str] | None:
    """Returns the UUIDs of the cards that CUDA shows this process, in CUDA's order.

    CUDA counts cards of different kinds from the fastest on, by a rule that it does not tell; so
    this starts the driver in this process, as a listing of GPUs does, but uses no card. None if all
    cards are of one kind, which CUDA counts as NVML does, or if it cannot be told. The UUID of a
    slice of a card is no card's.

    Args:
        names: The names of all cards.
    """
    if len(set(names)) < 2:
        return None
    count = ctypes.c_int()
    card = ctypes.c_int()
    uuid = (ctypes.c_ubyte * 16)()
    uuids = []
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return None
        for ordinal in range(count.value):
            found = cuda.cuDeviceGet(ctypes.byref(card), ordinal) == 0
            if not found or cuda.cuDeviceGetUuid_v2(ctypes.byref(uuid), card):
                return None
            uuids.append(f"GPU-{UUID(bytes=bytes(uuid))}")
    except (OSError, AttributeError):  # there is no driver, or one older than 11.4
        return None
    return uuids


def match_nvml(
    labels: Sequence[str],
    gpus: Sequence[NvmlGpu],
    visible: str | None,
    order: Sequence[str] | None = None,
) -> list[NvmlGpu | None]:
    """Returns the NVML record of each TensorFlow GPU, None where the match is ambiguous.

    NVML lists GPUs in PCI order and ignores CUDA_VISIBLE_DEVICES; CUDA lists the fastest first, and
    TensorFlow leaves weak ones out. GPUs are matched by position only if all names agree, otherwise
    by a name that is unique.

    Args:
        labels: Product names of TensorFlow's GPUs, in TensorFlow's order.
        gpus: The GPUs that NVML lists.
        visible: CUDA_VISIBLE_DEVICES, or None if unset.
        order: What `read_cuda_order()` returned, which leaves `visible` no say.
    """
    chosen = list(gpus)
    if order is not None:
        known = {gpu.uuid: gpu for gpu in gpus}
        chosen = [known[uuid] for uuid in order if uuid in known and known[uuid].name in labels]
    elif visible is not None:
        named = choose_visible([gpu.uuid for gpu in gpus], visible)
        chosen = [gpus[index] for index in named if isinstance(index, int)]
    if [gpu.name for gpu in chosen] == list(labels):
        return list(chosen)
    namesakes = [[gpu for gpu in gpus if gpu.name == label] for label in labels]
    return [cards[0] if len(cards) == 1 else None for cards in namesakes]


# Processor and memory ----------------------------------------------------------------------------

MAX_WORKERS = 8


def count_workers() -> int:
    """Returns the number of reader threads: one per core that this process may use, at most 8."""
    return min(MAX_WORKERS, count_cores())


def count_cores(root: str | Path = "/") -> int:
    """Returns how many cores this process may use.

    Those it is bound to; fewer by OMP_THREAD_LIMIT, or by the share of time that its control groups
    have, as Docker's `--cpus` and Kubernetes' limits set it.
    """
    bound = getattr(os, "sched_getaffinity", None)  # Linux
    limits = [float(len(bound(0)) if bound else os.cpu_count() or 1)]
    asked = os.environ.get("OMP_THREAD_LIMIT", "")
    limits += [float(asked)] if asked.isdecimal() else []
    quotas = map(_read_quota, _find_groups(root, "cpu"))
    limits += [quota for quota in quotas if quota is not None]
    return max(1, round(min(limits)))


def _read_quota(group: Path) -> float | None:
    """Returns the cores' worth of time that a control group may take, or None without a limit."""
    words = (read_text(group / "cpu.max") or "").split()
    if not words:  # version 1, where -1 is no limit
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [read_text(group / name) or "" for name in files]
    if len(words) != 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def read_cpu_label() -> str:
    """Returns the CPU's model name."""
    for line in (read_text("/proc/cpuinfo") or "").splitlines():
        if line.lower().startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def read_total_memory() -> float | None:
    """Returns the computer's memory in bytes."""
    psutil = _psutil()
    return None if psutil is None else float(psutil.virtual_memory().total)


def read_free_memory() -> float | None:
    """Returns the free bytes of the computer or of this process's control group, if fewer."""
    psutil, group = _psutil(), read_group_memory()
    free = [] if psutil is None else [float(psutil.virtual_memory().available)]
    free += [] if group is None else [group]
    return min(free, default=None)


def read_group_memory(root: str | Path = "/") -> float | None:
    """Returns the free bytes of this process's control group (container or Slurm limit), or None.

    The limits of the groups around it hold too: Slurm sets them for a job and its steps, and none
    for a task. File cache counts as free, because the kernel reclaims it before it refuses an
    allocation. Version 1 of control groups, as of RHEL 8, has a folder of its own for memory.
    """
    left = map(_read_left, _find_groups(root, "memory"))
    return min((each for each in left if each is not None), default=None)


def _find_groups(root: str | Path, controller: str) -> Iterator[Path]:
    """Yields the folders of this process's control groups, and of those around them."""
    for line in (read_text(Path(root, "proc/self/cgroup")) or "").splitlines():
        _, _, place = line.partition(":")
        controllers, told, own = place.partition(":")
        if not told or (controllers and controller not in controllers.split(",")):
            continue
        top = Path(root, "sys/fs/cgroup", controller if controllers else "")
        group = top / own.lstrip("/")
        yield group
        yield from (each for each in group.parents if each.is_relative_to(top))


def _read_left(group: Path) -> float | None:
    """Returns the bytes that a control group's limit leaves, or None without a limit."""
    limit = read_text(group / "memory.max") or read_text(group / "memory.limit_in_bytes") or "max"
    lines = [line.split() for line in (read_text(group / "memory.stat") or "").splitlines()]
    counts = {words[0]: words[1] for words in lines if len(words) == 2}
    # With the groups below it: version 2 counts them in each, version 1 in the totals.
    used = counts.get("total_rss", counts.get("anon"))
    if not limit.isdigit() or int(limit) > UNLIMITED or used is None:
        return None
    return max(0.0, float(limit) - float(used))


def read_process_memory() -> tuple[float | None, float | None]:
    """Returns this process's current and peak resident memory in bytes."""
    psutil = _psutil()
    now = None if psutil is None else float(psutil.Process().memory_info().rss)
    try:
        import resource
    except ImportError:  # Windows
        return now, None
    unit = 1 if platform.system() == "Darwin" else 1024
    peak = float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
    return now, max(peak, now or 0.0)


def _psutil() -> Any:
    """Returns psutil, which gpukeras needs; None where a check finds that it is missing."""
    try:
        import psutil
    except ImportError:
        return None
    return psutil


# The loader --------------------------------------------------------------------------------------


def read_start_environment() -> dict[str, str]:
    """Returns the environment at the start of this process on Linux; elsewhere an empty dict."""
    entries = (read_text("/proc/self/environ") or "").split("\0")
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def read_library_cache() -> dict[str, str]:
    """Returns the paths of the loader's cached libraries by name; empty without `ldconfig`."""
    try:
        command = ["/sbin/ldconfig", "-p"]
        listing = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = [line.split() for line in listing.stdout.splitlines() if "=>" in line]
    return {words[0]: words[-1] for words in lines}


def trim_memory() -> None:
    """Returns this process's unused heap memory to the system, if the C library supports it."""
    with suppress(AttributeError, OSError):  # only glibc has malloc_trim
        c_library().malloc_trim(0)


def choose_visible(uuids: Sequence[str], visible: str) -> list[int | str]:
    """Resolves CUDA_VISIBLE_DEVICES to card indices and UUIDs of MIG slices, in its order.

    Like CUDA, it stops at the first invalid entry.

    Args:
        uuids: UUIDs of all cards, in NVML's order.
        visible: The variable's value.
    """
    chosen: list[int | str] = []
    for token in (part.strip() for part in visible.split(",")):
        if token.startswith("MIG-"):
            chosen.append(token)
            continue
        matching = [
            index
            for index, uuid in enumerate(uuids)
            if token == str(index) or (token.startswith("GPU-") and uuid.startswith(token))
        ]
        if len(matching) != 1:
            break
        chosen += matching
    return chosen
