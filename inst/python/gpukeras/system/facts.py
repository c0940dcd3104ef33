"""Looks up facts about a computer and a session with type checks.

Facts are a nested dict from `diagnostics.collect.read_facts()`. A missing value or one of the wrong
type means "not determined", never "no"; an empty string or list means "looked for and not found".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]

WHEELS = (  # distributions that install the module `tensorflow`
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "intel-tensorflow",
    "tf-nightly",
    "tf-nightly-cpu",
)


def find_fact(facts: Facts, *path: str) -> Any:  # noqa: ANN401
    """Returns the fact at a path of keys, or None."""
    value: Any = facts
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def find_text(facts: Facts, *path: str) -> str | None:
    """Returns a fact that is a string, else None."""
    value = find_fact(facts, *path)
    return value if isinstance(value, str) else None


def find_list(facts: Facts, *path: str) -> list[Any] | None:
    """Returns a fact that is a list, else None."""
    value = find_fact(facts, *path)
    return list(value) if isinstance(value, (list, tuple)) else None


def find_dict(facts: Facts, *path: str) -> dict[str, Any]:
    """Returns a fact that is a dict, else an empty dict."""
    value = find_fact(facts, *path)
    return dict(value) if isinstance(value, Mapping) else {}


def find_number(facts: Facts, *path: str) -> float | None:
    """Returns a fact that is a finite number, else None."""
    value = find_fact(facts, *path)
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if known and math.isfinite(value) else None


def find_records(facts: Facts, *path: str) -> list[dict[str, Any]]:
    """Returns the dicts in a fact that is a list, else an empty list."""
    return [dict(item) for item in find_list(facts, *path) or () if isinstance(item, Mapping)]


def find_backend(facts: Facts) -> str:
    """Returns the backend of Keras that the check asks: "jax", or "tensorflow" for any other."""
    return "jax" if find_text(facts, "keras", "backend") == "jax" else "tensorflow"


def name_backend(facts: Facts) -> str:
    """Returns the name of the backend that the check asks, "JAX" or "TensorFlow"."""
    return "JAX" if find_backend(facts) == "jax" else "TensorFlow"


def find_session(facts: Facts) -> dict[str, Any]:
    """Returns what this session's backend says: `imported`, `started`, its version and GPUs."""
    return find_dict(facts, find_backend(facts))


def list_jax_plugins(facts: Facts) -> dict[int, str]:
    """Returns the installed CUDA plugins of JAX: CUDA's major version, and the plugin's version."""
    found = find_dict(facts, "packages")
    names = {cuda: f"jax-cuda{cuda}-plugin" for cuda in (12, 13)}
    return {cuda: found[name] for cuda, name in names.items() if isinstance(found.get(name), str)}


def is_wsl(facts: Facts) -> bool:
    """Whether the system is Linux under WSL."""
    return "microsoft" in (find_text(facts, "platform", "release") or "").lower()


def is_linux(facts: Facts) -> bool:
    """Whether the system is known to be Linux."""
    return find_text(facts, "platform", "system") == "Linux"


def is_cuda_build(facts: Facts) -> bool | None:
    """Whether TensorFlow was built with CUDA, or None if not determined."""
    value = find_fact(facts, "build", "is_cuda_build")
    return value if isinstance(value, bool) else None


def hides_gpus(value: Any, gpus: int | None) -> bool:  # noqa: ANN401
    """Whether a value of CUDA_VISIBLE_DEVICES leaves no GPU.

    CUDA stops at the first invalid entry, so "-1", "" and "NoDevFiles" hide all GPUs, and so does
    an index beyond the last. A UUID is not checked and does not count as hiding.
    """
    if not isinstance(value, str):
        return False
    first = value.split(",")[0].strip()
    if not first.lstrip("+").isdigit():
        return first in ("", "-1", "NoDevFiles", "void", "none")
    return gpus is not None and 0 < gpus <= int(first)


def count_gpus(facts: Facts) -> int | None:
    """Counts the computer's GPUs by device nodes, or on the PCI bus; None if not determined."""
    nodes = find_list(facts, "driver", "device_nodes")
    return len(nodes or find_list(facts, "hardware", "nvidia_gpus") or ()) or None


def list_wheels(facts: Facts) -> list[str]:
    """Returns the installed distributions of the module `tensorflow`, with their versions."""
    packages = find_dict(facts, "packages")
    return [f"{name} {packages[name]}" for name in WHEELS if isinstance(packages.get(name), str)]


