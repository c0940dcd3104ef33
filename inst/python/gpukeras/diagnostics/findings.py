"""Reports the parts that `gpu_check()` inspects besides the causes, one finding per part."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpukeras.system.facts import (
    Facts,
    ProofStage,
    count_fresh,
    count_gpus,
    is_simulated,
    list_jax_plugins,
)

NOT_DETERMINED = "not determined"


@dataclass(frozen=True)
class Finding:
    """One finding of `gpu_check()`.

    Args:
        id: Name of a part such as "driver", or a cause's id such as "C7".
        status: "ok", "note" or "problem".
        title: Title of the part or the cause.
        evidence: What was found.
        fix: How to fix a problem, else "".
    """

    id: str
    status: str
    title: str
    evidence: str
    fix: str = ""


def take_inventory(facts: Facts) -> list[Finding]:
    """Returns one finding for each part, with status "note" if the part is missing or unknown."""
    findings = []
    for name, title, look in (*COMPUTER, *BACKENDS[facts.backend], TEST):
        seen = look(facts)
        lacking = seen is None or seen.startswith(("none", "not "))
        status = "note" if lacking or (name == "driver" and fails_driver(facts)) else "ok"
        findings.append(Finding(name, status, title, seen or NOT_DETERMINED))
    return findings


def fails_driver(facts: Facts) -> bool:
    """Whether one of the driver's libraries does not load or returns an error."""
    cuda, nvml = facts.cuda, facts.nvml
    absent = cuda.loaded is False or nvml.loaded is False
    return absent or any((cuda.init, cuda.count_status, nvml.init))


def describe_platform(facts: Facts) -> str | None:
    """Describes operating system, release and machine type."""
    parts = (facts.platform.system, facts.platform.release, facts.platform.machine)
    return " ".join(part for part in parts if part) or None


def describe_hardware(facts: Facts) -> str | None:
    """Describes the computer's NVIDIA GPUs, by name if the driver reports it."""
    names = [gpu.name for gpu in facts.nvml.devices or facts.cuda.devices if gpu.name]
    if names:
        return ", ".join(names)
    count = count_gpus(facts)
    if count is None:
        return "none on the PCI bus" if facts.hardware.nvidia_gpus == () else None
    return f"{count} NVIDIA GPU"


def describe_driver(facts: Facts) -> str | None:
    """Describes the driver's version, from NVML or the kernel module, and its return codes."""
    text = facts.nvml.driver or facts.driver.version
    loaded = facts.cuda.loaded
    if not text and loaded is not True:
        return "none loaded" if text == "" or loaded is False else None
    version = re.search(r"\d+\.\d+(\.\d+)?", text or "")
    shown = version.group() if version else (text or "of unknown version")[:60]
    codes = {"cuInit": facts.cuda.init, "cuDeviceGetCount": facts.cuda.count_status}
    said = [
        f", {name} returns {code}"
        for name, code in codes.items()
        if code or (code == 0 and name == "cuInit")
    ]
    failed = facts.nvml.init
    said += [f", NVML returns {failed}"] if failed else []
    simulated = " (simulated)" if is_simulated(facts) else ""
    return f"{shown}{''.join(said)}{simulated}"


def describe_python(facts: Facts) -> str | None:
    """Describes the running Python and what selected it."""
    executable = facts.python.executable
    if not executable:
        return None
    forced = facts.session.forced
    chosen = f", chosen by {forced}" if forced else ""
    return f"{facts.python.version or ''} {executable}{chosen}".strip()


def describe_tensorflow(facts: Facts) -> str | None:
    """Describes version and build of the imported or installed TensorFlow."""
    version = facts.tensorflow.version or facts.build.version
    if not version:
        return None
    cuda = facts.build.cuda_version
    build = {True: f"built with CUDA {cuda or ''}".strip(), False: "built without CUDA"}
    known = facts.build.is_cuda_build
    return version if known is None else f"{version}, {build[known]}"


