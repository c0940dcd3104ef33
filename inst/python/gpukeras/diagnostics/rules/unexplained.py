"""Causes known only by an error that no other cause explains (A16, B12, P1, P2)."""

from __future__ import annotations

from dataclasses import replace

from gpukeras.diagnostics.rules import (
    driver,
    hardware,
    jax,
    libraries,
    packages,
    session,
    shared_gpus,
    visibility,
)
from gpukeras.diagnostics.rules.hardware import (
    describe_cuinit,
    describe_nvml,
    driver_works,
    find_count_error,
    shows_none,
)
from gpukeras.diagnostics.rules.rule import Cause
from gpukeras.system.facts import Facts, find_logs

_FAMILIES = (hardware, driver, shared_gpus, packages, libraries, visibility, session, jax)
REASONS = tuple(  # known reasons of a failed computation; each is more specific than P1
    cause for family in _FAMILIES for cause in family.CAUSES if "failed" in cause.situations
)


# The driver does not start -----------------------------------------------------------------------


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


# Computing fails ---------------------------------------------------------------------------------


def detect_failed_proof(facts: Facts) -> str | None:
    """Detects P1: a GPU is listed, and computing on it failed for no known reason."""
    if facts.proof.ok is not False or is_own_shortage(facts):
        return None
    if any(cause.find(facts) for cause in REASONS) or jax.find_start_error(facts):
        return None
    proof = facts.proof
    failed = next((stage for stage in proof.stages if stage.ok is False), None)
    error = (failed and failed.error) or proof.error or proof.ended
    error = error or "the test computation failed without a message"
    return f"{failed.name}: {error}" if failed and failed.name else error


def is_own_shortage(facts: Facts) -> bool:
    """Whether a child process ran out of memory because this session's TensorFlow holds it."""
    started = facts.runtime.started is True
    return started and any(log.out_of_memory is True for log in find_logs(facts))


def detect_failed_start(facts: Facts) -> str | None:
    """Detects P2: JAX's CUDA plugin failed to start for no known reason."""
    said = jax.find_said(facts, "plugin") or jax.find_said(facts, "check")
    error = jax.find_start_error(facts) or said
    known = (*REASONS, *jax.CAUSES)
    if not error or any(cause.find(facts) for cause in known if cause.stage != "information"):
        return None
    device = jax.find_said(facts, "device")
    return error + (f"; {device}" if device else "")


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
    # a matrix product, a convolution and a small training on that GPU in a child process
    Cause(
        "P1",
        "first use",
        "A GPU is listed, but computing on it failed: {evidence}",
        detect_failed_proof,
        "Update the NVIDIA driver; close other programs that use the GPU (nvidia-smi lists them); "
        "then gpu_check() again.",
        explains=("failed",),
    ),
    # jax/_src/xla_bridge.py, discover_pjrt_plugins() and backends()
    Cause(
        "P2",
        "first use",
        "JAX's CUDA plugin failed to start.",
        detect_failed_start,
        "Update the NVIDIA driver; close other programs that use the GPU (nvidia-smi lists them); "
        '{python} -m pip install --upgrade --force-reinstall "{jax}"; then gpu_check() again.',
        explains=("failed", "unlisted"),
        backend="jax",
    ),
)
