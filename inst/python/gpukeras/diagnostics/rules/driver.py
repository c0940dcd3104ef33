"""Causes in the driver: not loaded, too old, or unlike its libraries (A2 to A9, A15)."""

from __future__ import annotations

import re

from gpukeras.diagnostics.rules.hardware import (
    STUB_LIBRARY,
    describe_cuinit,
    describe_nvml,
    driver_works,
)
from gpukeras.diagnostics.rules.packages import is_cpu_build
from gpukeras.diagnostics.rules.rule import AT_FIRST_USE, UNLISTED, Cause
from gpukeras.system.facts import (
    Facts,
    find_errors,
    is_wsl,
    list_capabilities,
    list_uncoded,
    lists_none,
    parse_numbers,
)
from gpukeras.system.known_issues import format_version

# CUresult of cuda.h
OPERATING_SYSTEM, NOT_READY, MISMATCH, NO_COMPAT, UNKNOWN = 304, 802, 803, 804, 999
# nvmlReturn_t of nvml.h
NO_PERMISSION, NOT_LOADED, LIBRARY_MISMATCH, NVML_UNKNOWN = 4, 9, 18, 999
# Codes of cuInit that identify their cause; 805 to 807 belong to MPS.
TELLING = (NOT_READY, MISMATCH, NO_COMPAT, 805, 806, 807)

CUDA_OF_BUILDS = (12, 0)  # CUDA of all TensorFlow packages from 2.15 to 2.21
WSL_LIBRARIES = "/usr/lib/wsl/"
NO_JIT = re.compile(
    r"CUDA_ERROR_UNSUPPORTED_PTX_VERSION|PTX was compiled with an unsupported toolchain"
)


# Facts, for this and later families ------------------------------------------------------------


def list_denied(facts: Facts) -> list[str]:
    """Returns the device nodes without access, if the GPU needs one of them."""
    access = facts.driver.access
    denied = [node for node, state in access.items() if state == "denied"]
    cards = [node for node in access if re.fullmatch(r"/dev/nvidia\d+", node)]
    shared = [node for node in denied if node not in cards]  # nodes that every GPU needs
    return denied if shared or (cards and set(cards) <= set(denied)) else []


def is_cut_off(facts: Facts) -> bool:
    """Whether a container has device nodes to which it lost access."""
    cut = facts.nvml.init in (NO_PERMISSION, NVML_UNKNOWN)
    nodes = facts.driver.device_nodes != ()
    return bool(facts.container.marker) and cut and nodes


def find_foreign_library(facts: Facts) -> str:
    """Returns the file of a libcuda that is not from Windows, in WSL; else ""."""
    path = facts.cuda.path or ""
    if not is_wsl(facts) or path.startswith(WSL_LIBRARIES) or detect_compat(facts):
        return ""
    return path if facts.cuda.init not in (None, 0, NOT_READY, STUB_LIBRARY) else ""


def find_build_cuda(facts: Facts) -> tuple[int, ...]:
    """Returns the CUDA version of TensorFlow's build, such as (12, 5)."""
    return parse_numbers(facts.build.cuda_version)[:2]


