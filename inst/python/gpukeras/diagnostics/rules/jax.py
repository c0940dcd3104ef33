"""Causes in JAX, its CUDA plugin and its settings (J1 to J10)."""

from __future__ import annotations

from gpukeras.diagnostics.rules.driver import find_driver_cuda
from gpukeras.diagnostics.rules.imports import fails_otherwise
from gpukeras.diagnostics.rules.libraries import PATH, WITHOUT_PATH, describe_path
from gpukeras.diagnostics.rules.rule import AT_FIRST_USE, REINSTALL_JAX, UNLISTED, Cause, share
from gpukeras.diagnostics.rules.visibility import describe_hiding
from gpukeras.system.facts import (
    Facts,
    count_listed,
    describe_readings,
    is_linux,
    list_jax_plugins,
    parse_numbers,
)
from gpukeras.system.known_issues import format_version

PLATFORMS = "JAX_PLATFORMS"
PREALLOCATE, ALLOCATOR = "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR"
OFF = ("false", "False", "0")  # jaxlib, xla_client.py, generate_pjrt_gpu_plugin_options()
GPU_PLATFORMS = ("cuda", "gpu")
STARTED_ALL = ""  # JAX chooses among all platforms


# What JAX said, for this and other families ------------------------------------------------------


def find_said(facts: Facts, name: str) -> str:
    """Returns a line that JAX printed when it listed its GPUs (see `jax_log`), or ""."""
    return getattr(facts.listing("as it is").log.jax, name) or ""


def find_start_error(facts: Facts) -> str:
    """Returns the error with which JAX ended when it started its GPUs, or ""."""
    tried = facts.listing("as it is")
    if facts.backend != "jax" or tried.gpus != ():
        return ""
    return tried.error or ""


def read_jax(facts: Facts, name: str) -> str | None:
    """Returns the value of a variable that JAX reads when it is imported, or None."""
    readings = facts.readings(name)
    value = readings.get("python")
    return readings.get("c") if value is None else value


# JAX itself --------------------------------------------------------------------------------------


def detect_other_system(facts: Facts) -> str | None:
    """Detects J1: an operating system for which JAX has no CUDA."""
    system = facts.platform.system
    return system if system in ("Darwin", "Windows") else None


def detect_no_jax(facts: Facts) -> str | None:
    """Detects J2: JAX cannot be imported."""
    if fails_otherwise(facts) and facts.import_error.kind != "other":
        return None
    own = facts.jax.error
    failed = facts.listing("as it is").ok is False
    listed = facts.listing("as it is").gpus
    fresh = facts.listing("as it is").error if failed and listed is None else ""
    return own or fresh or None


def detect_no_plugin(facts: Facts) -> str | None:
    """Detects J3: JAX without a CUDA plugin."""
    jaxlib = facts.packages.get("jaxlib")
    if not is_linux(facts) or not jaxlib or list_jax_plugins(facts):
        return None
    if facts.listing("as it is").gpus:  # another build, such as conda's
        return None
    return f"jaxlib {jaxlib} is installed, and neither jax-cuda12-plugin nor jax-cuda13-plugin"


def detect_old_driver(facts: Facts) -> str | None:
    """Detects J4: the driver is older than the CUDA of JAX's plugin by a major version."""
    newest, plugins = find_driver_cuda(facts), list_jax_plugins(facts)
    if newest is None or not plugins or newest[0] >= min(plugins):
        return None
    driver = facts.nvml.driver
    return (
        f"the driver{f' {driver}' if driver else ''} runs CUDA up to {format_version(newest)}, "
        f"jax-cuda{min(plugins)}-plugin needs CUDA {min(plugins)}"
    )


# Variables ---------------------------------------------------------------------------------------


def detect_platforms(facts: Facts) -> str | None:
    """Detects J5: JAX_PLATFORMS or JAX's configuration leaves out GPUs."""
    own, read = facts.jax.platforms, read_jax(facts, PLATFORMS)
    value = read if own is None else own
    chosen = [name.strip() for name in (value or STARTED_ALL).split(",")]
    if not value or any(name in GPU_PLATFORMS for name in chosen) or describe_hiding(facts):
        return None
    if value == read:
        return describe_readings(facts, PLATFORMS)
    return f"jax.config.jax_platforms is {value!r} in this session"


# Libraries ---------------------------------------------------------------------------------------


def detect_path_clash(facts: Facts) -> str | None:
    """Detects J6: libraries on LD_LIBRARY_PATH precede those of the wheels."""
    listed = count_listed(facts, WITHOUT_PATH)
    if count_listed(facts, "as it is") != 0 or not listed:
        return None
    return f"{describe_path(facts)}; JAX lists no GPU with it, and {listed} without {PATH}"


def detect_unequal_versions(facts: Facts) -> str | None:
    """Detects J7: JAX's CUDA plugin and jaxlib have different versions."""
    own = facts.packages.get("jaxlib")
    names = [f"jax-cuda{cuda}-{part}" for cuda in (12, 13) for part in ("plugin", "pjrt")]
    other = [
        f"{name} {version}"
        for name in names
        if (version := facts.packages.get(name)) is not None
        and parse_numbers(version) != parse_numbers(own)
    ]
    if not own or not other or detect_path_clash(facts):
        return None
    said = find_said(facts, "plugin_version")
    return f"{' and '.join(other)} with jaxlib {own}" + (f"; JAX's warning: {said}" if said else "")


