"""Causes of inefficient use of a working card (E1 to E15).

They are based on `facts["use"]`, measured with the user's model and data. The small test model in a
child process says nothing about these, except for a fault of the computer (E15).
"""

from __future__ import annotations

from collections.abc import Iterable

from gpukeras.diagnostics.rules import placement
from gpukeras.diagnostics.rules.placement import count_heavy, uses_gpu
from gpukeras.diagnostics.rules.rule import Cause
from gpukeras.system.cards import find_chip_without_tensor_cores
from gpukeras.system.facts import NOT_TRACED, NOT_USED, Facts, list_capabilities, parse_numbers

# A GPU idles between kernels that are shorter than the CPU's launch time (NVIDIA, Getting Started
# with CUDA Graphs): published measurements are 4 to 6 us, plus TensorFlow's overhead.
SHORT_KERNEL_US = 10.0
MANY_KERNELS = 100  # fewer do not give a reliable median
IDLE_SHARE = 0.5  # this package's choice: idle for longer than busy
# As in TensorFlow's profile analysis: above it a step is "highly input-bound"
# (kHighlyInfeedBoundThresholdInPercent in xprof).
INPUT_SHARE = 0.2
NOTICEABLE_S = 0.001  # shorter waits may be clock noise
MANY_RETRACES = 5  # TensorFlow warns from this number (FREQUENT_TRACING_WARNING_THRESHOLD)
SLOW_FIRST = 10  # times the median; this package's choice
SLOW_FIRST_S = 1.0
HALF_PRECISION, BFLOAT16, TF32 = (7, 0), (8, 0), (8, 0)  # first capability with tensor cores


def find_capability(facts: Facts) -> tuple[int, ...]:
    """Returns the compute capability of the training's GPU, else of the first; () if unknown."""
    own = parse_numbers(facts.use.capability)
    return own or next(iter(list_capabilities(facts)), ())


def find_card(facts: Facts) -> str:
    """Returns the name of the training's GPU, else of the first; "" if unknown."""
    names = [gpu.name for gpu in facts.cuda.devices]
    return facts.use.card or next(filter(None, names), "")


def is_set(facts: Facts, name: str, values: Iterable[str]) -> bool:
    """Whether C or Python reads one of the given values from an environment variable.

    Args:
        facts: The facts.
        name: Name of the variable.
        values: The values to look for.
    """
    readings = facts.readings(name)
    return not {readings.get("c"), readings.get("python")}.isdisjoint(values)


# Slow steps ---------------------------------------------------------------------------------------


def detect_slow_rnn(facts: Facts) -> str | None:
    """Detects E5: recurrent layers that cannot use cuDNN's fast kernels because of an argument."""
    texts = [
        f"{layer.get('layer')} ({layer.get('class')}): {argument}"
        for layer in facts.use.rnn
        if (argument := layer.get("argument"))
    ]
    return "; ".join(texts) or None


def detect_eager(facts: Facts) -> str | None:
    """Detects E6: Python code runs within the step, or the step is retraced repeatedly."""
    use = facts.use
    retraces, step = use.retraces or 0, use.median_s
    reasons = ["run_eagerly is on"] if use.eager is True else []
    reasons += ["a Python function is part of the step"] if use.py_function is True else []
    if retraces >= MANY_RETRACES:
        steps = use.steps
        reasons.append(
            f"traced again {retraces:.0f} times" + (f" in {steps:.0f} steps" if steps else "")
        )
    time = f"; a step takes {1000 * step:.1f} ms" if step else ""
    return " and ".join(reasons) + time if reasons else None


def detect_launch_bound(facts: Facts) -> str | None:
    """Detects E7: the GPU waits for the CPU to launch many short kernels."""
    trace = facts.use.trace
    share, kernels = trace.busy_share, trace.kernels
    short = trace.median_kernel_us
    if not uses_gpu(facts.use) or share is None or kernels is None or short is None:
        return None
    if share >= IDLE_SHARE or kernels < MANY_KERNELS or short >= SHORT_KERNEL_US:
        return None
    rows = facts.use.batch_size
    batch = f", with {rows:.0f} rows a batch" if rows else ""
    return (
        f"the GPU works {share:.0%} of the time, in {kernels:.0f} kernels, half of them shorter "
        f"than {short:.1f} us{batch}"
    )