def find_driver_cuda(facts: Facts) -> tuple[int, int] | None:
    """Returns the newest CUDA version that the driver supports, such as (12, 4)."""
    version = facts.cuda.driver_version or facts.nvml.cuda_version
    return (version // 1000, version % 1000 // 10) if version else None


def names_cause(facts: Facts) -> bool:
    """Whether the driver's libraries return a code that identifies its cause."""
    mismatch = facts.nvml.init == LIBRARY_MISMATCH
    return mismatch or facts.cuda.init in TELLING


def describe_versions(facts: Facts) -> str:
    """Describes the version of the loaded kernel module and the file of libcuda."""
    text = facts.driver.version or ""
    module = re.search(r"\d+\.\d+(\.\d+)?", text)
    path = facts.cuda.path
    parts = [f"the loaded kernel module is {module.group()}"] if module else []
    return "; ".join([*parts, *([f"libcuda is {path}"] if path else [])])


# Causes ------------------------------------------------------------------------------------------


def detect_no_driver(facts: Facts) -> str | None:
    """Detects A2: a GPU on the bus, but no kernel module."""
    gpus = facts.hardware.nvidia_gpus
    loaded = facts.driver.version != "" or driver_works(facts)
    if not gpus or loaded or is_wsl(facts):
        return None
    no_nodes = facts.driver.device_nodes == ()
    says_so = facts.nvml.init == NOT_LOADED
    if names_cause(facts) or not (no_nodes or says_so):
        return None
    drivers = sorted({gpu.driver or "none" for gpu in gpus})
    missing = "/proc/driver/nvidia/version" + (" and /dev/nvidia* are" if no_nodes else " is")
    return (
        f"{len(gpus)} NVIDIA GPU on the PCI bus with kernel driver {', '.join(drivers)}; "
        f"{missing} missing"
    )


def detect_old_driver(facts: Facts) -> str | None:
    """Detects A3: the driver is older than the CUDA of TensorFlow's build by a major version."""
    # The fix for a CPU build is a CUDA build, which would then use this driver.
    planned = is_cpu_build(facts) and driver_works(facts)
    if facts.build.is_cuda_build is False and not planned:
        return None
    newest, built = find_driver_cuda(facts), find_build_cuda(facts) or CUDA_OF_BUILDS
    if newest is None or newest[0] >= built[0]:
        return None
    driver = facts.nvml.driver
    return (
        f"the driver{f' {driver}' if driver else ''} runs CUDA up to {format_version(newest)}, "
        f"TensorFlow {'needs' if planned else 'is built with'} CUDA {format_version(built)}"
    )


def detect_no_jit(facts: Facts) -> str | None:
    """Detects A4: the driver cannot compile this build's PTX, its only code for the card."""
    if detect_old_driver(facts) or facts.build.is_cuda_build is False:
        return None
    said = next((text for text in find_errors(facts) if NO_JIT.search(text)), "")
    newest, built = find_driver_cuda(facts), find_build_cuda(facts)
    older = newest is not None and bool(built) and newest < built
    if not said and not (older and list_uncoded(facts)):
        return None
    capability = ", ".join(format_version(found) for found in list_capabilities(facts))
    return said[:200] or (
        f"compute capability {capability} needs PTX of CUDA {format_version(built)} to be "
        f"compiled, the driver compiles it up to CUDA {format_version(newest or ())}"
    )


def detect_mismatch(facts: Facts) -> str | None:
    """Detects A5: the driver's libraries and the loaded kernel module differ in version."""
    code = facts.cuda.init
    named_otherwise = code in TELLING and code != MISMATCH
    if named_otherwise or detect_compat(facts) or find_foreign_library(facts):
        return None
    codes = [describe_cuinit(facts)] if code == MISMATCH else []
    if facts.nvml.init == LIBRARY_MISMATCH:
        codes.append(describe_nvml(LIBRARY_MISMATCH))
    return "; ".join([*codes, describe_versions(facts)]).rstrip("; ") if codes else None


def detect_broken_uvm(facts: Facts) -> str | None:
    """Detects A6: the kernel module nvidia_uvm, which only CUDA needs, is missing or broken."""
    missing = facts.driver.access.get("/dev/nvidia-uvm") == "missing"
    codes = (UNKNOWN, OPERATING_SYSTEM) if missing else (UNKNOWN,)
    shown = facts.nvml.init == 0
    if facts.cuda.init not in codes or not shown or is_wsl(facts) or list_denied(facts):
        return None
    node = "/dev/nvidia-uvm is missing" if missing else "/dev/nvidia-uvm is there"
    return f"{describe_cuinit(facts)} while NVML works; {node}"


def detect_compat(facts: Facts) -> str | None:
    """Detects A7: NVIDIA's forward compatibility library on an unsupported card."""
    code, path = facts.cuda.init, facts.cuda.path or ""
    if code != NO_COMPAT and not (code == MISMATCH and "/compat/" in path):
        return None
    return _describe_file(facts)


def detect_no_fabric(facts: Facts) -> str | None:
    """Detects A8: a computer with NVSwitch whose fabric manager is not running."""
    return describe_cuinit(facts) if facts.cuda.init == NOT_READY else None


def detect_denied(facts: Facts) -> str | None:
    """Detects A9: this user has no permission to open the device nodes."""
    if names_cause(facts) or is_wsl(facts) or is_cut_off(facts) or detect_no_driver(facts):
        return None
    works, denied = driver_works(facts), list_denied(facts)
    if denied and not works:
        return f"no permission to read and write {', '.join(denied)}"
    refused = facts.nvml.init == NO_PERMISSION
    # Not every TensorFlow needs NVML: if CUDA works, TensorFlow's list of GPUs decides.
    unused = not works or lists_none(facts) or is_cpu_build(facts)
    return describe_nvml(NO_PERMISSION) if refused and unused else None


def detect_stub_library(facts: Facts) -> str | None:
    """Detects A15: libcuda is a CUDA toolkit's stub for linking, which does not call the driver."""
    if facts.cuda.init != STUB_LIBRARY or names_cause(facts) or detect_denied(facts):
        return None
    if is_wsl(facts):
        lent = (facts.driver.dxg, facts.driver.wsl_libcuda)
        return None if False in lent else _describe_file(facts)
    inside = facts.container.marker or facts.driver.version == ""
    withheld = facts.driver.device_nodes == () and inside
    withheld = withheld and not facts.nvml.count
    return None if withheld or detect_no_driver(facts) else _describe_file(facts)


def _describe_file(facts: Facts) -> str:
    path = facts.cuda.path
    return describe_cuinit(facts) + (f"; libcuda is {path}" if path else "")


CAUSES = (
    # NVIDIA, CUDA Toolkit Release Notes, CUDA Driver; tensorflow.org/install/pip
    Cause(
        "A2",
        "driver",
        "There is an NVIDIA GPU, but its driver is not loaded.",
        detect_no_driver,
        "Install the NVIDIA driver, 525.60.13 or later, and reboot (Ubuntu: sudo ubuntu-drivers "
        "install; Debian: sudo apt install nvidia-driver). In a container: on the host. Is it "
        "installed already: sudo modprobe nvidia says what keeps it from loading (with Secure Boot "
        "it must be signed).",
    ),
    # tensorflow #44301, #52530
    Cause(
        "A5",
        "driver",
        "The NVIDIA driver was upgraded, but the old one is still loaded.",
        detect_mismatch,
        "Reboot. In a container: it brings libraries of another driver; remove them (packages "
        "libcuda1, libnvidia-*), so that those of the host are used.",
    ),
    # tensorflow #53341, pytorch #49081
    Cause(
        "A6",
        "driver",
        "The driver's module for CUDA, nvidia_uvm, is missing or broken (often after suspend).",
        detect_broken_uvm,
        "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm && sudo nvidia-modprobe -u -c 0; "
        "or reboot. In a container: start it with --gpus all, or --device /dev/nvidia-uvm.",
    ),
    # NVIDIA, CUDA Compatibility, Forward Compatibility
    Cause(
        "A7",
        "driver",
        "A forward compatibility libcuda is in the way.",
        detect_compat,
        "Take the folder of that libcuda (often /usr/local/cuda/compat) out of LD_LIBRARY_PATH, or "
        "remove the package cuda-compat-*; then restart R.",
    ),
    # NVIDIA, Fabric Manager User Guide; CUDA Driver API, CUDA_ERROR_SYSTEM_NOT_READY
    Cause(
        "A8",
        "driver",
        "The NVSwitch fabric of this computer is not running.",
        detect_no_fabric,
        "An administrator: sudo systemctl enable --now nvidia-fabricmanager (its version must be "
        "the driver's).",
    ),
    # CUDA Driver API, CUDA_ERROR_STUB_LIBRARY
    Cause(
        "A15",
        "driver",
        "The stub libcuda of a CUDA toolkit is found before the driver's own.",
        detect_stub_library,
        "Take the toolkit's folder stubs (often /usr/local/cuda/lib64/stubs) out of "
        "LD_LIBRARY_PATH, and remove a link libcuda.so.1 that leads there (ldconfig -p | grep "
        "libcuda shows it); then restart R.",
    ),
    # NVIDIA driver README, module parameters NVreg_DeviceFileGID and NVreg_DeviceFileMode
    Cause(
        "A9",
        "driver",
        "This user has no permission for the GPU's device nodes.",
        detect_denied,
        'sudo usermod -aG video,render "$USER", then log in anew (ls -l /dev/nvidia* shows the '
        "group). On a cluster: ask for a GPU in the job.",
    ),
    # NVIDIA, CUDA Compatibility, minor version compatibility
    Cause(
        "A3",
        "first use",
        "The NVIDIA driver is too old for TensorFlow with CUDA.",
        detect_old_driver,
        "Update the NVIDIA driver to {driver:525.60.13} or later, and reboot. In WSL: the driver "
        "in Windows.",
        explains=(*AT_FIRST_USE, *UNLISTED),
        backend="tensorflow",
    ),
    # NVIDIA, CUDA Compatibility, PTX; CUDA Driver API, CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    Cause(
        "A4",
        "first use",
        "The NVIDIA driver is too old to compile TensorFlow's kernels for this card.",
        detect_no_jit,
        "Update the NVIDIA driver to {driver:555} or later, and reboot. In WSL: the driver in "
        "Windows.",
        backend="tensorflow",
    ),
)
