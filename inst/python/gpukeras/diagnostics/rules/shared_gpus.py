"""Causes in shared cards: containers, WSL, clusters, MIG, other processes (B1 to B11)."""

from __future__ import annotations

from dataclasses import replace

from gpukeras.diagnostics.rules import driver
from gpukeras.diagnostics.rules.driver import (
    NVML_UNKNOWN,
    WSL_LIBRARIES,
    find_foreign_library,
    is_cut_off,
    names_cause,
)
from gpukeras.diagnostics.rules.hardware import (
    describe_cuinit,
    describe_nvml,
    driver_works,
    find_tested_gpu,
    name_gpu,
    shows_none,
)
from gpukeras.diagnostics.rules.rule import Cause
from gpukeras.system.facts import Facts, GpuProcess, NvmlGpu, find_logs, is_wsl

MPS = (805, 806, 807)  # CUresult: no MPS daemon, it does not answer, it is not ready
PROHIBITED = 2
MODES = {1: "exclusive thread", PROHIBITED: "prohibited", 3: "exclusive process"}
REASONS = (  # log flags of reasons other than a card in use
    "cudnn",
    "ptx",
    "libdevice",
    "ptxas",
    "insufficient_driver",
    "out_of_memory",
    "not_initialized",
)
MIB = 2**20
# A GPU counts as occupied if less than this is free. 2 GiB: below it TensorFlow treats a GPU as
# small and reserves less for the driver (MinSystemMemory() in gpu_device.cc). The share is this
# package's choice, so that a small card counts only if it is nearly full.
LOW_BYTES = 2 * 2**30
LOW_SHARE = 0.1


def has_driver_fault(facts: Facts) -> bool:
    """Whether the driver itself is at fault, independent of sharing."""
    return any(cause.find(facts) for cause in driver.CAUSES if cause.stage == "driver")


# No access to the card ---------------------------------------------------------------------------


def detect_slurm(facts: Facts) -> str | None:
    """Detects B6: a Slurm job without an allocated GPU."""
    job = facts.slurm.job_id
    if not job or facts.slurm.gpus != "":
        return None
    reading = facts.readings("CUDA_VISIBLE_DEVICES").get("c")
    without = facts.driver.device_nodes == ()
    if not without and reading not in ("", "NoDevFiles"):
        return None
    return f"Slurm job {job} has no SLURM_JOB_GPUS, SLURM_STEP_GPUS or SLURM_GPUS_ON_NODE"


def detect_wsl(facts: Facts) -> str | None:
    """Detects B4: WSL without the components through which Windows shares its GPU."""
    if not is_wsl(facts) or driver_works(facts) or detect_container(facts):
        return None
    missing = ["/dev/dxg"] if facts.driver.dxg is False else []
    missing += [f"{WSL_LIBRARIES}lib/libcuda.so.1"] if facts.driver.wsl_libcuda is False else []
    foreign = find_foreign_library(facts)
    if missing and (foreign or not names_cause(facts)):
        return f"this is WSL, and {' and '.join(missing)} is missing"
    if not foreign or detect_mps(facts):
        return None
    return f"this is WSL, {describe_cuinit(facts)}, and libcuda is {foreign}, not Windows' own"


def detect_container(facts: Facts) -> str | None:
    """Detects B1: a container without a mounted GPU."""
    marker = facts.container.marker
    if not marker or driver_works(facts) or has_driver_fault(facts) or detect_mps(facts):
        return None
    if is_wsl(facts):
        node, missing = "/dev/dxg", facts.driver.dxg is False
    else:
        host_has_none = facts.hardware.nvidia_gpus == ()
        no_nodes = facts.driver.device_nodes == ()
        node, missing = "/dev/nvidia*", no_nodes and not host_has_none
    if not missing:
        return None
    promised = facts.container.nvidia_visible_devices or "unset"
    return f"{marker} marks a container, {node} is missing, NVIDIA_VISIBLE_DEVICES is {promised}"