def detect_input_bound(facts: Facts) -> str | None:
    """Detects E8: the step waits for its data."""
    real, same = facts.use.median_s, facts.use.repeated_s
    if not real or same is None or real - same < NOTICEABLE_S or 1 - same / real < INPUT_SHARE:
        return None
    return (
        f"a step takes {1000 * real:.1f} ms with the data, {1000 * same:.1f} ms with one batch "
        f"repeated: {1 - same / real:.0%} is waiting for data"
    )


def detect_float64(facts: Facts) -> str | None:
    """Detects E9: float64, which most GPUs compute 32 to 64 times slower."""
    types = enumerate(facts.use.input_dtypes, 1)
    places = [f"input {number} is float64" for number, dtype in types if dtype == "float64"]
    if facts.use.policy == "float64":
        places.append("the dtype policy is float64")
    return " and ".join(places) or None


# Settings -----------------------------------------------------------------------------------------


def detect_full_precision(facts: Facts) -> str | None:
    """Detects E10: float32 on a card that computes 16-bit floats several times faster."""
    capability = find_capability(facts)
    wide = facts.use.policy == "float32"
    if not uses_gpu(facts.use) or not wide or not capability or capability < HALF_PRECISION:
        return None
    if find_chip_without_tensor_cores(find_card(facts)):
        return None
    return f"the dtype policy is float32, the compute capability {_dot(capability)}"


def detect_half_precision(facts: Facts) -> str | None:
    """Detects E10p: 16-bit floats on a card without tensor cores for them."""
    capability, policy = find_capability(facts), facts.use.policy or ""
    needed = {"mixed_float16": HALF_PRECISION, "mixed_bfloat16": BFLOAT16}.get(policy)
    if not uses_gpu(facts.use) or not needed:
        return None
    if chip := find_chip_without_tensor_cores(card := find_card(facts)):
        return f"the dtype policy is {policy}, and {card} has no tensor cores (chip {chip})"
    if not capability or capability >= needed:
        return None
    found, least = _dot(capability), _dot(needed)
    return f"the dtype policy is {policy}, the compute capability {found}, below {least}"


def detect_no_tf32(facts: Facts) -> str | None:
    """Detects E11: TF32 is off on a card that supports it."""
    capability, policy = find_capability(facts), facts.use.policy
    if not uses_gpu(facts.use) or policy not in (None, "float32") or capability < TF32:
        return None
    reasons = ["NVIDIA_TF32_OVERRIDE is 0"] if is_set(facts, "NVIDIA_TF32_OVERRIDE", ["0"]) else []
    if facts.use.tf32 is False:
        reasons.append("TensorFlow's switch for TF32 is off")
    if not reasons:
        return None
    return f"{' and '.join(reasons)}, the compute capability is {_dot(capability)}"


def detect_determinism(facts: Facts) -> str | None:
    """Detects E12: only deterministic kernels are allowed."""
    asked = is_set(facts, "TF_DETERMINISTIC_OPS", ["1", "true", "True"])
    if facts.use.deterministic is not True and not (asked and uses_gpu(facts.use)):
        return None
    return "TF_DETERMINISTIC_OPS is on" if asked else "op determinism is enabled"


def detect_idle_gpu(facts: Facts) -> str | None:
    """Detects E13: another GPU is idle."""
    shown, used = facts.use.gpus, facts.use.gpus_used
    if not shown or not used or shown < 2 or used >= shown:
        return None
    return f"{used:.0f} of {shown:.0f} GPUs in use"


def detect_slow_start(facts: Facts) -> str | None:
    """Detects E14: the first step takes much longer than the others, which is not a fault."""
    first, usual = facts.use.first_s, facts.use.median_s
    if not first or not usual or first < SLOW_FIRST_S or first < SLOW_FIRST * usual:
        return None
    return (
        f"the first step takes {first:.1f} s, the later ones {1000 * usual:.1f} ms: "
        f"{first / usual:.0f} times as long"
    )


def detect_blind_profiler(facts: Facts) -> str | None:
    """Detects E15: the profiler recorded no kernel although the GPU computed."""
    own = facts.use != NOT_USED
    use = facts.use if own else facts.proof.use
    trace = use.trace
    if not uses_gpu(use) or trace == NOT_TRACED or trace.kernels:
        return None
    error = trace.error or ""
    refused = trace.cupti is False or "CUPTI" in error.upper()
    refused = refused or (not own and facts.proof.log.cupti is True)
    rise = use.peak_rise_bytes or 0
    if not refused and (rise <= 0 or not count_heavy(use, "GPU")):
        return None
    memory = f"; the step took {rise / 2**20:.1f} MiB of its memory" if rise > 0 else ""
    return f"the trace has 0 kernels{': ' + error if error else ''}{memory}"


