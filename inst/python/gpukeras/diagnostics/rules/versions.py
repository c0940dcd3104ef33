"""Causes in incompatible libraries, builds and cards (C12, C13, C16 to C20)."""

from __future__ import annotations

import re

from gpukeras.diagnostics.rules.packages import OWNERS, is_cpu_build
from gpukeras.diagnostics.rules.rule import REINSTALL, Cause, share
from gpukeras.system import known_issues
from gpukeras.system.facts import (
    Facts,
    LogFacts,
    find_release,
    list_capabilities,
    list_kernels,
    list_uncoded,
)
from gpukeras.system.known_issues import OR_JAX, format_version

STAGES = ("product", "convolution", "fit", "fit_xla")  # of the test computation, in order


def find_failed_stage(facts: Facts) -> str:
    """Returns the test computation's stage that failed or ended the process; "" if none."""
    ended = facts.proof.ended or ""
    done = []
    for stage in facts.proof.stages:
        name = str(stage.name)
        if stage.ok is False or (stage.ok is None and ended):
            return name
        done.append(name)
    later = [name for name in STAGES if name not in done]
    return later[0] if ended and later else ""


def describe_failure(facts: Facts) -> str:
    """Joins all messages of the failed test computation."""
    proof = facts.proof
    errors = [proof.error, proof.ended, *(stage.error for stage in proof.stages)]
    return " ".join([*(error or "" for error in errors), *proof.log.lines])


def _list_logs(facts: Facts) -> tuple[LogFacts, ...]:
    return facts.proof.log, facts.listing("preloaded").log, facts.listing("as it is").log


def disproves_cudnn(facts: Facts) -> bool:
    """Whether the test computation shows that cuDNN is not at fault."""
    stages = facts.proof.stages
    convolved = any(stage.name == "convolution" and stage.ok is True for stage in stages)
    failed = facts.proof.ok is False
    return convolved or (failed and find_failed_stage(facts) in ("", STAGES[0]))


def detect_old_cudnn(facts: Facts) -> str | None:
    """Detects C12: a cuDNN older than the one TensorFlow was compiled with."""
    said = next((log.cudnn for log in _list_logs(facts) if log.cudnn), "")
    if said:
        return f"TensorFlow's log: loaded and compiled with cuDNN {said}"
    return None if disproves_cudnn(facts) else known_issues.OLD_CUDNN.applies(facts)


def detect_old_card(facts: Facts) -> str | None:
    """Detects C18: every card is older than the oldest with code in this TensorFlow."""
    oldest, cards = find_oldest_code(facts), list_capabilities(facts)
    if not oldest or not cards or max(cards) >= oldest:
        return None
    return (
        f"compute capability {format_version(max(cards))}, and TensorFlow"
        f"{' with CUDA' if is_cpu_build(facts) else ''} has code from {format_version(oldest)} on"
    )


def find_oldest_code(facts: Facts) -> tuple[int, int] | None:
    """Returns the oldest compute capability with code in TensorFlow, or in its CUDA build."""
    known = list_kernels(facts)
    if known or not is_cpu_build(facts):
        return min(known, default=None)
    return (5, 0) if find_release(facts) < (2, 17) else (6, 0)  # build_info of PyPI's wheels


def detect_new_cudnn(facts: Facts) -> str | None:
    """Detects C13: a cuDNN without code for cards before Turing."""
    if detect_old_card(facts) or detect_old_cudnn(facts) or disproves_cudnn(facts):
        return None
    return known_issues.NEW_CUDNN.applies(facts)


def detect_abort(facts: Facts) -> str | None:
    """Detects C17: XLA aborts the process on a card newer than its CUDA version."""
    ended = facts.proof.ended or "failed"
    if detect_old_card(facts):
        return None
    if facts.proof.log.ptx is True:
        said = facts.proof.log.lines
        line = next((line for line in said if "PTX" in line), "LLVM ERROR: PTX version")
        return f"the test computation with XLA {ended}: {line}"
    sign = known_issues.BLACKWELL_XLA.applies(facts)
    if sign and "SIGABRT" in ended and find_failed_stage(facts) == "fit_xla":
        return f"{sign}; the test computation with XLA was {ended}"
    tried = [stage.name for stage in facts.proof.stages]
    return sign if facts.proof.ok is True and "fit_xla" not in tried else None


def detect_no_kernels(facts: Facts) -> str | None:
    """Detects C16: no code for the card, so the driver compiles each kernel at its first use."""
    if detect_old_card(facts) or detect_abort(facts):
        return None
    told = next((log.capability for log in _list_logs(facts) if log.capability), "")
    sign = f"TensorFlow's log: no code for compute capability {told}" if told else None
    sign = sign or _lack_kernels(facts)
    works, ended = facts.proof.ok, facts.proof.ended or ""
    if not sign or works is True:
        return sign
    if works is None:  # it may still be compiling
        return f"{sign}; the test computation {ended}" if "did not end" in ended else None
    said = re.search(r"\w*INVALID_PTX|\w*INVALID_HANDLE|no kernel image", describe_failure(facts))
    return f"{sign}; the test computation failed with {said.group()}" if said else None


