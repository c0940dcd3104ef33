"""Causes in this R and Python session: wrong Python, late settings (C0, F1 to F11)."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath

from gpukeras.diagnostics.load_errors import parse_load_error
from gpukeras.diagnostics.rules.imports import fails_otherwise
from gpukeras.diagnostics.rules.packages import list_missing
from gpukeras.diagnostics.rules.rule import LATE, NEVER, Cause
from gpukeras.system.facts import Facts, describe_readings, find_release, parse_numbers
from gpukeras.system.known_issues import OR_JAX

NUMPY_2 = (1, 38)  # "Internal updates for NumPy 2.0 (#1621)": reticulate's NEWS, 1.38.0
# Wheels of TensorFlow 2.21.0: Python 3.10 to 3.13; of 2.22.0rc0: 3.14 too; of neither: 3.15.
NEWER_PYTHON = (3, 14)
FIRST_TENSORFLOW: dict[tuple[int, ...], str] = {(3, 14): "2.22"}
MEANT = ("CUDA_", "LD_LIBRARY_PATH", "XLA_", "KERAS_BACKEND", "TF_", "NVIDIA_", "JAX_")


# Which Python ------------------------------------------------------------------------------------


def find_import_error(facts: Facts) -> str:
    """Returns what an import says if TensorFlow is missing, here or in a new process, or ""."""
    own = facts.tensorflow.error
    failed = facts.listing("as it is").ok is False
    fresh = facts.listing("as it is").error if failed else None
    error = own or fresh or ""
    return error if parse_load_error(error, "tensorflow").kind == "missing" else ""


def needs_other_python(facts: Facts) -> str | None:
    """Returns why this Python cannot use a GPU, or None."""
    if fails_otherwise(facts):
        return None
    error = find_import_error(facts)
    if error:
        return f"TensorFlow cannot be imported here ({error})"
    return "TensorFlow here is built without CUDA" if facts.build.is_cuda_build is False else None


def find_unheeded(facts: Facts) -> str:
    """Returns the Python in RETICULATE_PYTHON if another one is running; else ""."""
    asked = facts.session.requested_python or ""
    runs = facts.python.executable or ""
    prefix = facts.python.prefix or ""
    path = PureWindowsPath(asked) if "\\" in asked else PurePosixPath(asked)
    if not path.is_absolute() or not runs or not prefix:  # such as "managed", or a relative path
        return ""
    linked = facts.python.is_requested is True
    same = linked or asked == runs or prefix in (str(path.parent), str(path.parent.parent))
    return "" if same else asked


def detect_ignored_request(facts: Facts) -> str | None:
    """Detects F2: Python was already running when another one was requested."""
    asked, lack = find_unheeded(facts), needs_other_python(facts)
    if facts.session.python_before is not True or not asked or not lack:
        return None
    runs = facts.python.executable
    return (
        f"Python had started before gpukeras was loaded: {runs} runs, RETICULATE_PYTHON asks for "
        f"{asked}; {lack}"
    )


def detect_other_python(facts: Facts) -> str | None:
    """Detects F1: this Python cannot use a GPU; another one can or was requested."""
    lack = needs_other_python(facts)
    if not lack or detect_ignored_request(facts):
        return None
    others = [other for other in facts.elsewhere if other.is_cuda_build is True]
    if others:
        version = others[0].tensorflow or ""
        return f"{lack}, {others[0].python} has TensorFlow {version} with CUDA"
    asked = find_unheeded(facts)
    forced = facts.session.forced
    chosen = f", chosen by {forced}" if forced else ""
    runs = facts.python.executable
    return f"{lack}: {runs} runs{chosen}, RETICULATE_PYTHON asks for {asked}" if asked else None


def detect_no_tensorflow(facts: Facts) -> str | None:
    """Detects C0: TensorFlow is not installed."""
    others = (detect_ignored_request, detect_other_python, detect_new_python)
    if any(detect(facts) for detect in others) or fails_otherwise(facts):
        return None
    return find_import_error(facts) or None


def detect_new_python(facts: Facts) -> str | None:
    """Detects C21: a Python newer than any for which TensorFlow has packages."""
    error, version = find_import_error(facts), facts.python.version
    if not error or parse_numbers(version) < NEWER_PYTHON or find_release(facts):
        return None
    if fails_otherwise(facts) or detect_ignored_request(facts) or detect_other_python(facts):
        return None
    first = FIRST_TENSORFLOW.get(parse_numbers(version)[:2])
    packages = f"begin with TensorFlow {first}" if first else "are not known"
    return f"Python is {version}, and packages for it {packages}; {error}"


# Late settings ------------------------------------------------------------------------------------


def detect_ephemeral(facts: Facts) -> str | None:
    """Detects F4: uv's environment for one session, which has no links to CUDA's libraries."""
    uv = facts.installation.uv is True
    lost = facts.build.searches_cusolver is False
    mended = facts.preload.status == "done"
    if not uv or not lost or not mended:
        return None
    prefix = facts.python.prefix or "the environment"
    return f"{prefix} is uv's; gpukeras loaded the CUDA libraries of its wheels first"


def detect_bare_rstudio(facts: Facts) -> str | None:
    """Detects F6: RStudio was started without the shell's environment variables."""
    readings = facts.readings("LD_LIBRARY_PATH")
    own = facts.session.ldpaths or ""
    bare = "start" in readings and (readings["start"] or "") in ("", own)
    missing = sorted(list_missing(facts))
    if facts.session.rstudio is not True or not bare or not missing:
        return None
    given = "only R's own LD_LIBRARY_PATH" if readings["start"] else "no LD_LIBRARY_PATH"
    return f"RStudio started R with {given}, and TensorFlow does not find {', '.join(missing)}"