def describe_jax(facts: Facts) -> str | None:
    """Describes the versions of JAX, jaxlib and the CUDA plugin."""
    version = facts.jax.version or facts.packages.get("jax")
    if not version:
        return None
    plugins = [f"CUDA {cuda} plugin {version}" for cuda, version in list_jax_plugins(facts).items()]
    library = facts.packages.get("jaxlib")
    parts = [f"jaxlib {library}" if library else "", *(plugins or ["no CUDA plugin"])]
    return ", ".join([version, *filter(None, parts)])


def describe_memory(facts: Facts) -> str | None:
    """Describes how JAX takes a GPU's memory, by the variables that it reads."""
    names = [f"XLA_PYTHON_CLIENT_{name}" for name in ("PREALLOCATE", "MEM_FRACTION", "ALLOCATOR")]
    readings = {name: facts.readings(name) for name in names}
    known = {name: read.get("python") or read.get("c") for name, read in readings.items()}
    texts = [f"{name} is {value}" for name, value in known.items() if value]
    if not any(readings.values()):
        return None
    return ", ".join(texts) or "on demand, as gpukeras sets it before it imports JAX"


def describe_gpus(facts: Facts) -> str | None:
    """Describes the GPUs that the backend lists in this session, and how many are visible.

    JAX would start them: before it has, those of a new process are described.
    """
    physical = facts.runtime.physical_gpus
    if physical is None and facts.backend == "jax" and count_fresh(facts) is not None:
        names = [gpu.name or "a GPU" for gpu in facts.listing("as it is").gpus or ()]
        return f"{', '.join(names) or 'none listed'} (in a new process)"
    if physical is None:
        reason = facts.skipped.get("listings") or facts.skipped.get("session")
        return f"not asked for ({reason})" if reason else None
    visible = facts.runtime.visible_gpus
    if not physical:
        return "none listed"
    hidden = "" if visible is None or visible == physical else f" ({len(visible)} visible)"
    return ", ".join(physical) + hidden


def describe_proof(facts: Facts) -> str | None:
    """Describes the result of each stage of the computation in a child process."""
    stages = facts.proof.stages
    if not stages:
        skipped = facts.skipped.get("compute")
        return f"not made ({skipped})" if skipped else facts.proof.error or None
    ended = facts.proof.ended
    texts = [f"{_name_stage(stage)} {_grade(stage)}" for stage in stages]
    return ", ".join(texts) + (f" ({ended})" if ended else "")


def _name_stage(stage: ProofStage) -> str:
    name = stage.name or "a test"
    return STAGE_NAMES.get(name, name)


def _grade(stage: ProofStage) -> str:
    return {True: "right", False: "failed", None: "not ended"}[stage.ok]


def describe_product(facts: Facts) -> str | None:
    """Describes a correct matrix product on the GPU with its deviation; None without one."""
    for stage in facts.proof.stages:
        error, bound = stage.deviation, stage.tolerance
        right = stage.name == "product" and stage.ok is True
        if right and error is not None and bound is not None:
            device = facts.proof.device
            how = " with soft placement off" if facts.backend == "tensorflow" else ""
            return (
                f"A matrix product on {device}{how} deviates from NumPy by {error:.1e}, "
                f"tolerance {bound:.1e}."
            )
    return None


STAGE_NAMES = {
    "product": "matrix product",
    "convolution": "convolution",
    "fit": "training",
    "fit_xla": "training with XLA",
}
Part = tuple[str, str, Callable[[Facts], str | None]]
COMPUTER: Sequence[Part] = (
    ("platform", "Operating system", describe_platform),
    ("hardware", "NVIDIA hardware", describe_hardware),
    ("driver", "NVIDIA driver", describe_driver),
    ("python", "Python", describe_python),
)
BACKENDS: Mapping[str, Sequence[Part]] = {
    "tensorflow": (
        ("tensorflow", "TensorFlow", describe_tensorflow),
        ("gpus", "GPUs in TensorFlow", describe_gpus),
    ),
    "jax": (
        ("jax", "JAX", describe_jax),
        ("gpus", "GPUs in JAX", describe_gpus),
        ("memory", "GPU memory in JAX", describe_memory),
    ),
}
TEST: Part = ("compute", "Test computation", describe_proof)
PARTS = tuple(
    dict.fromkeys(name for part in (COMPUTER, *BACKENDS.values(), (TEST,)) for name, _, _ in part)
)