# Restricted access to the card --------------------------------------------------------------------


def detect_no_nvml(facts: Facts) -> str | None:
    """Detects B2: libcuda works but NVML, which TensorFlow needs to register a GPU, does not."""
    if not driver_works(facts) or facts.driver.tegra is True:
        return None
    if has_driver_fault(facts) or detect_cut_off(facts):
        return None
    code = facts.nvml.init
    if facts.nvml.loaded is False:
        reason = facts.nvml.error or "libnvidia-ml.so.1 does not load"
    elif code:
        reason = describe_nvml(code)
    else:
        return None
    promised = facts.container.nvidia_driver_capabilities
    given = f"; NVIDIA_DRIVER_CAPABILITIES is {promised}" if promised else ""
    return f"libcuda shows {facts.cuda.count} GPU, but {reason}{given}"


def _is_explained(facts: Facts) -> bool:
    """Whether there is no access to the card at all, or the driver is at fault."""
    lent = (detect_wsl, detect_container, detect_mps)
    return has_driver_fault(facts) or any(detect(facts) for detect in lent)


def detect_cut_off(facts: Facts) -> str | None:
    """Detects B3: a container that lost access to its GPU while it ran."""
    if not is_cut_off(facts) or _is_explained(facts):
        return None
    code = facts.nvml.init or NVML_UNKNOWN
    marker = facts.container.marker
    denied = driver.list_denied(facts)
    nodes = f"; {', '.join(denied)} may not be opened" if denied else ""
    return f"{describe_nvml(code)} in a container ({marker}) that has the device nodes{nodes}"


def detect_no_mig_device(facts: Facts) -> str | None:
    """Detects B7: a GPU in MIG mode without MIG slices."""
    if driver_works(facts) or _is_explained(facts) or detect_cut_off(facts):
        return None
    gpus = facts.nvml.devices
    empty = [g for g in gpus if g.mig is True and g.mig_devices == 0]
    if not empty or len(empty) < len(gpus):  # another GPU is usable
        return None
    return f"MIG is on for {len(empty)} GPU ({name_gpu(empty[0])}), with 0 instances"


def detect_none_shown(facts: Facts) -> str | None:
    """Detects B11: a card exists, but the driver shows this process none."""
    seen = _describe_cards(facts)
    if not shows_none(facts) or not seen or _is_limited(facts):
        return None
    earlier = [cause for cause in CAUSES if cause.stage == "driver" and cause.id != "B11"]
    if has_driver_fault(facts) or any(cause.find(facts) for cause in earlier):
        return None
    counted = facts.cuda.count == 0
    answer = "cuDeviceGetCount counts 0" if counted else describe_cuinit(facts)
    return f"{answer}, though {seen}"


def _describe_cards(facts: Facts) -> str:
    bus, count = facts.hardware.nvidia_gpus, facts.nvml.count
    texts = [f"NVML counts {count}"] if count else []
    texts += [f"the PCI bus has {len(bus)} NVIDIA GPU"] if bus else []
    nodes = () if texts else facts.driver.device_nodes or ()
    return " and ".join([*texts, *(f"{node} exists" for node in nodes)])


def _is_limited(facts: Facts) -> bool:
    """Whether CUDA_VISIBLE_DEVICES is set and may alone hide all GPUs."""
    if shows_none(replace(facts, cuda=facts.cuda_shown)):  # also none without the variable
        return False
    readings = facts.readings("CUDA_VISIBLE_DEVICES")
    return any(value is not None for value in readings.values())


def detect_mps(facts: Facts) -> str | None:
    """Detects B9: CUDA uses the card through a daemon (MPS) that does not answer."""
    if facts.cuda.init not in MPS:
        return None
    pipe = facts.readings("CUDA_MPS_PIPE_DIRECTORY").get("c")
    return f"{describe_cuinit(facts)}; CUDA_MPS_PIPE_DIRECTORY is {pipe or 'unset'}"