def _dot(numbers: Iterable[int]) -> str:
    return ".".join(str(number) for number in numbers)


CAUSES = (
    *placement.CAUSES,
    # keras, backend/tensorflow/rnn.py, cudnn_ok()
    Cause(
        "E5",
        "use",
        "A recurrent layer cannot use cuDNN.",
        detect_slow_rnn,
        "Leave that argument at its default (tanh, sigmoid, use_bias TRUE, unroll FALSE, "
        "recurrent_dropout 0, GRU: reset_after TRUE; dropout is allowed), use LSTM or GRU, and pad "
        "sequences on the right.",
    ),
    # tensorflow, polymorphic_function.py, FREQUENT_TRACING_WARNING_THRESHOLD
    Cause(
        "E6",
        "use",
        "Python takes part in every training step.",
        detect_eager,
        "compile(run_eagerly = FALSE); move R and Python functions out of the model; give all "
        "batches one shape (drop the last, smaller one).",
    ),
    # NVIDIA, Getting Started with CUDA Graphs; tensorflow #31654, #5995
    Cause(
        "E7",
        "use",
        "The GPU waits for its kernels to be started: the model or the batch is small.",
        detect_launch_bound,
        "A larger batch_size first; then compile(jit_compile = TRUE), or steps_per_execution = 32. "
        "A model that stays small may be as fast on the CPU.",
    ),
    # xprof, op_stats_to_input_pipeline_analysis.cc, kHighlyInfeedBoundThresholdInPercent
    Cause(
        "E8",
        "use",
        "The training waits for its data.",
        detect_input_bound,
        "Prepare the data once (resize, decode, convert before training), and keep it in memory or "
        "on the GPU: gpu_dataset() does both.",
    ),
    # NVIDIA, CUDA C++ Programming Guide, Arithmetic Instructions
    Cause(
        "E9",
        "use",
        "The training computes with 64 bits.",
        detect_float64,
        'Convert the data to float32 once, and keras$config$set_dtype_policy("float32") before the '
        "model is built.",
    ),
    # tensorflow.org/guide/mixed_precision; tensorflow#44191
    Cause(
        "E10p",
        "use",
        "Mixed precision is on, and this card has no tensor cores for it.",
        detect_half_precision,
        'Before the model is built: keras$config$set_dtype_policy("float32").',
    ),
    # tf.config.experimental.enable_tensor_float_32_execution(); NVIDIA, cuBLAS documentation
    Cause(
        "E11",
        "use",
        "TF32 is off.",
        detect_no_tf32,
        'gpu_setup(tf32 = TRUE); Sys.unsetenv("NVIDIA_TF32_OVERRIDE") before Python starts.',
    ),
    # tensorflow.org/guide/mixed_precision
    Cause(
        "E10",
        "information",
        "Mixed precision is off.",
        detect_full_precision,
        'Before the model is built: keras$config$set_dtype_policy("mixed_float16"); from '
        'compute capability 8.0 on "mixed_bfloat16" too.',
    ),
    # tf.config.experimental.enable_op_determinism(); keras, trainer.py, model_supports_jit()
    Cause(
        "E12",
        "information",
        "Only deterministic kernels are used, and no XLA.",
        detect_determinism,
        "Where equal results to the last bit are not needed: restart R, leave out "
        'enable_op_determinism(), Sys.unsetenv("TF_DETERMINISTIC_OPS").',
    ),
    # tensorflow.org/guide/distributed_training
    Cause(
        "E13",
        "information",
        "A further GPU does nothing.",
        detect_idle_gpu,
        "tf$distribute$MirroredStrategy() trains on all; or use the other for another session "
        '(CUDA_VISIBLE_DEVICES="1").',
    ),
    # NVIDIA, CUDA Environment Variables, CUDA_CACHE_PATH
    Cause(
        "E14",
        "information",
        "The first step takes long: CUDA starts, kernels are chosen and compiled.",
        detect_slow_start,
        "Leave the first step out when comparing speed.",
    ),
    # NVIDIA, ERR_NVGPUCTRPERM; tensorflow #35860, xprof #63
    Cause(
        "E15",
        "information",
        "The profiler may not see the GPU's kernels. This does not mean that the CPU computes.",
        detect_blind_profiler,
        "An administrator: echo options nvidia NVreg_RestrictProfilingToAdminUsers=0 | sudo tee "
        "/etc/modprobe.d/nvidia-profiling.conf, then reboot. In a container: --cap-add=SYS_ADMIN.",
    ),
)
