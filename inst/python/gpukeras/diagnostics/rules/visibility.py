"""Causes in variables and settings that hide the card (D1 to D7)."""

from __future__ import annotations

import re

from gpukeras.diagnostics.rules.hardware import NO_DEVICE, describe_cuinit, driver_works
from gpukeras.diagnostics.rules.rule import LATE, LISTED, UNLISTED, Cause
from gpukeras.system.facts import (
    Facts,
    count_fresh,
    count_gpus,
    count_listed,
    describe_readings,
    hides_gpus,
)

VISIBLE = "CUDA_VISIBLE_DEVICES"
BACKENDS = ("tensorflow", "jax")  # that gpukeras trains on
GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
TOO_LATE = re.compile(r"(?:Physical|Virtual) devices cannot be modified after being initialized")
# The errors of every op after a device failed to start.
POISONED = re.compile(r"InternalError: .*|.*CUDA_ERROR_\w+.*|.*cudaGetDevice\(\) failed.*")


# CUDA_VISIBLE_DEVICES ----------------------------------------------------------------------------


def describe_hiding(facts: Facts) -> str | None:
    """Returns evidence that CUDA_VISIBLE_DEVICES hides all GPUs, or None.

    It is proven if GPUs appear without the variable, in the driver or in TensorFlow. Its value
    counts only if nothing was tried without it.
    """
    readings = facts.readings(VISIBLE)
    if readings.get("c") is None:
        return _describe_removed(facts)
    described = describe_readings(facts, VISIBLE)
    shown = facts.cuda_shown.count or 0
    asked = facts.cuda.init is not None and not driver_works(facts)
    if shown > 0 and asked:
        counted = facts.cuda.count == 0
        answer = "CUDA counts 0 GPUs" if counted else describe_cuinit(facts)
        return f"{described}; {answer} with it, and {shown} GPU without it"
    listed = count_listed(facts, f"without {VISIBLE}")
    if listed and not count_listed(facts, "as it is"):
        return f"{described}; {facts.backend_name} lists {listed} GPU without it"
    # A driver that fails without the variable too does not tell; the variable hides GPUs after it.
    tried = facts.cuda_shown.init in (0, NO_DEVICE)
    return described if not tried and hides_gpus(readings["c"], count_gpus(facts)) else None


def has_gpu(facts: Facts) -> bool:
    """Whether a GPU is there that could be hidden: then that is a fault beside any other."""
    shown = facts.cuda_shown.count or 0
    return shown > 0 or count_gpus(facts) is not None


def _describe_removed(facts: Facts) -> str | None:
    """Returns evidence of a variable removed after TensorFlow read it; a new process lacks it."""
    readings = facts.readings(VISIBLE)
    before = [readings.get(who) for who in ("python", "start")]
    fresh = count_fresh(facts)
    hidden = [value for value in before if hides_gpus(value, count_gpus(facts))]
    if not hidden or not fresh or facts.runtime.physical_gpus != ():
        return None
    return (
        f"{describe_readings(facts, VISIBLE)}: it was {hidden[0]!r} when {facts.backend_name} "
        f"read it, and a process started now lists {fresh} GPU"
    )


def detect_hidden_by_seed(facts: Facts) -> str | None:
    """Detects D2: the R package tensorflow set CUDA_VISIBLE_DEVICES to -1 when it set a seed."""
    readings = facts.readings(VISIBLE)
    loaded = facts.session.tensorflow_r_loaded is True
    if readings.get("c") != "-1" or readings.get("start") == "-1" or not loaded:
        return None
    sign = describe_hiding(facts)
    return f"the R package tensorflow is loaded, and {sign}" if sign else None


def detect_hidden_by_variable(facts: Facts) -> str | None:
    """Detects D1: CUDA_VISIBLE_DEVICES hides all GPUs."""
    return None if detect_hidden_by_seed(facts) else describe_hiding(facts)


# This session ------------------------------------------------------------------------------------


def detect_hidden_in_process(facts: Facts) -> str | None:
    """Detects D3: TensorFlow lists GPUs that are not visible to this process."""
    physical = facts.runtime.physical_gpus
    visible = facts.runtime.visible_gpus
    if not physical or visible is None or len(visible) >= len(physical) or detect_backend(facts):
        return None
    return f"TensorFlow lists {len(physical)} GPU, {len(visible)} of them visible in this process"


