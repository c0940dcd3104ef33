"""The causes of an unused GPU as data; the first one that is detected is the root.

The order is hardware, driver, container, build, libraries, visibility: mending a later cause is of
no use while an earlier one stands. A Slurm job without a GPU comes before the missing hardware of
the node that it was sent to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import signs
from .signs import Facts, find_text

REINSTALL = '{python} -m pip install "tensorflow[and-cuda]=={version}"'
UNLISTED = ("unlisted", "unknown")  # situations: see judgement.name_situation()


@dataclass(frozen=True)
class Cause:
    """One reason why a GPU is not used.

    Args:
        id: Row of the project's table of causes, such as "C7".
        title: The cause, one sentence; "{evidence}" stands for the evidence.
        detect: Facts to evidence, or None where the cause is not proven.
        fix: What to do, to copy; "{python}" and "{version}" are filled in.
        source: Where this is known from.
        severity: "gpu" (no GPU), or "error" (gpukeras does not work at all).
        explains: Situations in which this can be the root cause; elsewhere it is only a finding.
    """

    id: str
    title: str
    detect: Callable[[Facts], str | None]
    fix: str
    source: str
    severity: str = "gpu"
    explains: tuple[str, ...] = UNLISTED


CAUSES: Sequence[Cause] = (
    Cause(
        "C4",
        "TensorFlow has no CUDA on macOS.",
        signs.detect_macos,
        "Train on the CPU, or on Linux with an NVIDIA GPU. tensorflow-metal breaks with TensorFlow "
        "2.18 and later: {python} -m pip uninstall tensorflow-metal",
        "tensorflow #81987, #84167",
    ),
    Cause(
        "C2",
        "TensorFlow has no GPU support on native Windows since 2.11.",
        signs.detect_windows,
        "Run R inside WSL2 (wsl --install), with TensorFlow installed there.",
        "tensorflow.org/install/pip",
    ),
    Cause(
        "B6",
        "This Slurm job was given no GPU.",
        signs.detect_slurm,
        "Ask for one: srun --gres=gpu:1 --pty R",
        "slurm.schedmd.com/gres.html",
    ),
    Cause(
        "A1",
        "This computer has no NVIDIA GPU.",
        signs.detect_no_gpu,
        "Train on the CPU, or on a computer with an NVIDIA GPU.",
        "pci.ids: vendor 10de, class 03",
    ),
    Cause(
        "B4",
        "WSL does not show the GPU of Windows.",
        signs.detect_wsl,
        "Update the NVIDIA driver in Windows, run wsl --update, and install no driver inside WSL.",
        "NVIDIA, CUDA on WSL User Guide",
    ),
    Cause(
        "A2",
        "There is an NVIDIA GPU, but its driver is not loaded.",
        signs.detect_no_driver,
        "Install the NVIDIA driver, 525.60.13 or later, and reboot (Ubuntu: sudo ubuntu-drivers "
        "install; Debian: sudo apt install nvidia-driver). In a container: on the host.",
        "NVIDIA, CUDA minor version compatibility",
    ),
    Cause(
        "B1",
        "This container was given no GPU.",
        signs.detect_container,
        "Start it with one: docker run --gpus all ... (podman: --device nvidia.com/gpu=all; "
        "Kubernetes: the resource nvidia.com/gpu: 1)",
        "NVIDIA Container Toolkit documentation",
    ),
    Cause(
        "C0",
        "TensorFlow cannot be imported.",
        signs.detect_no_tensorflow,
        '{python} -m pip install "tensorflow[and-cuda]"',
        "tensorflow.org/install/pip",
        severity="error",
    ),
    Cause(
        "C6",
        "Two TensorFlow packages overwrite each other in one environment.",
        signs.detect_two_wheels,
        "{python} -m pip uninstall -y tensorflow tensorflow-cpu tensorflow-gpu tf-nightly && "
        + REINSTALL,
        "keras3 (R) #1079",
    ),
    Cause(
        "C3",
        "TensorFlow's package for 64-bit Arm is built without CUDA.",
        signs.detect_arm_build,
        "Use NVIDIA's container nvcr.io/nvidia/tensorflow, or a build from source.",
        "metadata of the 2.21.0 aarch64 wheel",
    ),
    Cause(
        "C1",
        "This TensorFlow is built for the CPU only.",
        signs.detect_cpu_build,
        "{python} -m pip uninstall -y tensorflow-cpu && " + REINSTALL,
        "tf.sysconfig.get_build_info()",
    ),
    Cause(
        "C7",
        "TensorFlow's CUDA libraries are not installed.",
        signs.detect_missing_libraries,
        REINSTALL,
        "tensorflow.org/install/pip: the extra is `and-cuda`",
    ),
    Cause(
        "C9",
        "TensorFlow 2.21 does not find its own libcusolver.",
        signs.detect_cusolver,
        'Before anything imports TensorFlow: reticulate::py_run_string("import ctypes; '
        "ctypes.CDLL('{cusolver}', mode=ctypes.RTLD_GLOBAL)\"); or install tensorflow 2.20.",
        "tensorflow PR #112973, #117916",
    ),
    Cause(
        "D2",
        "tensorflow::set_random_seed() switched the GPU off.",
        signs.detect_hidden_by_seed,
        "Restart R, then tensorflow::set_random_seed(seed, disable_gpu = FALSE), or "
        "gpu_setup(seed = seed).",
        "R package tensorflow, set_random_seed(disable_gpu = TRUE)",
    ),
    Cause(
        "D1",
        "CUDA_VISIBLE_DEVICES hides every GPU.",
        signs.detect_hidden_by_variable,
        'Restart R and unset it before Python starts: Sys.unsetenv("CUDA_VISIBLE_DEVICES"); look '
        "for it in .Renviron, .Rprofile and the shell's start files.",
        "CUDA C++ Programming Guide, CUDA environment variables",
    ),
    Cause(
        "D3",
        "The GPU is hidden from TensorFlow in this session.",
        signs.detect_hidden_in_process,
        'Restart R, and leave out gpu_setup(device = "cpu") or set_visible_devices().',
        "tf.config.set_visible_devices()",
        explains=("hidden",),
    ),
    Cause(
        "D6",
        "Keras does not compute with TensorFlow.",
        signs.detect_backend,
        'Restart R, then Sys.setenv(KERAS_BACKEND = "tensorflow") before Python starts.',
        "keras.io/getting_started: configuring your backend",
        severity="error",
        explains=("unlisted", "unknown", "hidden", "failed", "untested", "works"),
    ),
    Cause(
        "P1",
        "A GPU is listed, but computing on it failed: {evidence}",
        signs.detect_failed_proof,
        "Update the NVIDIA driver; close other programs that use the GPU (nvidia-smi lists them); "
        "then gpu_check() again.",
        "a matrix product on that device in a child process",
        explains=("failed",),
    ),
)


def fill_fix(fix: str, facts: Facts) -> str:
    """A fix with this session's Python, TensorFlow version and library in place."""
    version = find_text(facts, "tensorflow", "version") or ""
    known = re.fullmatch(r"\d+\.\d+\.\d+", version)
    if not known:
        fix = fix.replace("=={version}", "")
    executable = find_text(facts, "python", "executable")
    python = f'"{executable}"' if executable else "python"
    cusolver = find_text(facts, "libraries", "libcusolver.so.11") or ""
    filled = fix.replace("{version}", version).replace("{python}", python)
    return filled.replace("{cusolver}", cusolver)
