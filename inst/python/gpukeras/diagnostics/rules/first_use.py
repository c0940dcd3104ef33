"""The causes for a card on which computing fails for an unknown reason (P1, P2)."""

from __future__ import annotations

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
from gpukeras.diagnostics.rules.rule import Cause
from gpukeras.system.facts import Facts, find_logs

_FAMILIES = (hardware, driver, shared_gpus, packages, libraries, visibility, session, jax)
REASONS = tuple(  # known reasons of a failed computation; each is more specific than P1
    cause for family in _FAMILIES for cause in family.CAUSES if "failed" in cause.situations
)


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
