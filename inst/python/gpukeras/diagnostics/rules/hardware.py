"""Causes in the card: missing, lost, switched off, too weak or slowed (A1, A10 to A14)."""

from __future__ import annotations

import re
from typing import Any

from gpukeras.diagnostics.probes.codes import CU_RESULTS, NVML_RETURNS
from gpukeras.diagnostics.rules.rule import UNLISTED, Cause
from gpukeras.system.facts import (
    Facts,
    count_fresh,
    find_fact,
    find_list,
    find_number,
    find_records,
    find_session,
    find_text,
    is_linux,
    is_wsl,
)

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


def find_cuinit(facts: Facts) -> int | None:
    """Returns the result of cuInit, or None."""
    code = find_number(facts, "cuda", "init")
    return None if code is None else int(code)


def driver_works(facts: Facts) -> bool:
    """Whether libcuda is known to initialize and to show a GPU."""
    return find_cuinit(facts) == 0 and (find_number(facts, "cuda", "count") or 0) > 0


def shows_none(facts: Facts) -> bool:
    """Whether libcuda is known to show no GPU, from cuInit or cuDeviceGetCount."""
    code = find_cuinit(facts)
    counted = find_number(facts, "cuda", "count") == 0 or find_count_error(facts) == NO_DEVICE
    return code == NO_DEVICE or (code == 0 and counted)


def find_count_error(facts: Facts) -> int | None:
    """Returns the error of cuDeviceGetCount, or None."""
    code = find_number(facts, "cuda", "count_status")
    return int(code) if code and find_cuinit(facts) == 0 else None


def describe_cuinit(facts: Facts) -> str:
    """Describes the result of cuInit, or of cuDeviceGetCount if only that failed."""
    failed = find_count_error(facts)
    code = find_cuinit(facts) if failed is None else failed
    name = CU_RESULTS.get(code) if code is not None else None
    asked = "cuInit" if failed is None else "cuDeviceGetCount"
    return f"{asked} returns {code}" + (f" ({name})" if name else "")


def describe_nvml(code: float) -> str:
    """Describes a return code of NVML."""
    name = NVML_RETURNS.get(int(code))
    return f"NVML returns {int(code)}" + (f" ({name})" if name else "")


def list_nvml_gpus(facts: Facts) -> list[dict[str, Any]]:
    """Returns NVML's records of the GPUs that CUDA shows, or of all GPUs if these are unknown."""
    records = find_records(facts, "nvml", "devices")
    shown = [gpu.get("uuid") for gpu in find_records(facts, "cuda", "devices")]
    chosen = [gpu for gpu in records if find_text(gpu, "uuid") and gpu["uuid"] in shown]
    return chosen or records


def find_tested_gpu(facts: Facts) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns CUDA's and NVML's records of the GPU to test, which is TensorFlow's first."""
    digits = re.search(r"\d+$", find_text(facts, "proof", "device") or "")
    number = int(digits.group()) if digits else 0
    devices = find_records(facts, "cuda", "devices")[number : number + 1]
    cuda = devices[0] if devices else {}
    records = find_records(facts, "nvml", "devices")
    same = [gpu for gpu in records if find_text(gpu, "uuid") and gpu["uuid"] == cuda.get("uuid")]
    same = same or (records if len(records) == 1 else [])
    return cuda, same[0] if same else {}


def name_gpu(gpu: Facts) -> str:
    """Returns a GPU's product name."""
    return find_text(gpu, "name") or "the GPU"


# Causes ------------------------------------------------------------------------------------------


def detect_no_gpu(facts: Facts) -> str | None:
    """Detects A1: no GPU on the bus and no other sign of one, as WSL and Jetson have."""
    absent = find_fact(facts, "hardware", "nvidia_gpus") == []
    signs = [find_fact(facts, "driver", key) for key in ("version", "device_nodes", "dxg", "tegra")]
    if not absent or any(signs) or is_wsl(facts) or not is_linux(facts):
        return None
    silent = find_cuinit(facts) in (None, STUB_LIBRARY) or shows_none(facts)
    if not silent or find_number(facts, "nvml", "count"):
        return None  # some clouds show a GPU to its driver but not on the bus
    if detect_prime(facts) or detect_lost_gpu(facts):
        return None
    return "the PCI bus lists no display device of NVIDIA (vendor 0x10de, class 0x03)"


