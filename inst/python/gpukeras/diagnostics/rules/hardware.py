"""Causes in the card: missing, lost, switched off, too weak or slowed (A1, A10 to A14)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpukeras.diagnostics.probes.codes import CU_RESULTS, NVML_RETURNS
from gpukeras.diagnostics.rules.rule import UNLISTED, Cause
from gpukeras.system.facts import CudaGpu, Facts, NvmlGpu, count_fresh, is_linux, is_wsl

STUB_LIBRARY, NO_DEVICE = 34, 100  # CUresult; a library that calls no driver returns the first
GPU_IS_LOST = 15  # nvmlReturn_t

# Bits of nvmlClocksEventReasons in nvml.h, without idle, application clocks and sync boost, which
# are not faults.
SLOWED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown (heat)",
    0x40: "hardware thermal slowdown (heat)",
    0x80: "power brake (a signal of the power supply)",
}
POWER_CAP = 0x04
LOADED_PERCENT = 50  # busy enough to have left its idle state
# Many notebooks and boards with two slots connect half of the lanes.
NARROW = 4
TOO_FEW = re.compile(r"\(device: (\d+), name: ([^,]+),.*?with core count: (\d+)")


# Driver results, for this and later families ------------------------------------------------------


def driver_works(facts: Facts) -> bool:
    """Whether libcuda is known to initialize and to show a GPU."""
    return facts.cuda.init == 0 and (facts.cuda.count or 0) > 0


def shows_none(facts: Facts) -> bool:
    """Whether libcuda is known to show no GPU, from cuInit or cuDeviceGetCount."""
    code = facts.cuda.init
    counted = facts.cuda.count == 0 or find_count_error(facts) == NO_DEVICE
    return code == NO_DEVICE or (code == 0 and counted)


def find_count_error(facts: Facts) -> int | None:
    """Returns the error of cuDeviceGetCount, or None."""
    code = facts.cuda.count_status
    return code if code and facts.cuda.init == 0 else None


def describe_cuinit(facts: Facts) -> str:
    """Describes the result of cuInit, or of cuDeviceGetCount if only that failed."""
    failed = find_count_error(facts)
    code = facts.cuda.init if failed is None else failed
    name = CU_RESULTS.get(code) if code is not None else None
    asked = "cuInit" if failed is None else "cuDeviceGetCount"
    return f"{asked} returns {code}" + (f" ({name})" if name else "")


def describe_nvml(code: int) -> str:
    """Describes a return code of NVML."""
    name = NVML_RETURNS.get(code)
    return f"NVML returns {code}" + (f" ({name})" if name else "")


def list_nvml_gpus(facts: Facts) -> Sequence[NvmlGpu]:
    """Returns NVML's records of the GPUs that CUDA shows, or of all GPUs if these are unknown."""
    shown = [gpu.uuid for gpu in facts.cuda.devices]
    chosen = [gpu for gpu in facts.nvml.devices if gpu.uuid and gpu.uuid in shown]
    return chosen or facts.nvml.devices


def find_tested_gpu(facts: Facts) -> tuple[CudaGpu | None, NvmlGpu | None]:
    """Returns CUDA's and NVML's records of the GPU to test, which is TensorFlow's first."""
    digits = re.search(r"\d+$", facts.proof.device or "")
    number = int(digits.group()) if digits else 0
    cuda = next(iter(facts.cuda.devices[number:]), None)
    records = facts.nvml.devices
    same = [gpu for gpu in records if cuda and gpu.uuid and gpu.uuid == cuda.uuid]
    only = records[0] if len(records) == 1 else None
    return cuda, next(iter(same), only)


def name_gpu(gpu: NvmlGpu) -> str:
    """Returns a GPU's product name."""
    return gpu.name or "the GPU"


# Causes ------------------------------------------------------------------------------------------


def detect_no_gpu(facts: Facts) -> str | None:
    """Detects A1: no GPU on the bus and no other sign of one, as WSL and Jetson have."""
    absent = facts.hardware.nvidia_gpus == ()
    driver = facts.driver
    signs = (driver.version, driver.device_nodes, driver.dxg, driver.tegra)
    if not absent or any(signs) or is_wsl(facts) or not is_linux(facts):
        return None
    silent = facts.cuda.init in (None, STUB_LIBRARY) or shows_none(facts)
    if not silent or facts.nvml.count:
        return None  # some clouds show a GPU to its driver but not on the bus
    if detect_prime(facts) or detect_lost_gpu(facts):
        return None
    return "the PCI bus lists no display device of NVIDIA (vendor 0x10de, class 0x03)"


def detect_prime(facts: Facts) -> str | None:
    """Detects A11: a notebook whose NVIDIA card prime-select switched off."""
    off = facts.driver.prime == "intel"
    works = driver_works(facts) or facts.nvml.count
    if not off or facts.driver.version != "" or works or detect_lost_gpu(facts):
        return None
    seen = facts.hardware.nvidia_gpus
    if not seen and facts.cuda.loaded is not True:
        return None
    # With this profile Ubuntu also removes the card from the bus; NVIDIA's libraries then show it.
    found = f"{len(seen)} NVIDIA GPU on the PCI bus" if seen else "libcuda.so.1 is installed"
    return f"{found}, no driver is loaded, and the PRIME profile is intel (/etc/prime-discrete)"


def detect_lost_gpu(facts: Facts) -> str | None:
    """Detects A10: the GPU fell off the bus while the computer ran."""
    records = facts.nvml.devices
    lost = [str(i) for i, gpu in enumerate(records) if gpu.status == GPU_IS_LOST]
    if GPU_IS_LOST in (facts.nvml.init, facts.nvml.count_status):
        return describe_nvml(GPU_IS_LOST)
    # If other GPUs remain, the lost one does not explain that TensorFlow lists none.
    explains = len(lost) == len(records) or facts.runtime.physical_gpus
    if not lost or not explains:
        return None
    return f"{describe_nvml(GPU_IS_LOST)} for GPU {', '.join(lost)} of {len(records)}"