def detect_no_processes(facts: Facts) -> str | None:
    """Detects B5: NVML in WSL does not report the memory of each process."""
    gpus = facts.nvml.devices
    if not is_wsl(facts) or not gpus:
        return None
    held = [process.bytes for gpu in gpus for process in gpu.processes or ()]
    listed = all(gpu.processes is not None for gpu in gpus)
    if listed and (not held or any(size is not None for size in held)):
        return None
    return "this is WSL, and NVML gives no memory by process"


# Use by other processes ---------------------------------------------------------------------------


def list_others(facts: Facts, gpu: NvmlGpu | None) -> list[GpuProcess] | None:
    """Returns other processes that compute on a GPU, largest first; None if not determined."""
    if gpu is None or gpu.processes is None:
        return None
    known = gpu.processes
    mine = [process for process in known if process.pid == facts.python.pid]
    # Process ids differ in a container, so a session that computes may not find itself.
    if facts.runtime.started is True and not mine:
        return None
    others = [process for process in known if process not in mine]
    return sorted(others, key=lambda process: -(process.bytes or 0))


def describe_process(process: GpuProcess) -> str:
    """Describes a process by its id, program and memory."""
    number, program = process.pid, process.program
    held = process.bytes
    memory = "" if held is None else f", {held / MIB:.0f} MiB"
    shown = f"process {number}" if number else "a process"
    return f"{shown} ({program or 'its name is not shown'}{memory})"


def detect_compute_mode(facts: Facts) -> str | None:
    """Detects B8: the card's compute mode admits no process, or only one."""
    cuda, nvml = find_tested_gpu(facts)
    modes = [gpu.compute_mode for gpu in (cuda, nvml) if gpu and gpu.compute_mode is not None]
    mode = next(iter(modes), None)
    older = driver.detect_old_driver(facts) or driver.detect_no_jit(facts)
    if mode is None or mode not in MODES or older or not driver_works(facts):
        return None
    text = f"compute mode {mode} ({MODES[mode]})"
    reason = "no process is admitted" if mode == PROHIBITED else _find_refusal(facts, nvml)
    return f"{text}; {reason}" if reason else None


def _find_refusal(facts: Facts, gpu: NvmlGpu | None) -> str:
    """Returns why a card for one process refuses this one, or "" (it may be that process)."""
    others, logs = list_others(facts, gpu), find_logs(facts)
    if others:
        return f"{describe_process(others[0])} has it"
    if any(log.busy is True for log in logs):
        return "CUDA says that the device is busy or unavailable"
    told = any(getattr(log, sign) for log in logs for sign in REASONS)
    passed = any(stage.ok is True for stage in facts.proof.stages)
    if facts.proof.ok is not False or told or passed:
        return ""
    return "the test computation was refused"


def detect_memory_taken(facts: Facts) -> str | None:
    """Detects B10: other processes occupy the card's memory."""
    gpu = find_tested_gpu(facts)[1]
    if gpu is None:
        return None
    free, total = gpu.free_bytes, gpu.total_bytes
    earlier = (driver.detect_old_driver, driver.detect_no_jit, detect_compute_mode)
    if not free or not total or any(detect(facts) for detect in earlier):
        return None
    others = list_others(facts, gpu)
    refused = any(log.out_of_memory is True for log in find_logs(facts))
    low = free < min(LOW_SHARE * total, LOW_BYTES) or (refused and free < total / 2)
    mine = facts.runtime.started is True
    if not low or (not others and (mine or others == [] or not refused)):
        return None
    holder = f"most is held by {describe_process(others[0])}" if others else "NVML names no holder"
    return f"{free / MIB:.0f} of {total / MIB:.0f} MiB are free; {holder}"