def detect_lacking_library(facts: Facts) -> str | None:
    """Detects J8: JAX's plugin does not find one of CUDA's libraries, or finds an older one."""
    if detect_path_clash(facts) or detect_unequal_versions(facts):
        return None
    said = find_said(facts, "library")
    return f"JAX's log: {said}" if said else None


# Memory ------------------------------------------------------------------------------------------


def detect_two_backends(facts: Facts) -> str | None:
    """Detects J9: TensorFlow may use the same GPUs in this session."""
    gpus = facts.jax.tensorflow.visible_gpus
    if not gpus:
        return None
    started = facts.jax.tensorflow.started is True
    shown = ", ".join(gpus)
    state = "has started its devices" if started else "has not started its devices yet"
    return f"TensorFlow is imported in this session too, may use {shown} and {state}"


def detect_preallocation(facts: Facts) -> str | None:
    """Detects J10: JAX takes most of the GPU's memory as soon as it starts."""
    on_demand = read_jax(facts, PREALLOCATE) in OFF or read_jax(facts, ALLOCATOR) == "platform"
    # Where JAX is not imported yet, gpukeras switches it off.
    if on_demand or facts.jax.imported is not True:
        return None
    return describe_readings(facts, PREALLOCATE)


CAUSES = share(
    # JAX, Installation, supported platforms
    Cause(
        "J1",
        "platform",
        "JAX has no CUDA on this operating system.",
        detect_other_system,
        "Train on the CPU, or on Linux with an NVIDIA GPU; on Windows: R inside WSL2 "
        "(wsl --install), with JAX installed there.",
    ),
    # jax/_src/lib/__init__.py, check_jaxlib_version()
    Cause(
        "J2",
        "python",
        "JAX cannot be imported.",
        detect_no_jax,
        REINSTALL_JAX,
        is_fault=True,
    ),
    # jax/_src/xla_bridge.py, _suggest_missing_backends()
    Cause(
        "J3",
        "build",
        "JAX is installed without its CUDA plugin.",
        detect_no_plugin,
        REINSTALL_JAX,
        explains=(*UNLISTED, "failed"),
    ),
    # JAX, Installation, NVIDIA GPU; NVIDIA, CUDA Compatibility, minor version compatibility
    Cause(
        "J4",
        "card",
        "The NVIDIA driver is too old for the CUDA of JAX's plugin.",
        detect_old_driver,
        "Update the NVIDIA driver, and reboot: 525.60.13 or later for CUDA 12, 580 or later for "
        "CUDA 13. A driver for CUDA 12 suffices for: {python} -m pip uninstall -y "
        'jax-cuda13-plugin jax-cuda13-pjrt && {python} -m pip install "jax[cuda12]"',
        explains=(*AT_FIRST_USE, *UNLISTED),
    ),
    # jax/_src/xla_bridge.py, backends(); JAX, configuration option jax_platforms
    Cause(
        "J5",
        "visibility",
        "JAX is told to leave out GPUs.",
        detect_platforms,
        'Restart R, and before Python starts: Sys.unsetenv("JAX_PLATFORMS"); look for it in '
        ".Renviron, .Rprofile and the shell's start files, and for jax.config.update().",
        explains=UNLISTED,
    ),
    # JAX, Installation: LD_LIBRARY_PATH can override the NVIDIA CUDA libraries
    Cause(
        "J6",
        "libraries",
        "Other CUDA libraries on LD_LIBRARY_PATH come before those that JAX installed.",
        detect_path_clash,
        "Take that folder out of LD_LIBRARY_PATH (look in the shell's start files, .Renviron and "
        "$R_HOME/etc/ldpaths), and restart R.",
        explains=(*UNLISTED, "failed"),
    ),
    # jaxlib/plugin_support.py, check_plugin_version()
    Cause(
        "J7",
        "libraries",
        "JAX's CUDA plugin and jaxlib do not fit.",
        detect_unequal_versions,
        REINSTALL_JAX,
        explains=(*UNLISTED, "failed"),
        is_fault=True,
    ),
    # jax_plugins/xla_cuda12/__init__.py, _check_cuda_versions()
    Cause(
        "J8",
        "libraries",
        "JAX's plugin lacks a library of CUDA, or finds one that is too old.",
        detect_lacking_library,
        '{python} -m pip install --upgrade --force-reinstall "{jax}"; and take other CUDA '
        "libraries out of LD_LIBRARY_PATH.",
        is_fault=True,
    ),
    # JAX, GPU memory allocation: running JAX and GPU TensorFlow concurrently
    Cause(
        "J9",
        "information",
        "TensorFlow and JAX share this session's GPU.",
        detect_two_backends,
        "Use one of them in a session. Or, right after TensorFlow is imported: "
        'tf$config$set_visible_devices(list(), "GPU")',
        is_fault=True,
    ),
    # JAX, GPU memory allocation: XLA_PYTHON_CLIENT_PREALLOCATE
    Cause(
        "J10",
        "information",
        "JAX takes most of the GPU's memory as soon as it starts.",
        detect_preallocation,
        'Restart R and begin with gpu_setup(memory = "growth"), before anything imports JAX.',
    ),
    backend="jax",
)