def detect_ignored_gpu(facts: Facts) -> str | None:
    """Detects A14: TensorFlow ignores a GPU with under 8 multiprocessors next to a better one."""
    ignored = _list_ignored(facts)
    count = facts.cuda.count
    listed = facts.runtime.physical_gpus or count_fresh(facts)
    if not ignored or (not listed and (count is None or len(ignored) < count)):
        return None
    texts = [f"{name} (GPU {i}, {cores} multiprocessors)" for i, name, cores in ignored]
    return f"TensorFlow ignores {', '.join(texts)}"


def _list_ignored(facts: Facts) -> list[tuple[str, str, str]]:
    logs = (facts.listing("as it is").log, facts.listing("preloaded").log, facts.proof.log)
    lines = [line for log in logs for line in log.ignored]
    found = [match.groups() for line in lines if (match := TOO_FEW.search(line))]
    return sorted({(index, name, cores) for index, name, cores in found})


def detect_throttling(facts: Facts) -> str | None:
    """Detects A12: temperature or power supply slows the card."""
    texts = []
    for gpu in list_nvml_gpus(facts):
        bits = gpu.throttle or 0
        reasons = [reason for bit, reason in SLOWED.items() if bits & bit]
        reasons += ["power cap"] if reasons and bits & POWER_CAP else []
        if reasons:
            texts.append(f"{name_gpu(gpu)}: {', '.join(reasons)} (bits {bits:#x})")
    return "; ".join(texts) or None


def detect_power_cap(facts: Facts) -> str | None:
    """Detects A12p: the card runs at its power limit at low load."""
    if detect_throttling(facts):
        return None
    for gpu in list_nvml_gpus(facts):
        bits, load = gpu.throttle, gpu.utilization
        if bits is not None and bits & POWER_CAP and load is not None and load < LOADED_PERCENT:
            return f"{name_gpu(gpu)}: power cap (bits {bits:#x}) at {load:.0f} % utilization"
    return None


def detect_narrow_link(facts: Facts) -> str | None:
    """Detects A13: the card uses few of its PCI Express lanes, or a slow link under load."""
    return next((text for gpu in list_nvml_gpus(facts) if (text := _describe_link(gpu))), None)


def _describe_link(gpu: NvmlGpu) -> str:
    width, widest = gpu.link_width, gpu.link_width_max
    if width and widest and width * NARROW <= widest:
        return f"{width} of {widest} PCI Express lanes"
    # An idle card lowers its link generation to save power, so it counts only under load.
    now, most = gpu.link_generation, gpu.link_generation_max
    load = gpu.utilization or 0
    if not now or not most or now >= most or load < LOADED_PERCENT:
        return ""
    return f"PCI Express generation {now} of {most} at {load:.0f} % utilization"


CAUSES = (
    # pci.ids: vendor 10de, class 03
    Cause(
        "A1",
        "hardware",
        "This computer has no NVIDIA GPU.",
        detect_no_gpu,
        "Train on the CPU, or on a computer with an NVIDIA GPU.",
    ),
    # Ubuntu, prime-select(8), package nvidia-prime
    Cause(
        "A11",
        "hardware",
        "The NVIDIA card of this notebook is switched off.",
        detect_prime,
        "sudo prime-select on-demand, then reboot.",
    ),
    # NVIDIA, NVML API Reference, NVML_ERROR_GPU_IS_LOST; NVIDIA, XID Errors, Xid 79
    Cause(
        "A10",
        "hardware",
        "The GPU is lost: the driver cannot reach it any more.",
        detect_lost_gpu,
        "Reboot. If it comes back: sudo dmesg | grep -i xid shows why; look at power supply, heat "
        "and seat of the card.",
        explains=(*UNLISTED, "failed"),
        is_fault=True,
    ),
    # tensorflow, gpu_device.cc, GetMinGPUMultiprocessorCount()
    Cause(
        "A14",
        "hardware",
        "TensorFlow ignores a GPU because it is much weaker than another.",
        detect_ignored_gpu,
        "To use it all the same, restart R, then before Python starts: "
        'Sys.setenv(TF_MIN_GPU_MULTIPROCESSOR_COUNT = "1"). To use the other one only: '
        'Sys.setenv(CUDA_DEVICE_ORDER = "PCI_BUS_ID", CUDA_VISIBLE_DEVICES = "0"), numbered as in '
        "nvidia-smi -L.",
        backend="tensorflow",
    ),
    # NVIDIA, NVML API Reference, nvmlClocksEventReasons
    Cause(
        "A12",
        "use",
        "The driver slows the GPU down.",
        detect_throttling,
        "Heat: clean fans and filters, let air in. Power brake: check the power supply and its "
        "cables. nvidia-smi -q -d PERFORMANCE shows the reasons while it computes.",
    ),
    # NVIDIA, NVML API Reference, nvmlClocksEventReasonSwPowerCap
    Cause(
        "A12p",
        "information",
        "The GPU is held at its power limit.",
        detect_power_cap,
        "Plug the notebook in, choose the performance profile; nvidia-smi -q -d POWER shows the "
        "limit.",
    ),
    # NVIDIA, NVML API Reference, nvmlDeviceGetMaxPcieLinkWidth()
    Cause(
        "A13",
        "use",
        "The GPU has a narrow connection to the computer.",
        detect_narrow_link,
        "Seat the card anew, in the slot with most lanes, without a riser; look for the slot's "
        "width in the BIOS.",
    ),
)
