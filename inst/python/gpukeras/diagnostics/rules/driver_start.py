"""Causes of a driver that does not start, known only by its error code (A16, B12)."""

from __future__ import annotations

from dataclasses import replace

from gpukeras.diagnostics.rules import driver, shared_gpus
from gpukeras.diagnostics.rules.hardware import (
    describe_cuinit,
    describe_nvml,
    driver_works,
    find_count_error,
    shows_none,
)
from gpukeras.diagnostics.rules.rule import Cause
from gpukeras.system.facts import Facts


def _is_explained(facts: Facts) -> bool:
    """Whether another cause in the driver, or a variable, explains the error better."""
    known = [*driver.CAUSES, *shared_gpus.CAUSES]
    if any(cause.find(facts) for cause in known if cause.stage == "driver"):
        return True
    return driver_works(replace(facts, cuda=facts.cuda_shown))


def detect_refusal(facts: Facts) -> str | None:
    """Detects A16: libcuda returns an error that no other cause explains."""
    failed = facts.cuda.init or find_count_error(facts)
    if not failed or shows_none(facts) or _is_explained(facts):
        return None
    words = facts.cuda.error if facts.cuda.init else ""
    parts = [describe_cuinit(facts) + (f": {words}" if words else "")]
    code = facts.nvml.init
    parts += [describe_nvml(code)] if code else []
    if facts.nvml.loaded is False:
        parts.append(facts.nvml.error or "libnvidia-ml.so.1 does not load")
    return "; ".join(parts)


def detect_no_cuda(facts: Facts) -> str | None:
    """Detects B12: the driver is installed without its CUDA library."""
    absent = facts.cuda.loaded is False and facts.cuda.init is None
    seen = _describe_driver(facts)
    if not absent or not seen or _is_explained(facts):
        return None
    reason = facts.cuda.error or "libcuda.so.1 does not load"
    promised = facts.container.nvidia_driver_capabilities
    given = f"; NVIDIA_DRIVER_CAPABILITIES is {promised}" if promised else ""
    return f"{seen}, but {reason}{given}"


def _describe_driver(facts: Facts) -> str:
    """Describes the evidence of a driver, from NVML or its files, or ""."""
    count = facts.nvml.count
    if count:
        return f"NVML counts {count} GPU"
    return "the driver's kernel module is loaded" if facts.driver.version else ""


CAUSES = (
    # CUDA Driver API: cuInit, cuDeviceGetCount, CUresult
    Cause(
        "A16",
        "driver",
        "The NVIDIA driver does not start CUDA.",
        detect_refusal,
        "nvidia-smi must list the GPU without an error: if it does not, reinstall the NVIDIA "
        "driver whole, and reboot; sudo dmesg | grep -i -e nvrm -e xid shows what it said. With 46 "
        "another process holds the GPU (nvidia-smi lists it), with 102 a virtual GPU lacks its "
        "licence, with 214 the card's memory has errors (nvidia-smi -q -d ECC).",
    ),
    # NVIDIA Container Toolkit documentation, driver capabilities
    Cause(
        "B12",
        "driver",
        "The driver's library for CUDA, libcuda.so.1, is missing.",
        detect_no_cuda,
        "In a container: start it with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility. Elsewhere: "
        "install it in the driver's own version (Debian: sudo apt install libcuda1; Ubuntu: the "
        "package libnvidia-compute-NNN).",
    ),
)
