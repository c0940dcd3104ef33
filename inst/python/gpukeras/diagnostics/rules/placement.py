"""Causes of training that runs wholly or partly on the CPU despite a working GPU (E1 to E4).

E1 to E3 are roots: the step computes only on the CPU. E1p to E3p: part of it runs on the CPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from gpukeras.core.messages import count_of
from gpukeras.diagnostics.rules.rule import Cause
from gpukeras.system.facts import Facts, UseFacts, is_heavy

NAMES_SHOWN = 6
UNPLACED = re.compile(r"Cannot assign a device for operation '?\{*(?:node )?([^\s:'}]+)")
INTEGER = re.compile(r"\bT=DT_(U?INT\d+|BOOL)")


# Facts --------------------------------------------------------------------------------------------


def uses_gpu(use: UseFacts) -> bool:
    """Whether the measured training was meant to run on a GPU."""
    return (use.device or "").startswith("GPU")


def count_ops(use: UseFacts, kind: str) -> Counter[str]:
    """Counts the training step's ops of each type on a kind of device ("CPU", "GPU")."""
    found: Counter[str] = Counter()
    for device, ops in use.placement.items():
        if device.startswith(kind):
            found.update(ops)
    return +found


def count_heavy(use: UseFacts, kind: str) -> Counter[str]:
    """Counts only the heavy ops, which do most of a network's computation."""
    return Counter({op: count for op, count in count_ops(use, kind).items() if is_heavy(op)})


def count_weights(use: UseFacts, kind: str) -> int:
    """Counts the model's variables on a kind of device."""
    return sum(count for device, count in use.variables.items() if device.startswith(kind))


def runs_on_cpu(use: UseFacts) -> bool:
    """Whether all observed computation of the training was on the CPU and none on its GPU."""
    ran = use.trace.kernels
    placed = count_heavy(use, "CPU") and not count_heavy(use, "GPU")
    return uses_gpu(use) and not ran and bool(placed)


def find_unplaced(use: UseFacts) -> str:
    """Returns the op type that has GPU kernels, but none for its dtype; or ""."""
    error = use.hard_placement_error or ""
    named = UNPLACED.search(error)
    if not uses_gpu(use) or not named or "no supported kernel for GPU" not in error:
        return ""
    op = re.sub(r"_\d+$", "", named[1].rpartition("/")[2])
    return op if is_heavy(op) and op not in use.cpu_only_ops else ""


def list_movable(use: UseFacts) -> Counter[str]:
    """Counts the heavy ops on the CPU that have GPU kernels."""
    lacking = {*use.cpu_only_ops, find_unplaced(use)}
    heavy = count_heavy(use, "CPU").items() if uses_gpu(use) else ()
    return Counter({op: count for op, count in heavy if op not in lacking})


def name_ops(ops: Mapping[str, int]) -> str:
    """Formats ops with their number, the most frequent first."""
    ordered = sorted(ops.items(), key=lambda item: (-item[1], item[0]))
    texts = [f"{count} {op}" for op, count in ordered[:NAMES_SHOWN]]
    more = len(ordered) - len(texts)
    return ", ".join(texts) + (f" and {more} more kinds" if more else "")


# On the CPU despite a GPU -------------------------------------------------------------------------


def detect_model_on_cpu(facts: Facts) -> str | None:
    """Detects E1: the step runs on the CPU, because the model's weights are there."""
    weights = count_weights(facts.use, "CPU")
    if not runs_on_cpu(facts.use) or weights <= count_weights(facts.use, "GPU"):
        return None
    return f"{weights} variables are on the CPU; {_describe_cpu(facts.use)}"


def detect_step_on_cpu(facts: Facts) -> str | None:
    """Detects E2: the step runs on the CPU although the GPU has kernels for its ops."""
    if not runs_on_cpu(facts.use) or detect_model_on_cpu(facts) or not list_movable(facts.use):
        return None
    return _describe_cpu(facts.use)


def detect_no_gpu_kernels(facts: Facts) -> str | None:
    """Detects E3: the step runs on the CPU, because none of its ops has a GPU kernel."""
    if not runs_on_cpu(facts.use) or detect_model_on_cpu(facts) or list_movable(facts.use):
        return None
    lacking, heavy = facts.use.cpu_only_ops, count_heavy(facts.use, "CPU")
    without = {op: count for op, count in heavy.items() if op in lacking}
    return f"no GPU kernel for {name_ops(without)}" if without else None


def _describe_cpu(use: UseFacts) -> str:
    return f"on the CPU run {name_ops(count_heavy(use, 'CPU'))}, on the GPU no such op"


