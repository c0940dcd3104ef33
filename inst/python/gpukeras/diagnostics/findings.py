"""Reports the parts that `gpu_check()` inspects besides the causes, one finding per part."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpukeras.system.facts import (
    Facts,
    count_fresh,
    count_gpus,
    find_backend,
    find_dict,
    find_fact,
    find_list,
    find_number,
    find_records,
    find_session,
    find_text,
    is_cuda_build,
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
    for name, title, look in choose_inventory(facts):
        seen = look(facts)
        lacking = seen is None or seen.startswith(("none", "not "))
        status = "note" if lacking or (name == "driver" and fails_driver(facts)) else "ok"
        findings.append(Finding(name, status, title, seen or NOT_DETERMINED))
    return findings


def fails_driver(facts: Facts) -> bool:
    """Whether one of the driver's libraries does not load or returns an error."""
    errors = [("cuda", "init"), ("cuda", "count_status"), ("nvml", "init")]
    absent = any(find_fact(facts, part, "loaded") is False for part in ("cuda", "nvml"))
    return absent or any(find_number(facts, *path) for path in errors)


def describe_platform(facts: Facts) -> str | None:
    """Describes operating system, release and machine type."""
    parts = [find_text(facts, "platform", key) for key in ("system", "release", "machine")]
    return " ".join(part for part in parts if part) or None


def describe_hardware(facts: Facts) -> str | None:
    """Describes the computer's NVIDIA GPUs, by name if the driver reports it."""
    known = find_records(facts, "nvml", "devices") or find_records(facts, "cuda", "devices")
    names = [name for gpu in known if (name := find_text(gpu, "name"))]
    if names:
        return ", ".join(names)
    count = count_gpus(facts)
    if count is None:
        return "none on the PCI bus" if find_list(facts, "hardware", "nvidia_gpus") == [] else None
    return f"{count} NVIDIA GPU"


def describe_driver(facts: Facts) -> str | None:
    """Describes the driver's version, from NVML or the kernel module, and its return codes."""
    text = find_text(facts, "nvml", "driver") or find_text(facts, "driver", "version")
    loaded = find_fact(facts, "cuda", "loaded")
    if not text and loaded is not True:
        return "none loaded" if text == "" or loaded is False else None
    version = re.search(r"\d+\.\d+(\.\d+)?", text or "")
    shown = version.group() if version else (text or "of unknown version")[:60]
    asked = {"cuInit": ("cuda", "init"), "cuDeviceGetCount": ("cuda", "count_status")}
    codes = {name: find_number(facts, *path) for name, path in asked.items()}
    said = [
        f", {name} returns {code:.0f}"
        for name, code in codes.items()
        if code or (code == 0 and name == "cuInit")
    ]
    failed = find_number(facts, "nvml", "init")
    said += [f", NVML returns {failed:.0f}"] if failed else []
    simulated = " (simulated)" if is_simulated(facts) else ""
    return f"{shown}{''.join(said)}{simulated}"


def describe_python(facts: Facts) -> str | None:
    """Describes the running Python and what selected it."""
    executable = find_text(facts, "python", "executable")
    if not executable:
        return None
    forced = find_text(facts, "session", "forced")
    chosen = f", chosen by {forced}" if forced else ""
    return f"{find_text(facts, 'python', 'version') or ''} {executable}{chosen}".strip()


def describe_tensorflow(facts: Facts) -> str | None:
    """Describes version and build of the imported or installed TensorFlow."""
    version = find_text(facts, "tensorflow", "version") or find_text(facts, "build", "version")
    if not version:
        return None
    cuda = find_text(facts, "build", "cuda_version")
    build = {True: f"built with CUDA {cuda or ''}".strip(), False: "built without CUDA"}
    known = is_cuda_build(facts)
    return version if known is None else f"{version}, {build[known]}"


def describe_jax(facts: Facts) -> str | None:
    """Describes the versions of JAX, jaxlib and the CUDA plugin."""
    packages = find_dict(facts, "packages")
    version = find_text(facts, "jax", "version") or find_text(packages, "jax")
    if not version:
        return None
    plugins = [f"CUDA {cuda} plugin {found}" for cuda, found in list_jax_plugins(facts).items()]
    library = find_text(packages, "jaxlib")
    parts = [f"jaxlib {library}" if library else "", *(plugins or ["no CUDA plugin"])]
    return ", ".join([version, *filter(None, parts)])


def describe_memory(facts: Facts) -> str | None:
    """Describes how JAX takes a GPU's memory, by the variables that it reads."""
    names = [f"XLA_PYTHON_CLIENT_{name}" for name in ("PREALLOCATE", "MEM_FRACTION", "ALLOCATOR")]
    readings = {name: find_dict(facts, "environment", name) for name in names}
    known = {name: read.get("python") or read.get("c") for name, read in readings.items()}
    texts = [f"{name} is {value}" for name, value in known.items() if value]
    if not any(readings.values()):
        return None
    return ", ".join(texts) or "on demand, as gpukeras sets it before it imports JAX"


def describe_gpus(facts: Facts) -> str | None:
    """Describes the GPUs that the backend lists in this session, and how many are visible.

    JAX would start them: before it has, those of a new process are described.
    """
    physical = find_list(find_session(facts), "physical_gpus")
    if physical is None and find_backend(facts) == "jax" and count_fresh(facts) is not None:
        fresh = find_records(facts, "listings", "as it is", "gpus")
        names = [find_text(gpu, "name") or "a GPU" for gpu in fresh]
        return f"{', '.join(names) or 'none listed'} (in a new process)"
    if physical is None:
        reason = find_text(facts, "skipped", "listings") or find_text(facts, "skipped", "session")
        return f"not asked for ({reason})" if reason else None
    visible = find_list(find_session(facts), "visible_gpus")
    if not physical:
        return "none listed"
    hidden = "" if visible is None or visible == physical else f" ({len(visible)} visible)"
    return ", ".join(str(name) for name in physical) + hidden


def describe_proof(facts: Facts) -> str | None:
    """Describes the result of each stage of the computation in a child process."""
    stages = find_records(facts, "proof", "stages")
    if not stages:
        skipped = find_text(facts, "skipped", "compute")
        return f"not made ({skipped})" if skipped else find_text(facts, "proof", "error") or None
    ended = find_text(facts, "proof", "ended")
    texts = [f"{_name_stage(stage)} {_grade(stage)}" for stage in stages]
    return ", ".join(texts) + (f" ({ended})" if ended else "")


def _name_stage(stage: Facts) -> str:
    name = find_text(stage, "name") or "a test"
    return STAGE_NAMES.get(name, name)


def _grade(stage: Facts) -> str:
    ok = find_fact(stage, "ok")
    return "right" if ok is True else "failed" if ok is False else "not ended"


def describe_product(facts: Facts) -> str | None:
    """Describes a correct matrix product on the GPU with its deviation; None without one."""
    for stage in find_records(facts, "proof", "stages"):
        error, bound = find_number(stage, "deviation"), find_number(stage, "tolerance")
        right = stage.get("name") == "product" and stage.get("ok") is True
        if right and error is not None and bound is not None:
            device = find_text(facts, "proof", "device")
            how = " with soft placement off" if find_backend(facts) == "tensorflow" else ""
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


def choose_inventory(facts: Facts) -> Sequence[Part]:
    """Returns the parts of a report on the backend that was asked."""
    return (*COMPUTER, *BACKENDS[find_backend(facts)], TEST)
