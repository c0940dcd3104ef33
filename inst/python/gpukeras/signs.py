"""Signs of why TensorFlow does not use a GPU: one pure function each, facts to evidence or None.

Facts are a nested dict as `diagnosis.read_facts()` makes it. What is missing or odd in it is "not
determined", never "no": only an empty text or list says "looked, and it is not there".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, Any]

WHEELS = (  # distributions that all own the module `tensorflow`
    "tensorflow",
    "tensorflow-cpu",
    "tensorflow-gpu",
    "tensorflow-rocm",
    "intel-tensorflow",
    "tf-nightly",
    "tf-nightly-cpu",
)


# Facts, guarded ----------------------------------------------------------------------------------


def find_fact(facts: Facts, *path: str) -> Any:  # noqa: ANN401
    """The fact at a path of keys, or None."""
    value: Any = facts
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def find_text(facts: Facts, *path: str) -> str | None:
    """A fact that is a text, else None."""
    value = find_fact(facts, *path)
    return value if isinstance(value, str) else None


def find_list(facts: Facts, *path: str) -> list[Any] | None:
    """A fact that is a list, else None."""
    value = find_fact(facts, *path)
    return list(value) if isinstance(value, (list, tuple)) else None


def find_dict(facts: Facts, *path: str) -> dict[str, Any]:
    """A fact that is a dict, else an empty one."""
    value = find_fact(facts, *path)
    return dict(value) if isinstance(value, Mapping) else {}


def is_wsl(facts: Facts) -> bool:
    """Whether Windows runs this Linux."""
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

    CUDA stops at the first entry that is no GPU, so "-1", "" and "NoDevFiles" hide all, and so does
    an index beyond the last. A UUID cannot be judged here.
    """
    if not isinstance(value, str):
        return False
    first = value.split(",")[0].strip()
    if not first.lstrip("+").isdigit():
        return first in ("", "-1", "NoDevFiles", "void", "none")
    return gpus is not None and 0 < gpus <= int(first)


def count_gpus(facts: Facts) -> int | None:
    """GPUs of the computer by device nodes, or by the PCI bus; None if not determined."""
    nodes = find_list(facts, "driver", "device_nodes")
    return len(nodes or find_list(facts, "hardware", "nvidia_gpus") or ()) or None


# Detectors ---------------------------------------------------------------------------------------


def detect_no_gpu(facts: Facts) -> str | None:
    """A1: nothing on the bus, and no other sign of a GPU (WSL and Jetson have none on the bus)."""
    absent = find_fact(facts, "hardware", "nvidia_gpus") == []
    signs = [find_fact(facts, "driver", key) for key in ("version", "device_nodes", "dxg", "tegra")]
    if not absent or any(signs) or is_wsl(facts) or not is_linux(facts):
        return None
    return "the PCI bus lists no display device of NVIDIA (vendor 0x10de, class 0x03)"


def detect_no_driver(facts: Facts) -> str | None:
    """A2: a GPU on the bus, but no kernel module and no device nodes."""
    gpus = find_list(facts, "hardware", "nvidia_gpus")
    no_module = find_text(facts, "driver", "version") == ""
    if not gpus or not no_module or find_list(facts, "driver", "device_nodes") != []:
        return None
    drivers = {find_text(gpu, "driver") or "none" for gpu in gpus if isinstance(gpu, Mapping)}
    return (
        f"{len(gpus)} NVIDIA GPU on the PCI bus with kernel driver {', '.join(sorted(drivers))}; "
        "/proc/driver/nvidia/version and /dev/nvidia* are missing"
    )


def detect_container(facts: Facts) -> str | None:
    """B1: a container in which no GPU was mounted."""
    marker = find_text(facts, "container", "marker")
    elsewhere = find_fact(facts, "hardware", "nvidia_gpus") == [] or find_fact(
        facts, "driver", "dxg"
    )
    if not marker or elsewhere or find_list(facts, "driver", "device_nodes") != []:
        return None
    promised = find_text(facts, "container", "nvidia_visible_devices") or "unset"
    return (
        f"{marker} marks a container, /dev/nvidia* is missing, NVIDIA_VISIBLE_DEVICES is {promised}"
    )


def detect_wsl(facts: Facts) -> str | None:
    """B4: WSL without the parts through which Windows lends its GPU."""
    needed = {"dxg": "/dev/dxg", "wsl_libcuda": "/usr/lib/wsl/lib/libcuda.so.1"}
    missing = [name for key, name in needed.items() if find_fact(facts, "driver", key) is False]
    if not is_wsl(facts) or not missing:
        return None
    return f"this is WSL, and {' and '.join(missing)} is missing"


def detect_slurm(facts: Facts) -> str | None:
    """B6: a Slurm job that was given no GPU."""
    job = find_text(facts, "slurm", "job_id")
    if not job or find_text(facts, "slurm", "gpus") != "":
        return None
    reading = find_text(facts, "environment", "CUDA_VISIBLE_DEVICES", "c")
    without = find_list(facts, "driver", "device_nodes") == []
    if not without and reading not in ("", "NoDevFiles"):
        return None
    return f"Slurm job {job} has no SLURM_JOB_GPUS, SLURM_STEP_GPUS or SLURM_GPUS_ON_NODE"


