"""What `gpu_evidence.py` measures: the cases, their questions, and who gets how much time.

All of it is data and arithmetic. A case trains one model at one batch size in one precision, by
plain Keras and by gpukeras in turn; a question puts some cases side by side in a table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

QUICK_STEPS, QUICK_BATCH = 8, 16  # of --quick: most steps an epoch, what batches are divided by
# Seconds that a case of weight 1 gets at least, if quick or not: rather some cases whole than all
# in part. What does not fit is not run.
LEAST_S = {True: 5.0, False: 20.0}
HARD_LIMIT = 3.0  # times its share: then a case hangs, and is ended with its process
SMALLEST_BATCH = 8


@dataclass(frozen=True)
class Case:
    """One setting in which all ways train the same model.

    Args:
        name: Such as "dense_small_32".
        model: A function of `evidence_models`.
        batch: Rows a step.
        steps: An epoch's, all of full batches.
        title: As the tables show it.
        precision: Keras' dtype policy.
        tf32: Whether a GPU may compute products of float32 as TF32.
        jit: Whether XLA compiles the step; None leaves it to Keras and to gpukeras.
        places: Where gpukeras keeps the rows: "auto", "host" or "disk".
        loops: Whether the loops of compiled programs are compared, instead of Keras and gpukeras.
        xla_flags: XLA's flags, which hold for a process.
        weight: Its share of the time, relative to the others'.
    """

    name: str
    model: str
    batch: int
    steps: int
    title: str
    precision: str = "float32"
    tf32: bool = True
    jit: bool | None = None
    places: tuple[str, ...] = ("auto",)
    loops: bool = False
    xla_flags: str = ""
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Checks the numbers."""
        if min(self.batch, self.steps, self.weight) <= 0:
            raise ValueError(f"{self.name}: batch, steps and weight must be above 0")

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return self.batch * self.steps


@dataclass(frozen=True)
class Question:
    """Cases that are compared with each other.

    Args:
        title: The table's heading.
        cases: Their names.
        base: The case that the others' times are told as a multiple of, or "".
    """

    title: str
    cases: tuple[str, ...]
    base: str = ""


_SMALL = Case("dense_small", "dense_small", 256, 400, "dense small, batch 256")
_LARGE = Case("dense_large", "dense_large", 2048, 64, "dense large, float32 as TF32")
_CONV = Case("convolutional", "convolutional", 256, 128, "convolutional, batch 256", weight=1.5)
_LSTM = Case("recurrent", "recurrent", 256, 64, "masked LSTM, 32 steps")
_UNROLLED = replace(_LSTM, name="unrolled", model="unrolled", title="unrolled LSTM, 32 steps")


def _large(name: str, title: str, precision: str = "float32") -> Case:
    return replace(
        _LARGE, name=name, title=f"dense large, {title}", precision=precision, tf32=False
    )


def _small(batch: int, steps: int) -> Case:
    title = f"dense small, batch {batch}"
    return replace(_SMALL, name=f"dense_small_{batch}", batch=batch, steps=steps, title=title)


def _xla(case: Case, jit: bool, suffix: str) -> Case:
    short = case.title.partition(",")[0]
    title = f"{short}, {'XLA' if jit else 'no XLA'}"
    return replace(case, name=f"{case.name}_{suffix}", title=title, jit=jit)


def _loops(case: Case, name: str, title: str, xla_flags: str = "") -> Case:
    short = case.title.partition(",")[0]
    named = replace(case, name=f"{case.name}_{name}", title=f"{short}, {title}")
    return replace(named, jit=True, loops=True, xla_flags=xla_flags, weight=0.5)


# What changes the launches of a step; `python/gpu_programs/README.md` counts them. None is on.
# An XLA that does not know a flag ends the case's process: JAX 0.10 knows all of them.
_GRAPHS = "--xla_gpu_enable_command_buffer=+WHILE"
_CONVOLUTIONS = "--xla_gpu_enable_command_buffer=+CONVOLUTION"
_TWO_STEPS = "--xla_gpu_enable_while_loop_unrolling=WHILE_LOOP_UNROLLING_DOUBLE_BUFFER"
_SMALLEST = "--xla_gpu_graph_min_graph_size=1"


