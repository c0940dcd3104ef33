"""Defines a cause, and the order in which causes are evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpukeras.system import pip
from gpukeras.system.facts import Facts, list_capabilities, list_jax_plugins

# Situations in which a cause can be the root: see verdict.name_situation().
UNLISTED = ("unlisted", "unknown")
LATE = ("late",)
AT_FIRST_USE = ("failed", "untested")
LISTED = ("hidden", "failed", "untested", "works")
NEVER: tuple[str, ...] = ()

# The stages, each with its causes' usual situations. Fixing a later stage does not help while an
# earlier one is broken, so the first stage with a detected cause contains the root. Within a stage
# causes exclude each other.
STAGES = {
    "platform": UNLISTED,  # an operating system without CUDA
    "allocation": UNLISTED,  # a cluster job without an allocated GPU
    "hardware": UNLISTED,  # no card, or a lost one
    "driver": UNLISTED,  # kernel module, user libraries, device nodes, containers
    "python": UNLISTED,  # the wrong Python, or one without TensorFlow
    "build": UNLISTED,  # a TensorFlow without CUDA
    "visibility": UNLISTED,  # variables that hide the card
    "card": AT_FIRST_USE,  # a card without code in this TensorFlow
    "libraries": UNLISTED,  # CUDA libraries that are missing, hidden or wrong
    "session": UNLISTED,  # actions or omissions of this session
    "first use": AT_FIRST_USE,  # the card is listed, but computing on it fails
    "compiler": AT_FIRST_USE,  # the card computes, but XLA fails
    "use": NEVER,  # the card computes, but not this training, or only slowly
    "information": NEVER,
}
FAULTS = ("card", "first use", "compiler", "use")  # stages whose causes are problems in any case

BLACKWELL, BLACKWELL_DRIVER = (10, 0), "570"  # the first driver that supports these cards
JAX_CUDA = 12  # of the packages that install_gpukeras() installs: older drivers have it too
REINSTALL_JAX = (
    'Restart R, then install_gpukeras(backend = "jax"). Or: {python} -m pip install "{jax}"'
)
MANAGED = (
    "This Python is the operating system's, which lets pip install nothing into it. Make an "
    f"environment first: install_gpukeras(), or {{python}} -m venv {pip.ENVIRONMENT}. Then, in it: "
)
REINSTALL = '{python} -m pip install "tensorflow[and-cuda]=={version}"'


@dataclass(frozen=True)
class Cause:
    """A reason why a GPU is unused or used inefficiently.

    A comment above each cause names its reference.

    Args:
        id: Row of the project's table of causes, such as "C7".
        stage: One of `STAGES`.
        title: The cause in one sentence; "{evidence}" is replaced by the evidence.
        detect: Function of facts that returns the evidence, or None if the cause is not proven.
        fix: A fix to copy; `fill_fix()` replaces "{python}", "{version}" and similar fields.
        explains: Situations in which this can be the root cause, in others it is only a finding;
            None for those of its stage.
        is_fault: Whether it is a problem even where it is not the root cause, or a function of
            facts that says so.
        backend: Backend of Keras that it concerns, "tensorflow" or "jax"; "" for both.
    """

    id: str
    stage: str
    title: str
    detect: Callable[[Facts], str | None]
    fix: str
    explains: tuple[str, ...] | None = None
    is_fault: bool | Callable[[Facts], bool] = False
    backend: str = ""

    def find(self, facts: Facts) -> str | None:
        """Returns the evidence, or None if it is not proven or of another backend."""
        return self.detect(facts) if self.backend in ("", facts.backend) else None

    def is_problem(self, facts: Facts) -> bool:
        """Whether it is a problem, where it is detected and not the root cause."""
        certain = self.is_fault(facts) if callable(self.is_fault) else self.is_fault
        return certain or self.stage in FAULTS

    @property
    def situations(self) -> tuple[str, ...]:
        """The situations in which this can be the root cause."""
        return STAGES[self.stage] if self.explains is None else self.explains


def share(*causes: Cause, **values: Any) -> tuple[Cause, ...]:
    """Returns causes that have values of fields in common, such as the backend."""
    return tuple(replace(cause, **values) for cause in causes)


def fill_fix(fix: str, facts: Facts) -> str:
    """Fills a fix with this session's Python, TensorFlow version and other fields.

    "{elsewhere}" is a Python with a CUDA build; "{driver:555}" is that driver version, or the newer
    one that the card needs; "{jax}" is JAX with the CUDA of its plugin, of the installed version;
    "{newer}" is a C++ library that has what this process lacks. Where pip installs nothing into
    this Python, the fix begins with an environment.
    """
    version = find_version(facts)
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        fix = fix.replace("=={version}", "")
    executable = facts.python.executable
    python = f'"{executable}"' if executable else "python"
    recent = any(card >= BLACKWELL for card in list_capabilities(facts))
    fix = re.sub(r"\{driver:([\d.]+)\}", BLACKWELL_DRIVER if recent else r"\1", fix)
    fix = fix.replace("{jax}", name_jax(facts))
    newer = facts.import_error.newer or "/path/to/environment/lib/libstdc++.so.6"
    fix = fix.replace("{newer}", newer).replace("{version}", version)
    if facts.python.is_managed is True and "{python} -m pip" in fix:
        fix = MANAGED.replace("{python}", python) + fix.replace("{python}", pip.PYTHON)
    filled = fix.replace("{python}", python)
    return filled.replace("{elsewhere}", find_elsewhere(facts) or "/path/to/python")


def name_jax(facts: Facts) -> str:
    """Returns the requirement of JAX with CUDA, such as "jax[cuda12]==0.7.1"."""
    version = facts.packages.get("jax")
    cuda = max(list_jax_plugins(facts), default=JAX_CUDA)
    return f"jax[cuda{cuda}]" + (f"=={version}" if version else "")


def find_elsewhere(facts: Facts) -> str:
    """Returns the Python of another environment with a CUDA build of TensorFlow, or ""."""
    built = [other for other in facts.elsewhere if other.is_cuda_build is True]
    return (built[0].python or "") if built else ""


def find_version(facts: Facts) -> str:
    """Returns the version of the imported or installed TensorFlow, or ""."""
    return facts.tensorflow.version or facts.build.version or ""