def detect_prime(facts: Facts) -> str | None:
    """Detects A11: a notebook whose NVIDIA card prime-select switched off."""
    off = find_text(facts, "driver", "prime") == "intel"
    works = driver_works(facts) or find_number(facts, "nvml", "count")
    if not off or find_text(facts, "driver", "version") != "" or works or detect_lost_gpu(facts):
        return None
    seen = find_list(facts, "hardware", "nvidia_gpus")
    if not seen and find_fact(facts, "cuda", "loaded") is not True:
        return None
    # With this profile Ubuntu also removes the card from the bus; NVIDIA's libraries then show it.
    found = f"{len(seen)} NVIDIA GPU on the PCI bus" if seen else "libcuda.so.1 is installed"
    return f"{found}, no driver is loaded, and the PRIME profile is intel (/etc/prime-discrete)"


def detect_lost_gpu(facts: Facts) -> str | None:
    """Detects A10: the GPU fell off the bus while the computer ran."""
    records = find_records(facts, "nvml", "devices")
    lost = [str(i) for i, gpu in enumerate(records) if gpu.get("status") == GPU_IS_LOST]
    codes = [find_number(facts, "nvml", key) for key in ("init", "count_status")]
    if GPU_IS_LOST in codes:
        return describe_nvml(GPU_IS_LOST)
    # If other GPUs remain, the lost one does not explain that TensorFlow lists none.
    explains = len(lost) == len(records) or find_list(find_session(facts), "physical_gpus")
    if not lost or not explains:
        return None
    return f"{describe_nvml(GPU_IS_LOST)} for GPU {', '.join(lost)} of {len(records)}"


def detect_ignored_gpu(facts: Facts) -> str | None:
    """Detects A14: TensorFlow ignores a GPU with under 8 multiprocessors next to a better one."""
    ignored = _list_ignored(facts)
    count = find_number(facts, "cuda", "count")
    listed = find_list(find_session(facts), "physical_gpus") or count_fresh(facts)
    if not ignored or (not listed and (count is None or len(ignored) < count)):
        return None
    texts = [f"{name} (GPU {i}, {cores} multiprocessors)" for i, name, cores in ignored]
    return f"TensorFlow ignores {', '.join(texts)}"


def _list_ignored(facts: Facts) -> list[tuple[str, str, str]]:
    logs = [find_fact(facts, "listings", name, "log") for name in ("as it is", "preloaded")]
    logs.append(find_fact(facts, "proof", "log"))
    lines = [str(line) for log in logs for line in find_list({"log": log}, "log", "ignored") or ()]
    found = [match.groups() for line in lines if (match := TOO_FEW.search(line))]
    return sorted({(index, name, cores) for index, name, cores in found})


def detect_throttling(facts: Facts) -> str | None:
    """Detects A12: temperature or power supply slows the card."""
    texts = []
    for gpu in list_nvml_gpus(facts):
        bits = int(find_number(gpu, "throttle") or 0)
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
        bits, load = find_number(gpu, "throttle"), find_number(gpu, "utilization")
        if (
            bits is not None
            and int(bits) & POWER_CAP
            and load is not None
            and load < LOADED_PERCENT
        ):
            return f"{name_gpu(gpu)}: power cap (bits {int(bits):#x}) at {load:.0f} % utilization"
    return None


def detect_narrow_link(facts: Facts) -> str | None:
    """Detects A13: the card uses few of its PCI Express lanes, or a slow link under load."""
    return next((text for gpu in list_nvml_gpus(facts) if (text := _describe_link(gpu))), None)


def _describe_link(gpu: Facts) -> str:
    width, widest = find_number(gpu, "link_width"), find_number(gpu, "link_width_max")
    if width and widest and width * NARROW <= widest:
        return f"{width:.0f} of {widest:.0f} PCI Express lanes"
    # An idle card lowers its link generation to save power, so it counts only under load.
    now, most = find_number(gpu, "link_generation"), find_number(gpu, "link_generation_max")
    load = find_number(gpu, "utilization") or 0
    if not now or not most or now >= most or load < LOADED_PERCENT:
        return ""
    return f"PCI Express generation {now:.0f} of {most:.0f} at {load:.0f} % utilization"


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
