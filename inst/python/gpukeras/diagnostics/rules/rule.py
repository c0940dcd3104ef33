"""What a cause is, and in which order causes are asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from gpukeras.system.facts import Facts, find_records, find_text, list_capabilities

# Mending a later stage is of no use while an earlier one is broken, so the first stage with a
# detected cause holds the root. Within a stage causes exclude each other.
STAGES = (
    "platform",  # an operating system for which there is no CUDA
    "allocation",  # a cluster's job that was given no GPU, whatever its node has
    "hardware",  # no card, or one that is gone
    "driver",  # kernel module, user libraries, device nodes, containers
    "python",  # the wrong Python, or one without TensorFlow
    "build",  # a TensorFlow without CUDA
    "visibility",  # variables that hide the card
    "card",  # a card that this TensorFlow has no code for
    "libraries",  # CUDA libraries that are missing, hidden or wrong
    "session",  # what this session did or missed
    "first use",  # the card is listed, and computing on it fails
    "compiler",  # the card computes, but not what XLA compiles
    "use",  # the card computes, but not this training, or slowly
    "information",  # worth knowing, never a root
)
SEVERITIES = ("unused", "crash", "error", "slow", "information")

# Situations: see judgement.name_situation().
UNLISTED = ("unlisted", "unknown")
LATE = ("late",)
AT_FIRST_USE = ("failed", "untested")
LISTED = ("hidden", "failed", "untested", "works")
NEVER: tuple[str, ...] = ()

BLACKWELL, BLACKWELL_DRIVER = (10, 0), "570"  # the first driver that knows these cards
REINSTALL = '{python} -m pip install "tensorflow[and-cuda]=={version}"'


@dataclass(frozen=True)
class Cause:
    """One reason why a GPU is not used, or is used badly.

    Args:
        id: Row of the project's table of causes, such as "C7".
        stage: One of `STAGES`.
        severity: "unused" (no GPU), "crash" (ends the process), "error" (at first use), "slow", or
            "information".
        title: The cause, one sentence; "{evidence}" stands for the evidence.
        detect: Facts to evidence, or None where the cause is not proven.
        fix: What to do, to copy; "{python}", "{version}" and the like are filled in.
        source: Where this is known from.
        explains: Situations in which this can be the root cause; elsewhere it is only a finding.
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
        """Refuses a stage or a severity that does not exist."""
        if self.stage not in STAGES:
            raise ValueError(f"{self.id}: no stage {self.stage!r}")
        if self.severity not in SEVERITIES:
            raise ValueError(f"{self.id}: no severity {self.severity!r}")


def fill_fix(fix: str, facts: Facts) -> str:
    """A fix with this session's Python and TensorFlow version in place, and what else it needs.

    "{elsewhere}" is a better Python, "{driver:555}" that driver or the newer one of the card.
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
    """The Python of another environment that holds a TensorFlow with CUDA, or ""."""
    others = find_records(facts, "elsewhere")
    built = [other for other in others if other.get("is_cuda_build") is True]
    return (find_text(built[0], "python") or "") if built else ""


def find_version(facts: Facts) -> str:
    """TensorFlow's version, imported or only installed, or ""."""
    return find_text(facts, "tensorflow", "version") or find_text(facts, "build", "version") or ""