def _lack_kernels(facts: Facts) -> str | None:
    newer = [card for card in list_uncoded(facts) if card > max(list_kernels(facts))]
    if not newer:
        return None
    return (
        f"compute capability {format_version(newer[0])}, and the build has "
        f"{', '.join(facts.build.cuda_compute_capabilities)}"
    )


def detect_no_compiler(facts: Facts) -> str | None:
    """Detects C19: XLA does not find NVIDIA's `ptxas` or `libdevice`."""
    log, compiler = facts.proof.log, facts.compiler
    said = [name for name in ("libdevice", "ptxas") if getattr(log, name) is True]
    absent = [name for name in ("libdevice", "ptxas") if getattr(compiler, name) == ""]
    if detect_abort(facts) or (not said and not absent):
        return None
    if said:
        found = f"; as a file {' and '.join(absent)} is nowhere" if absent else ""
        return f"TensorFlow's log: XLA does not find {' and '.join(said)}{found}"
    if find_failed_stage(facts) != "fit_xla" or facts.proof.ended:
        return None
    return f"{' and '.join(absent)} is nowhere, and the test computation with XLA failed"


def detect_changed_wheels(facts: Facts) -> str | None:
    """Detects C20: torch or jax installed CUDA libraries incompatible with TensorFlow."""
    others = [name for name in ("torch", "jax") if facts.packages.get(name)]
    changed = [item for item in facts.requirements if item.installed]
    if facts.proof.ok is False:  # then the failure must involve one of these
        said = describe_failure(facts).lower()
        changed = [item for item in changed if _names_library(said, str(item.name))]
    if not others or not changed or facts.build.is_cuda_build is not True:
        return None
    if any(detect(facts) for detect in (detect_old_cudnn, detect_new_cudnn, detect_old_card)):
        return None
    if any(detect(facts) for detect in (detect_abort, detect_no_kernels, detect_no_compiler)):
        return None
    texts = [f"{item.name} {item.installed} for {item.wanted}" for item in changed]
    return f"beside {' and '.join(others)} are installed {', '.join(texts)}"


def _names_library(said: str, wheel: str) -> bool:
    stems = [stem.lower() for stem, owner in OWNERS.items() if owner == wheel]
    return any(stem in said or f"{stem[3:]}_status" in said for stem in stems)


CAUSES = share(
    Cause(
        "C12",
        "libraries",
        known_issues.OLD_CUDNN.what,
        detect_old_cudnn,
        known_issues.OLD_CUDNN.fix,
        explains=("failed",),
        is_fault=True,
    ),
    # build_info of the wheels: sm_50 up to 2.16, sm_60 from 2.17
    Cause(
        "C18",
        "card",
        "The GPU is older than any for which this version of TensorFlow has code.",
        detect_old_card,
        "Train on the CPU; for compute capability 5.x: {python} -m pip install "
        '"tensorflow[and-cuda]==2.16.2"',
        explains=("failed",),
    ),
    Cause(
        "C13",
        "libraries",
        known_issues.NEW_CUDNN.what,
        detect_new_cudnn,
        known_issues.NEW_CUDNN.fix,
        explains=("failed",),
        is_fault=True,
    ),
    Cause(
        "C17",
        "card",
        known_issues.BLACKWELL_XLA.what,
        detect_abort,
        known_issues.BLACKWELL_XLA.fix,
        explains=("failed", "untested"),
    ),
    # tensorflow #101746, #97387, #89272
    Cause(
        "C16",
        "card",
        "This TensorFlow has no code for the GPU: the driver compiles it at first use.",
        detect_no_kernels,
        'Restart R, then Sys.setenv(CUDA_CACHE_MAXSIZE = "4294967296") before Python starts, and '
        "let the first run take its half hour: later ones reuse it. Or use NVIDIA's container "
        "nvcr.io/nvidia/tensorflow." + OR_JAX,
        explains=("failed", "untested"),
    ),
    # tensorflow #58681
    Cause(
        "C19",
        "compiler",
        "XLA does not find NVIDIA's compiler.",
        detect_no_compiler,
        "{python} -m pip install --force-reinstall nvidia-cuda-nvcc-cu12 nvidia-nvjitlink-cu12; or "
        "train without XLA: gpu_setup(jit = FALSE)",
        explains=("failed", "untested"),
    ),
    # metadata of the wheels: requirements of the extra and-cuda
    Cause(
        "C20",
        "libraries",
        "Another package replaced TensorFlow's CUDA libraries by other versions.",
        detect_changed_wheels,
        REINSTALL + "; keep torch and jax in an environment of their own.",
        explains=("failed",),
        is_fault=True,
    ),
    backend="tensorflow",
)
