"""Causes in the installed TensorFlow and its CUDA libraries (C1 to C8, C15, F3)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpukeras.diagnostics.rules.rule import REINSTALL, Cause, share
from gpukeras.system import known_issues
from gpukeras.system.facts import Facts, count_listed, is_linux, list_wheels, parse_numbers
from gpukeras.system.known_issues import OR_JAX

ARM = ("aarch64", "arm64")
# The wheel of a library, by the start of its name (wheels for CUDA 12).
OWNERS = {
    "libcudart": "nvidia-cuda-runtime-cu12",
    "libcublas": "nvidia-cublas-cu12",  # libcublasLt too
    "libcufft": "nvidia-cufft-cu12",
    "libcurand": "nvidia-curand-cu12",
    "libcusolver": "nvidia-cusolver-cu12",
    "libcusparse": "nvidia-cusparse-cu12",
    "libcudnn": "nvidia-cudnn-cu12",
    "libnccl": "nvidia-nccl-cu12",
    "libcupti": "nvidia-cuda-cupti-cu12",
    "libnvJitLink": "nvidia-nvjitlink-cu12",
    "libnvrtc": "nvidia-cuda-nvrtc-cu12",
}
# TensorFlow lists GPUs without these (its log shows which libraries it opens first).
OPTIONAL = ("libnccl", "libcupti", "libnvrtc", "libcurand")
MANY = 4  # from this many missing libraries of 7, none was installed


# The platform ------------------------------------------------------------------------------------


def detect_macos(facts: Facts) -> str | None:
    """Detects C4: macOS."""
    if facts.platform.system != "Darwin":
        return None
    broken = known_issues.METAL.applies(facts)
    metal = facts.packages.get("tensorflow-metal")
    return "macOS" + (
        f"; {broken}" if broken else f" with tensorflow-metal {metal}" if metal else ""
    )


def detect_windows(facts: Facts) -> str | None:
    """Detects C2: native Windows."""
    if facts.platform.system != "Windows" or facts.build.is_cuda_build is True:
        return None
    return f"Windows {facts.platform.release or ''}".strip()


# The build ---------------------------------------------------------------------------------------


def is_cpu_build(facts: Facts) -> bool:
    """Whether TensorFlow on Linux is known to be built without any GPU support."""
    rocm = facts.build.is_rocm_build is True
    return is_linux(facts) and facts.build.is_cuda_build is False and not rocm


def detect_arm_build(facts: Facts) -> str | None:
    """Detects C3: the wheel for 64-bit Arm, which is built without CUDA."""
    if not is_cpu_build(facts) or facts.platform.machine not in ARM:
        return None
    return "Linux on aarch64, and TensorFlow says is_cuda_build False"


def detect_two_wheels(facts: Facts) -> str | None:
    """Detects C6: two distributions installed `tensorflow`; the one without CUDA is active."""
    wheels = list_wheels(facts)
    if len(wheels) < 2 or not is_cpu_build(facts) or detect_arm_build(facts):
        return None
    return f"{' and '.join(wheels)} are both installed, and the module says is_cuda_build False"


def detect_conda_build(facts: Facts) -> str | None:
    """Detects C5: conda installed one of its CPU builds."""
    build = facts.installation.conda_build or ""
    # conda-forge: cpu_...; Anaconda's channel, without GPUs since 2.4: mkl_... and eigen_...
    if not build.startswith(("cpu", "mkl", "eigen")) or not is_cpu_build(facts):
        return None
    if detect_arm_build(facts) or detect_two_wheels(facts):
        return None
    return f"conda installed the build {build}, which says is_cuda_build False"


def detect_required_cpu(facts: Facts) -> str | None:
    """Detects F3: `py_require()` requested `tensorflow-cpu` on a computer with a GPU."""
    nodes = [*(facts.driver.device_nodes or ()), *(["/dev/dxg"] if facts.driver.dxg else [])]
    by_reticulate = facts.session.reticulate and facts.installation.uv is True
    cpu = facts.packages.get("tensorflow-cpu")
    if not nodes or not by_reticulate or not cpu or not is_cpu_build(facts):
        return None
    if any(detect(facts) for detect in (detect_arm_build, detect_two_wheels, detect_conda_build)):
        return None
    return (
        f"uv made this environment for the session with tensorflow-cpu {cpu}, although "
        f"{', '.join(nodes)} exists"
    )


def detect_cpu_build(facts: Facts) -> str | None:
    """Detects C1: a wheel without CUDA on a computer for which a CUDA wheel exists."""
    others = (detect_arm_build, detect_two_wheels, detect_conda_build, detect_required_cpu)
    if not is_cpu_build(facts) or any(detect(facts) for detect in others):
        return None
    installed = " and ".join(list_wheels(facts)) or "the installed TensorFlow"
    return f"{installed} says is_cuda_build False"


# CUDA libraries that were not installed ----------------------------------------------------------


def list_missing(facts: Facts) -> dict[str, str]:
    """Returns the missing CUDA libraries without which no GPU is listed, with the loader's reasons.

    Empty unless child processes ran and none listed a GPU. Read from a child's log, else files.
    """
    counts = [count_listed(facts, name) for name in facts.listings]
    if (
        facts.build.is_cuda_build is not True
        or not is_linux(facts)
        or 0 not in counts
        or any(counts)
    ):
        return {}
    tried = "preloaded" if count_listed(facts, "preloaded") == 0 else "as it is"
    logged = facts.listing(tried).log.missing_libraries
    absent = {name: "" for name, path in facts.libraries.items() if path == ""}
    known = select_needed(logged or absent)
    if known_issues.CUSOLVER.applies(facts) and (tried == "as it is" or len(known) > 1):
        known.pop("libcusolver.so.11", None)  # present, and preloaded if the others are
    return known


def select_needed(libraries: Mapping[str, str]) -> dict[str, str]:
    """Selects from missing libraries those without which TensorFlow lists no GPU."""
    return {
        name: why
        for name, why in libraries.items()
        if find_owner(name) and not name.startswith(OPTIONAL)
    }


def find_owner(library: str) -> str:
    """Returns the wheel that contains a library, or ""."""
    return next((wheel for stem, wheel in OWNERS.items() if library.startswith(stem)), "")


def list_absent_wheels(facts: Facts) -> list[str]:
    """Returns the CUDA wheels that TensorFlow's extra requires and that are not installed."""
    return [str(item.name) for item in facts.requirements if item.installed == ""]


