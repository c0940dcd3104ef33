"""Defines a cause, and the order in which causes are evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpukeras.system.facts import Facts, find_records, find_text, list_capabilities

# Fixing a later stage does not help while an earlier one is broken, so the first stage with a
# detected cause contains the root. Within a stage causes exclude each other.
STAGES = (
    "platform",  # an operating system without CUDA
    "allocation",  # a cluster job without an allocated GPU
    "hardware",  # no card, or a lost one
    "driver",  # kernel module, user libraries, device nodes, containers
    "python",  # the wrong Python, or one without TensorFlow
    "build",  # a TensorFlow without CUDA
    "visibility",  # variables that hide the card
    "card",  # a card without code in this TensorFlow
    "libraries",  # CUDA libraries that are missing, hidden or wrong
    "session",  # actions or omissions of this session
    "first use",  # the card is listed, but computing on it fails
    "compiler",  # the card computes, but XLA fails
    "use",  # the card computes, but not this training, or only slowly
    "information",  # never a root
)
SEVERITIES = ("unused", "crash", "error", "slow", "information")

# Situations: see verdict.name_situation().
UNLISTED = ("unlisted", "unknown")
LATE = ("late",)
AT_FIRST_USE = ("failed", "untested")
LISTED = ("hidden", "failed", "untested", "works")
NEVER: tuple[str, ...] = ()

BLACKWELL, BLACKWELL_DRIVER = (10, 0), "570"  # the first driver that supports these cards
REINSTALL = '{python} -m pip install "tensorflow[and-cuda]=={version}"'


@dataclass(frozen=True)
class Cause:
    """A reason why a GPU is unused or used inefficiently.

    Args:
        id: Row of the project's table of causes, such as "C7".
        stage: One of `STAGES`.
        severity: "unused" (no GPU), "crash" (ends the process), "error" (at first use), "slow", or
            "information".
        title: The cause in one sentence; "{evidence}" is replaced by the evidence.
        detect: Function of facts that returns the evidence, or None if the cause is not proven.
        fix: A fix to copy; `fill_fix()` replaces "{python}", "{version}" and similar fields.
        source: Reference.
        explains: Situations in which this can be the root cause; in others it is only a finding.
    """

    id: str
    stage: str
    severity: str
    title: str
    detect: Callable[[Facts], str | None]
    fix: str
    source: str
    explains: tuple[str, ...] = UNLISTED

    def __post_init__(self) -> None:
        """Raises ValueError for an unknown stage or severity."""
        if self.stage not in STAGES:
            raise ValueError(f"{self.id}: no stage {self.stage!r}")
        if self.severity not in SEVERITIES:
            raise ValueError(f"{self.id}: no severity {self.severity!r}")


def fill_fix(fix: str, facts: Facts) -> str:
    """Fills a fix with this session's Python, TensorFlow version and other fields.

    "{elsewhere}" is a Python with a CUDA build; "{driver:555}" is that driver version, or the newer
    one that the card needs.
    """
    version = find_version(facts)
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        fix = fix.replace("=={version}", "")
    executable = find_text(facts, "python", "executable")
    python = f'"{executable}"' if executable else "python"
    newer = any(card >= BLACKWELL for card in list_capabilities(facts))
    fix = re.sub(r"\{driver:([\d.]+)\}", BLACKWELL_DRIVER if newer else r"\1", fix)
    filled = fix.replace("{version}", version).replace("{python}", python)
    return filled.replace("{elsewhere}", find_elsewhere(facts) or "/path/to/python")


def find_elsewhere(facts: Facts) -> str:
    """Returns the Python of another environment with a CUDA build of TensorFlow, or ""."""
    others = find_records(facts, "elsewhere")
    built = [other for other in others if other.get("is_cuda_build") is True]
    return (find_text(built[0], "python") or "") if built else ""


def find_version(facts: Facts) -> str:
    """Returns the version of the imported or installed TensorFlow, or ""."""
    return find_text(facts, "tensorflow", "version") or find_text(facts, "build", "version") or ""