CAUSES = (
    # slurm.schedmd.com/gres.html
    Cause(
        "B6",
        "allocation",
        "This Slurm job was given no GPU.",
        detect_slurm,
        "Ask for one: srun --gres=gpu:1 --pty R",
    ),
    # NVIDIA, CUDA on WSL User Guide; NVIDIA/cuda-python #17
    Cause(
        "B4",
        "driver",
        "WSL does not show the GPU of Windows.",
        detect_wsl,
        "Update the NVIDIA driver in Windows, then in Windows: wsl --update && wsl --shutdown. "
        "Inside WSL install no driver (sudo apt purge 'nvidia-driver-*' 'libnvidia-compute-*').",
    ),
    # NVIDIA Container Toolkit documentation
    Cause(
        "B1",
        "driver",
        "This container was given no GPU.",
        detect_container,
        "Start it with one: docker run --gpus all ... (podman: --device nvidia.com/gpu=all; "
        "Kubernetes: the resource nvidia.com/gpu: 1)",
    ),
    # NVIDIA, Multi-Process Service; CUDA Driver API, CUDA_ERROR_MPS_CONNECTION_FAILED
    Cause(
        "B9",
        "driver",
        "The GPU is to be shared through MPS, whose daemon does not answer.",
        detect_mps,
        "Start it (nvidia-cuda-mps-control -d), or go without: restart R, then before Python "
        'starts: Sys.unsetenv("CUDA_MPS_PIPE_DIRECTORY").',
    ),
    # NVIDIA/nvidia-container-toolkit #48, #1227
    Cause(
        "B3",
        "driver",
        "This container lost its GPU (often by systemctl daemon-reload on the host).",
        detect_cut_off,
        "Restart the container. Against its coming back, on the host: sudo nvidia-ctk system "
        "create-dev-char-symlinks --create-all, or start containers with --device "
        "nvidia.com/gpu=all (CDI).",
    ),
    # NVIDIA, Multi-Instance GPU User Guide; pytorch #130181
    Cause(
        "B7",
        "driver",
        "The GPU is in MIG mode and has no instance.",
        detect_no_mig_device,
        "An administrator: sudo nvidia-smi mig -cgi 0 -C makes one of the whole card, or sudo "
        "nvidia-smi -mig 0 turns MIG off.",
    ),
    # TensorFlow 2.21.0 over a driver without NVML; NVIDIA Container Toolkit documentation
    Cause(
        "B2",
        "driver",
        "NVML (libnvidia-ml.so.1), without which TensorFlow registers no GPU, does not work.",
        detect_no_nvml,
        "In a container: start it with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility. Elsewhere: "
        "reinstall the NVIDIA driver whole, and reboot; nvidia-smi must work.",
        explains=("unlisted",),
        backend="tensorflow",
    ),
    # CUDA Driver API: cuInit, cuDeviceGetCount
    Cause(
        "B11",
        "driver",
        "The driver shows this process no GPU.",
        detect_none_shown,
        "nvidia-smi -L must list it for this user. In a container or a cluster's job: ask for the "
        "GPU (docker run --gpus all, srun --gres=gpu:1), because its device is withheld. "
        "Elsewhere: reboot, and look for Xid errors in dmesg.",
    ),
    # CUDA Driver API, CUcomputemode; tensorflow #526, #45450
    Cause(
        "B8",
        "first use",
        "The GPU is set to admit no other process.",
        detect_compute_mode,
        "sudo nvidia-smi -c 0 admits all; or end the process that has it (nvidia-smi lists it). On "
        "a cluster: ask the administrator.",
    ),
    # NVIDIA, NVML API Reference, nvmlDeviceGetComputeRunningProcesses(); tensorflow, gpu_device.cc,
    # MinSystemMemory()
    Cause(
        "B10",
        "first use",
        "The GPU's memory is taken by another process.",
        detect_memory_taken,
        "Close that program (often an R or Python session of one's own that was left open); "
        "nvidia-smi shows who it is. Then gpu_check() again.",
    ),
    # NVIDIA, CUDA on WSL User Guide, known limitations
    Cause(
        "B5",
        "information",
        "In WSL it cannot be seen which process holds the GPU's memory.",
        detect_no_processes,
        "Look in Windows' Task Manager, tab Details, column GPU.",
    ),
)