def describe_no_libraries(facts: Facts) -> str | None:
    """Returns evidence that the CUDA libraries were never installed, or None."""
    missing = list_missing(facts)
    if len(missing) < MANY or not any(name.startswith("libcudart") for name in missing):
        return None
    absent = list_absent_wheels(facts)
    if not absent and known_issues.PIP_PATHS.applies(facts):
        return None
    wheels = f"; {len(absent)} nvidia wheels are not installed" if absent else ""
    return f"not found: {', '.join(sorted(missing))}{wheels}"


def detect_newer_toolkit(facts: Facts) -> str | None:
    """Detects C15: only CUDA 13 is installed, whose libraries have different names."""
    built = parse_numbers(facts.build.cuda_version)
    toolkits = facts.toolkits
    majors = [int(found) for folder in toolkits for found in re.findall(r"cuda-(\d+)", folder)]
    missing = describe_no_libraries(facts)
    if not missing or not built or not majors or min(majors) <= built[0]:
        return None
    return f"{', '.join(toolkits)} is there, TensorFlow wants CUDA {built[0]}; {missing}"


def detect_wrong_extra(facts: Facts) -> str | None:
    """Detects C8: an environment of `keras3::install_keras()`, which requested an unknown extra."""
    prefix = (facts.python.prefix or "").rstrip("/")
    missing = describe_no_libraries(facts)
    if not missing or not list_absent_wheels(facts) or detect_newer_toolkit(facts):
        return None
    if not re.search(r"[/\\]r-keras$", prefix):
        return None
    return f"keras3::install_keras() makes {prefix}; {missing}"