def detect_some_weights_on_cpu(facts: Facts) -> str | None:
    """Detects E1p: the step computes on the GPU, and most weights are on the CPU."""
    # A few variables belong on the CPU, such as the seeds of Dropout.
    there, here = count_weights(facts.use, "CPU"), count_weights(facts.use, "GPU")
    if not uses_gpu(facts.use) or runs_on_cpu(facts.use) or there <= here:
        return None
    return (
        f"{there} of {count_of(there + here, 'variable')} are on the CPU, and are "
        f"copied at every step"
    )


def detect_some_ops_on_cpu(facts: Facts) -> str | None:
    """Detects E2p: some of the step's ops run on the CPU although the GPU has kernels for them."""
    moved = list_movable(facts.use)
    if runs_on_cpu(facts.use) or not moved:
        return None
    share = sum(moved.values()) / sum(
        (count_heavy(facts.use, "CPU") + count_heavy(facts.use, "GPU")).values()
    )
    return f"{name_ops(moved)} on the CPU, {share:.0%} of the ops that do the computing"


def detect_some_cpu_only_ops(facts: Facts) -> str | None:
    """Detects E3p: some of the step's ops have no GPU kernel."""
    lacking = facts.use.cpu_only_ops
    if not uses_gpu(facts.use) or detect_no_gpu_kernels(facts) or not lacking:
        return None
    placed = count_ops(facts.use, "CPU")
    return f"no GPU kernel for {name_ops({op: placed[op] or 1 for op in lacking})}"


def detect_integer_product(facts: Facts) -> str | None:
    """Detects E4: a product of a dtype without a GPU kernel, such as int32."""
    op = find_unplaced(facts.use)
    if not op:
        return None
    error = facts.use.hard_placement_error or ""
    integer = INTEGER.search(error)
    kind = f" of {integer[1].lower()}" if integer else ""
    count = count_ops(facts.use, "CPU")[op]
    times = f", {count} on the CPU" if count else ""
    said = re.sub(r"\{\{node ([^}]*)\}\}", r"\1", error)[:160]
    return f"{op}{kind} has no GPU kernel for its type{times}: {said}"


CAUSES = (
    # variable.device of the model's variables; placement of the traced graph
    Cause(
        "E1",
        "use",
        "This training runs on the CPU: its model was built there.",
        detect_model_on_cpu,
        'Build and compile the model anew, outside of with_device("cpu", ...) and '
        'with(tf$device("CPU"), ...), and after gpu_setup().',
        explains=("works",),
    ),
    # tf.config.set_soft_device_placement(); placement of the traced graph
    Cause(
        "E2",
        "use",
        "This training runs on the CPU: TensorFlow placed its ops there.",
        detect_step_on_cpu,
        'Take with(tf$device("CPU"), ...) out of the model, its layers and its loss; '
        "tf$config$set_soft_device_placement(FALSE) makes TensorFlow name the first such op.",
        explains=("works",),
        backend="tensorflow",
    ),
    # the kernels that this TensorFlow registers
    Cause(
        "E3",
        "use",
        "This training runs on the CPU: its ops have no kernel for a GPU.",
        detect_no_gpu_kernels,
        "Replace these ops by others, or train this model on the CPU.",
        explains=("works",),
        backend="tensorflow",
    ),
    # variable.device of the model's variables
    Cause(
        "E1p",
        "use",
        "The model's weights are on the CPU.",
        detect_some_weights_on_cpu,
        'Build and compile the model anew, outside of with_device("cpu", ...) and '
        'with(tf$device("CPU"), ...), and after gpu_setup().',
    ),
    # tf.config.set_soft_device_placement(); placement of the traced graph
    Cause(
        "E2p",
        "use",
        "Part of the training runs on the CPU, though it could run on the GPU.",
        detect_some_ops_on_cpu,
        'Take with(tf$device("CPU"), ...) out of the model, its layers and its loss; '
        "tf$config$set_soft_device_placement(FALSE) makes TensorFlow name the first such op.",
        backend="tensorflow",
    ),
    # the kernels that this TensorFlow registers
    Cause(
        "E3p",
        "use",
        "Part of the training runs on the CPU, because it has no kernel for a GPU.",
        detect_some_cpu_only_ops,
        "Do this before training (strings, lookups and resizing belong into the data), or use "
        "another op for it.",
        backend="tensorflow",
    ),
    # tensorflow, matmul_op_real.cc: on GPUs half, bfloat16, float, double and complex only
    Cause(
        "E4",
        "use",
        "A product runs on the CPU, because the GPU has no kernel for its type of numbers.",
        detect_integer_product,
        'Convert to float32 before it: tf$cast(x, "float32").',
        backend="tensorflow",
    ),
)