def detect_no_tensorflow(facts: Facts) -> str | None:
    """C0: TensorFlow cannot be imported."""
    return find_text(facts, "tensorflow", "error") or None


def detect_cpu_build(facts: Facts) -> str | None:
    """C1: a wheel without CUDA on a computer for which there is one."""
    if is_cuda_build(facts) is not False or find_fact(facts, "build", "is_rocm_build") is True:
        return None
    if not is_linux(facts) or find_text(facts, "platform", "machine") in ("aarch64", "arm64"):
        return None
    installed = " and ".join(_installed_wheels(facts)) or "the installed TensorFlow"
    return f"{installed} says is_cuda_build False"


def detect_arm_build(facts: Facts) -> str | None:
    """C3: the wheel for 64-bit Arm, which has no CUDA."""
    arm = find_text(facts, "platform", "machine") in ("aarch64", "arm64")
    if not is_linux(facts) or not arm or is_cuda_build(facts) is not False:
        return None
    return "Linux on aarch64, and TensorFlow says is_cuda_build False"


def detect_windows(facts: Facts) -> str | None:
    """C2: native Windows."""
    if find_text(facts, "platform", "system") != "Windows" or is_cuda_build(facts) is True:
        return None
    return f"Windows {find_text(facts, 'platform', 'release') or ''}".strip()


def detect_macos(facts: Facts) -> str | None:
    """C4: macOS."""
    if find_text(facts, "platform", "system") != "Darwin":
        return None
    metal = find_text(facts, "packages", "tensorflow-metal")
    return "macOS" + (f" with tensorflow-metal {metal}" if metal else "")


def detect_two_wheels(facts: Facts) -> str | None:
    """C6: two distributions wrote the module `tensorflow`; the one without CUDA won."""
    wheels = _installed_wheels(facts)
    if len(wheels) < 2 or is_cuda_build(facts) is not False:
        return None
    return f"{' and '.join(wheels)} are both installed, and the module says is_cuda_build False"


def detect_missing_libraries(facts: Facts) -> str | None:
    """C7: a CUDA build, and CUDA libraries that are nowhere on the loader's path."""
    if is_cuda_build(facts) is not True or not is_linux(facts):
        return None
    libraries = find_dict(facts, "libraries")
    missing = sorted(name for name, path in libraries.items() if path == "")
    return f"not found: {', '.join(missing)}" if missing else None


def detect_cusolver(facts: Facts) -> str | None:
    """C9: TensorFlow 2.21 lost its own cusolver folder from the paths it searches."""
    path = find_text(facts, "libraries", "libcusolver.so.11") or ""
    lost = find_fact(facts, "build", "searches_cusolver") is False
    if is_cuda_build(facts) is not True or not lost or "/nvidia/cusolver/" not in path:
        return None
    return f"{path} is there, but libtensorflow_framework does not search that folder"


def detect_hidden_by_seed(facts: Facts) -> str | None:
    """D2: the R package tensorflow set CUDA_VISIBLE_DEVICES to -1 while setting a seed."""
    reading = find_text(facts, "environment", "CUDA_VISIBLE_DEVICES", "c")
    if reading != "-1" or find_fact(facts, "session", "tensorflow_r_loaded") is not True:
        return None
    return f"the R package tensorflow is loaded, and {_three_readings(facts)}"


def detect_hidden_by_variable(facts: Facts) -> str | None:
    """D1: CUDA_VISIBLE_DEVICES leaves no GPU in at least one of its readings."""
    readings = find_dict(facts, "environment", "CUDA_VISIBLE_DEVICES")
    hidden = any(hides_gpus(value, count_gpus(facts)) for value in readings.values())
    if not hidden or detect_hidden_by_seed(facts):
        return None
    return _three_readings(facts)


def detect_hidden_in_process(facts: Facts) -> str | None:
    """D3: TensorFlow lists GPUs that this process may not use."""
    physical = find_list(facts, "tensorflow", "physical_gpus")
    visible = find_list(facts, "tensorflow", "visible_gpus")
    if not physical or visible is None or len(visible) >= len(physical):
        return None
    return f"TensorFlow lists {len(physical)} GPU, {len(visible)} of them visible in this process"


def detect_backend(facts: Facts) -> str | None:
    """D6: Keras computes with something else."""
    backend = find_text(facts, "keras", "backend")
    if not backend or backend == "tensorflow":
        return None
    return f"Keras' backend is {backend}"


def detect_failed_proof(facts: Facts) -> str | None:
    """P1: a GPU is listed, and computing on it failed."""
    if find_fact(facts, "proof", "ok") is not False:
        return None
    return find_text(facts, "proof", "error") or "the test computation failed without a message"


def _installed_wheels(facts: Facts) -> list[str]:
    packages = find_dict(facts, "packages")
    return [f"{name} {packages[name]}" for name in WHEELS if isinstance(packages.get(name), str)]


def _three_readings(facts: Facts) -> str:
    readings = find_dict(facts, "environment", "CUDA_VISIBLE_DEVICES")
    shown = {"c": "C", "python": "Python", "r": "R"}
    texts = [
        f"{shown[who]} reads {'nothing' if value is None else repr(value)}"
        for who, value in readings.items()
        if who in shown
    ]
    return "of CUDA_VISIBLE_DEVICES " + ", ".join(texts)