def describe_readings(facts: Facts, name: str) -> str:
    """Describes the values that C, Python and R read from an environment variable."""
    readings = find_dict(facts, "environment", name)
    shown = {"c": "C", "python": "Python", "r": "R"}
    texts = [
        f"{shown[who]} reads {'nothing' if value is None else repr(value)}"
        for who, value in readings.items()
        if who in shown
    ]
    return f"of {name} " + ", ".join(texts)


# Parts of the names of ops that do most of a network's computation; on a CPU such as _MklMatMul.
HEAVY = ("MatMul", "Einsum", "Conv1D", "Conv2D", "Conv3D", "CudnnRNN", "Xla")


def is_heavy(op: str) -> bool:
    """Whether an op type does most of a network's computation, judged by its name."""
    return any(name in op for name in HEAVY)


def is_simulated(facts: Facts) -> bool:
    """Whether the driver identifies itself as a stub for tests."""
    return any(find_fact(facts, part, "simulated") is True for part in ("cuda", "nvml"))


def parse_numbers(text: Any) -> tuple[int, ...]:  # noqa: ANN401
    """Parses a version's leading numbers: "2.21.0rc1" is (2, 21, 0); () if there are none."""
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", text) if isinstance(text, str) else None
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def find_release(facts: Facts) -> tuple[int, ...]:
    """Returns the version of the imported or installed TensorFlow as numbers; () if unknown."""
    texts = [find_text(facts, part, "version") for part in ("tensorflow", "build")]
    return next((numbers for text in texts if (numbers := parse_numbers(text))), ())


def list_capabilities(facts: Facts) -> list[tuple[int, ...]]:
    """Returns the GPUs' compute capabilities, such as (8, 6), from the driver or TensorFlow."""
    for path in (
        ("cuda", "devices"),
        ("listings", "preloaded", "gpus"),
        ("listings", "as it is", "gpus"),
    ):
        texts = [find_text(gpu, "capability") for gpu in find_records(facts, *path)]
        found = [numbers for text in texts if len(numbers := parse_numbers(text)) == 2]
        if found:
            return found
    return []


def count_listed(facts: Facts, variation: str) -> int | None:
    """Counts the GPUs that the backend listed in a child process; None without a list."""
    gpus = find_list(facts, "listings", variation, "gpus")
    return None if gpus is None else len(gpus)


def count_fresh(facts: Facts) -> int | None:
    """Counts the GPUs that the backend lists in a new gpukeras process; None if not tried."""
    preloaded = count_listed(facts, "preloaded")
    return count_listed(facts, "as it is") if preloaded is None else preloaded


def lists_none(facts: Facts) -> bool:
    """Whether the backend is known to list no GPU, here or in a new process."""
    physical, fresh = find_list(find_session(facts), "physical_gpus"), count_fresh(facts)
    return fresh == 0 if physical is None else physical == [] and not fresh


def find_logs(facts: Facts) -> list[dict[str, Any]]:
    """Returns the parsed TensorFlow logs of the child processes: listings first, then the proof."""
    parts = [*find_dict(facts, "listings").values(), find_fact(facts, "proof")]
    return [find_dict(part, "log") for part in parts if isinstance(part, Mapping)]


def find_errors(facts: Facts) -> list[str]:
    """Returns the errors of the computation in a child process, and relevant lines of its log."""
    stages = find_records(facts, "proof", "stages")
    errors = [find_text(part, "error") for part in (find_dict(facts, "proof"), *stages)]
    lines = find_list(facts, "proof", "log", "lines") or ()
    return [text for text in (*errors, *lines) if isinstance(text, str) and text]


def list_kernels(facts: Facts) -> list[tuple[int, int]]:
    """Returns the compute capabilities for which TensorFlow's build has code.

    "sm_86" is code for 8.6 and later minor versions; "compute_90" is code for 9.0, and PTX.
    """
    names = find_list(facts, "build", "cuda_compute_capabilities") or ()
    found = [re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[a-z]?", str(name)) for name in names]
    return [(int(match[1]), int(match[2])) for match in found if match]


def list_uncoded(facts: Facts) -> list[tuple[int, ...]]:
    """Returns the GPUs' compute capabilities without code in the build, which need PTX compiled."""
    built = list_kernels(facts)
    return [
        card
        for card in list_capabilities(facts)
        if built and not any(code[:1] == card[:1] and code <= card for code in built)
    ]