# In the order of their worth: where the time runs out, the last ones are not run.
CASES: Mapping[str, Case] = {
    case.name: case
    for case in (
        replace(_SMALL, places=("auto", "host", "disk"), weight=1.5),
        _LARGE,
        _large("dense_large_bfloat16", "mixed_bfloat16", "mixed_bfloat16"),
        _xla(_SMALL, False, "no_xla"),
        _loops(_SMALL, "loops", "XLA's flags as they are"),
        _loops(_SMALL, "graphs", "loops as CUDA graphs", _GRAPHS),
        _loops(_SMALL, "two_steps", "two steps a trip", _TWO_STEPS),
        _CONV,
        _loops(_CONV, "loops", "XLA's flags as they are"),
        _loops(_CONV, "graphs", "convolutions in CUDA graphs", _CONVOLUTIONS),
        _small(32, 1000),
        _large("dense_large_float32", "float32 in full"),
        _xla(_SMALL, True, "xla"),
        _small(2048, 128),
        _large("dense_large_float16", "mixed_float16", "mixed_float16"),
        Case("embedding", "embedding", 1024, 128, "embedding, batch 1024"),
        _xla(_CONV, False, "no_xla"),
        _small(16384, 32),
        _xla(_CONV, True, "xla"),
        _loops(_LSTM, "loops", "XLA's flags as they are"),
        _loops(_UNROLLED, "loops", "XLA's flags as they are"),
        _loops(_LSTM, "graphs", "small CUDA graphs", _SMALLEST),
    )
}
_PRECISIONS = ("dense_large_float32", "dense_large", "dense_large_float16", "dense_large_bfloat16")
_BATCHES = ("dense_small_32", "dense_small", "dense_small_2048", "dense_small_16384")
_LOOPS = ("dense_small_loops", "dense_small_graphs", "dense_small_two_steps")
_CONV_LOOPS = ("convolutional_loops", "convolutional_graphs")
_LSTM_LOOPS = ("recurrent_loops", "unrolled_loops", "recurrent_graphs")
QUESTIONS = (
    Question("Where the data lives", ("dense_small",)),
    Question("Precision", _PRECISIONS, "dense_large_float32"),
    Question("XLA", ("dense_small_no_xla", "dense_small_xla"), "dense_small_no_xla"),
    Question(
        "XLA of convolutions",
        ("convolutional_no_xla", "convolutional_xla"),
        "convolutional_no_xla",
    ),
    Question("Loops of compiled programs", _LOOPS, _LOOPS[0]),
    Question("Loops over convolutions", _CONV_LOOPS, _CONV_LOOPS[0]),
    Question("Loops within a step", _LSTM_LOOPS, _LSTM_LOOPS[0]),
    Question("Batch size", _BATCHES),
    Question("Model size", ("dense_small", "dense_large", "convolutional", "embedding")),
)


def choose_cases(only: str = "", quick: bool = False, backend: str = "tensorflow") -> list[Case]:
    """The cases whose names hold a pattern; small ones where it has to be quick.

    On JAX, XLA compiles all that is compared, so cases with and without it are left out.
    """
    found = [case for case in CASES.values() if re.search(only, case.name)]
    if backend == "jax":
        found = [case for case in found if case.jit is None or case.loops]
    return [shrink(case) for case in found] if quick else found


def read_flags(name: str) -> str:
    """XLA's flags of a case."""
    return CASES[name].xla_flags if name in CASES else ""


def need_time(names: Sequence[str], quick: bool = False) -> list[float]:
    """Seconds that each of some cases needs at least."""
    return [CASES[name].weight * LEAST_S[quick] for name in names if name in CASES]


def shrink(case: Case) -> Case:
    """A case that a laptop's processor trains in a moment; it tells nothing of speed."""
    batch = max(SMALLEST_BATCH, case.batch // QUICK_BATCH)
    title = re.sub(r"batch \d+", f"batch {batch}", case.title)
    return replace(case, batch=batch, steps=min(case.steps, QUICK_STEPS), title=f"{title}, tiny")


# Time ---------------------------------------------------------------------------------------------


def allot(left_s: float, limit_s: float, later_s: Sequence[float]) -> float:
    """Seconds that a step may take: its limit, but what the later ones need at least is kept."""
    return min(limit_s, max(0.0, left_s - sum(later_s)))


def share_time(left_s: float, weights: Sequence[float], least_s: float) -> float:
    """Seconds of the first of several cases; what it does not use goes to the later ones.

    Args:
        left_s: Seconds for all of them.
        weights: Of each.
        least_s: What a case of weight 1 gets at least.
    """
    share_s = max(left_s / sum(weights), least_s) * weights[0]
    return max(0.0, min(left_s, share_s))


def is_enough(left_s: float, case: Case, least_s: float) -> bool:
    """Whether it makes sense to begin a case."""
    return left_s >= case.weight * least_s


def limit_case(left_s: float, share_s: float) -> float:
    """Seconds after which a case hangs."""
    return max(1.0, min(left_s, HARD_LIMIT * share_s))