def detect_no_libraries(facts: Facts) -> str | None:
    """Detects C7: a CUDA build without its CUDA libraries."""
    if detect_newer_toolkit(facts) or detect_wrong_extra(facts):
        return None
    return describe_no_libraries(facts)


UNINSTALL = (
    "{python} -m pip uninstall -y tensorflow tensorflow-cpu tensorflow-gpu tf-nightly "
    "intel-tensorflow && "
)

CAUSES = share(
    Cause(
        "C4",
        "platform",
        "TensorFlow has no CUDA on macOS.",
        detect_macos,
        "Train on the CPU, or on Linux with an NVIDIA GPU. If TensorFlow cannot be imported, "
        "tensorflow-metal may be why: " + known_issues.METAL.fix,
    ),
    # tensorflow.org/install/pip; metadata of the 2.21.0 win_amd64 wheel
    Cause(
        "C2",
        "platform",
        "TensorFlow has no GPU support on native Windows since 2.11.",
        detect_windows,
        "Run R inside WSL2 (wsl --install), with TensorFlow installed there.",
    ),
    # metadata of the 2.21.0 aarch64 wheel
    Cause(
        "C3",
        "build",
        "TensorFlow's package for 64-bit Arm is built without CUDA.",
        detect_arm_build,
        "Use NVIDIA's container nvcr.io/nvidia/tensorflow, or a build from source." + OR_JAX,
    ),
    # keras3 (R) #1079
    Cause(
        "C6",
        "build",
        "Two TensorFlow packages overwrite each other in one environment.",
        detect_two_wheels,
        UNINSTALL + REINSTALL,
    ),
    # conda-forge blog, PR #52; docs.anaconda.com: TensorFlow
    Cause(
        "C5",
        "build",
        "conda installed a TensorFlow that is built for the CPU only.",
        detect_conda_build,
        "{python} -m pip uninstall -y tensorflow; " + REINSTALL + "; or CONDA_OVERRIDE_CUDA=12.6 "
        'conda install -c conda-forge "tensorflow=*=cuda*"',
    ),
    # R package tensorflow, get_py_requirements(): asks lspci and nvidia-smi -L
    Cause(
        "F3",
        "build",
        "R's keras3 or tensorflow chose tensorflow-cpu, because it found no driver tool.",
        detect_required_cpu,
        "Restart R; after library(keras3) and before Python starts: "
        'reticulate::py_require("tensorflow-cpu", action = "remove"); '
        'reticulate::py_require("tensorflow[and-cuda]=={version}")',
    ),
    # tf.sysconfig.get_build_info()
    Cause(
        "C1",
        "build",
        "This TensorFlow is built for the CPU only.",
        detect_cpu_build,
        "{python} -m pip uninstall -y tensorflow-cpu && " + REINSTALL,
    ),
    # names of the libraries: libcudart.so.13 is not libcudart.so.12
    Cause(
        "C15",
        "libraries",
        "The installed CUDA is newer than the one that TensorFlow needs.",
        detect_newer_toolkit,
        REINSTALL + ". The CUDA version that nvidia-smi shows is the highest that the driver "
        "supports, not what is installed.",
    ),
    # R package keras3, R/install.R: tensorflow[and-gpu]
    Cause(
        "C8",
        "libraries",
        "keras3::install_keras() installed TensorFlow without its CUDA libraries.",
        detect_wrong_extra,
        REINSTALL + '. The extra "and-gpu", which it asks for, does not exist.',
    ),
    # tensorflow.org/install/pip: the extra is `and-cuda`
    Cause(
        "C7",
        "libraries",
        "TensorFlow's CUDA libraries are not installed.",
        detect_no_libraries,
        REINSTALL,
    ),
    backend="tensorflow",
)