def detect_late_growth(facts: Facts) -> str | None:
    """Detects D4: memory growth was requested after TensorFlow had started."""
    readings = facts.readings(GROWTH)
    started = facts.runtime.started is True
    known = {"c", "python"} <= readings.keys() and started
    if known and readings["c"] != readings["python"]:
        return f"{describe_readings(facts, GROWTH)}, and TensorFlow has started"
    said = TOO_LATE.search(" ".join(_list_own_errors(facts)))
    return f"TensorFlow said: {said.group()}" if said else None


def detect_poisoned(facts: Facts) -> str | None:
    """Detects D5: a GPU failed to start in this session, so every op on it fails."""
    proven = facts.proof.ok is True  # in a new process
    found = [match.group() for text in _list_own_errors(facts) if (match := POISONED.search(text))]
    if not proven or not found or detect_backend(facts):
        return None
    return f"a new process computes on the GPU, this session says: {found[0][:200]}"


def _list_own_errors(facts: Facts) -> list[str]:
    unread = [*facts.use.unread.values(), facts.unread.get("use")]
    return [text for text in (facts.use.error, *unread) if text is not None]


def detect_backend(facts: Facts) -> str | None:
    """Detects D6: Keras uses another backend than TensorFlow and JAX."""
    backend = facts.keras.backend
    if not backend or backend in BACKENDS:
        return None
    return f"Keras' backend is {backend}"


def detect_silenced_log(facts: Facts) -> str | None:
    """Detects D7: TensorFlow's warnings are switched off."""
    # gpukeras' default is "2": only a level set before Python started is the user's choice.
    readings = facts.readings("TF_CPP_MIN_LOG_LEVEL")
    level = readings.get("start") or readings.get("r")
    if level not in ("2", "3"):
        return None
    return f"TF_CPP_MIN_LOG_LEVEL is {level}; gpu_check() reads the log of processes of its own"


CAUSES = (
    # R package tensorflow, set_random_seed(disable_gpu = TRUE)
    Cause(
        "D2",
        "visibility",
        "tensorflow::set_random_seed() switched the GPU off.",
        detect_hidden_by_seed,
        "Restart R, then tensorflow::set_random_seed(seed, disable_gpu = FALSE), or "
        "gpu_setup(seed = seed).",
        is_fault=has_gpu,
    ),
    # CUDA C++ Programming Guide, CUDA environment variables
    Cause(
        "D1",
        "visibility",
        "CUDA_VISIBLE_DEVICES hides every GPU.",
        detect_hidden_by_variable,
        'Restart R and unset it before Python starts: Sys.unsetenv("CUDA_VISIBLE_DEVICES"); look '
        "for it in .Renviron, .Rprofile and the shell's start files.",
        explains=UNLISTED + LATE,
        is_fault=has_gpu,
    ),
    # tf.config.set_visible_devices()
    Cause(
        "D3",
        "session",
        "The GPU is hidden from TensorFlow in this session.",
        detect_hidden_in_process,
        'Restart R, and leave out gpu_setup(device = "cpu") or set_visible_devices().',
        explains=("hidden",),
        backend="tensorflow",
    ),
    # TensorFlow 2.21 over a driver that was made to fail
    Cause(
        "D5",
        "session",
        "The GPU failed to start in this session, and now every operation on it fails.",
        detect_poisoned,
        "Restart R. To go on without the GPU: "
        'tf <- reticulate::import("tensorflow"); tf$config$set_visible_devices(list(), "GPU")',
        explains=("works",),
        is_fault=True,
        backend="tensorflow",
    ),
    # keras.io/getting_started: configuring your backend
    Cause(
        "D6",
        "session",
        "Keras computes with neither TensorFlow nor JAX.",
        detect_backend,
        'Restart R, then Sys.setenv(KERAS_BACKEND = "tensorflow") before Python starts.',
        explains=UNLISTED + LISTED,
        is_fault=True,
    ),
    # tensorflow/python/eager/context.py; TensorFlow guide, Use a GPU
    Cause(
        "D4",
        "information",
        "Memory growth was asked for after TensorFlow had started, which is too late.",
        detect_late_growth,
        'Restart R and begin with gpu_setup(memory = "growth").',
        backend="tensorflow",
    ),
    # TensorFlow 2.21 at each level
    Cause(
        "D7",
        "information",
        "TensorFlow's own messages are switched off.",
        detect_silenced_log,
        'To see them in this session: restart R, then Sys.setenv(TF_CPP_MIN_LOG_LEVEL = "0").',
        backend="tensorflow",
    ),
)