def detect_differing_readings(facts: Facts) -> str | None:
    """Detects F7: a variable was set after Python started, so Python does not see it."""
    differing = []
    for name, readings in facts.environment.items():
        known = {"c", "python"} <= readings.keys()
        if known and name.startswith(MEANT) and readings["c"] != readings["python"]:
            differing.append(describe_readings(facts, name))
    return "; ".join(differing) or None


def detect_fork(facts: Facts) -> str | None:
    """Detects F9: this process is a fork of an R process that had initialized CUDA."""
    if facts.session.forked is not True:
        return None
    own = facts.tensorflow.physical_gpus
    lost = "; it lists no GPU, a new process does" if own == () else ""
    return f"this R process is a fork of the one that started Python{lost}"


def detect_old_reticulate(facts: Facts) -> str | None:
    """Detects F11: NumPy 2 with a reticulate that supports only NumPy 1."""
    reticulate = facts.session.reticulate
    numpy = facts.packages.get("numpy") or facts.session.numpy
    version = parse_numbers(reticulate)
    if not version or version >= NUMPY_2 or parse_numbers(numpy) < (2,):
        return None
    return f"reticulate {reticulate} with NumPy {numpy}: no array crosses between R and Python"


CAUSES = (
    # reticulate: Python Version Configuration
    Cause(
        "F2",
        "python",
        "Python had started before another one was asked for.",
        detect_ignored_request,
        "Restart R, and load gpukeras before anything else uses Python; RETICULATE_PYTHON belongs "
        "in .Renviron.",
        backend="tensorflow",
    ),
    # reticulate: Python Version Configuration
    Cause(
        "F1",
        "python",
        "R runs another Python than the one that has TensorFlow with CUDA.",
        detect_other_python,
        "Restart R, and name that Python before anything starts one: "
        'Sys.setenv(RETICULATE_PYTHON = "{elsewhere}")',
        backend="tensorflow",
    ),
    # tensorflow.org/install/pip
    Cause(
        "C0",
        "python",
        "TensorFlow is not installed.",
        detect_no_tensorflow,
        '{python} -m pip install "tensorflow[and-cuda]"',
        is_fault=True,
        backend="tensorflow",
    ),
    # wheels of jaxlib 0.10.2: cp311 to cp314
    Cause(
        "C21",
        "python",
        "TensorFlow 2.21 has no package for this version of Python.",
        detect_new_python,
        "Use Python 3.13 or older: install_gpukeras()." + OR_JAX,
        is_fault=True,
        backend="tensorflow",
    ),
    # CUDA C++ Programming Guide: CUDA_ERROR_NOT_INITIALIZED after fork()
    Cause(
        "F9",
        "session",
        "This R process is a fork, in which CUDA does not work.",
        detect_fork,
        "Use processes of their own: future::plan(multisession) or parallel::makeCluster(), not "
        "mclapply() or multicore.",
        explains=LATE,
        is_fault=True,
    ),
    # reticulate NEWS 1.38.0 (#1621); error: incompatible NumPy binary version 33554432
    Cause(
        "F11",
        "session",
        "This reticulate does not know NumPy 2.",
        detect_old_reticulate,
        'install.packages("reticulate"), or {python} -m pip install "numpy<2"; then restart R.',
        explains=NEVER,
        is_fault=True,
    ),
    # R package tensorflow, install.R: configure_nvidia_symlinks()
    Cause(
        "F4",
        "information",
        "This environment is made anew for each session, without links to CUDA's libraries.",
        detect_ephemeral,
        "Nothing: gpukeras loads them by itself, if it is loaded before TensorFlow.",
        backend="tensorflow",
    ),
    # rstudio/tensorflow #121; keras3 #195; docs.posit.co
    Cause(
        "F6",
        "information",
        "RStudio does not take over the variables of a shell.",
        detect_bare_rstudio,
        "Set them in .Renviron; LD_LIBRARY_PATH as rsession-ld-library-path in "
        "/etc/rstudio/rserver.conf.",
        backend="tensorflow",
    ),
    # reticulate: Sys.setenv() writes C's environment, os.environ is a copy
    Cause(
        "F7",
        "information",
        "A variable was changed after Python had started: Python does not see it.",
        detect_differing_readings,
        "Restart R, and set it before Python starts.",
    ),
)
