"""Chooses how compiled programs know their number of batches; no TensorFlow.

XLA's runtime for GPUs waits for the device before each iteration of a loop whose trip count it does
not know, and copies the condition to the host. With a known trip count it launches one iteration
after another. A known count is part of the program, so each one costs a compilation.

On a CPU there is nothing to wait for. Seconds of a call of 512 batches of 32 x 20 (64 and 10 units,
dropout, Adam, accuracy), fastest of 7, on 2 cores with a load of 5 to 6, so that only large
differences mean anything:

    loop                             tracing   compiling   call
    run-time count                       0.4         1.8   0.030 (0.068 after the others)
    known count                          0.4         2.1   0.041
    known count, 2 steps a trip          1.1         5.2   0.077
    known count, 4 steps a trip          2.1         6.3   0.062
    known count, 8 steps a trip          4.4        12.2   0.102

So a trip is one step. An epoch of 400 batches of 256 x 64 (case dense_small_loops of
`make gpu-evidence`) took 0.202 s with a run-time count and 0.234 s in 8 calls of known counts
(fastest of 9, same load). None of this was measured on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Batches of the programs, largest first; a call is split into them. A call of TensorFlow costs 0.2
# to 0.3 ms and a program some seconds of a processor. With every third power of two, four programs
# serve blocks of up to 4,096 batches in 14 calls on average; with every power there would be ten.
PROGRAM_BATCHES = (512, 64, 8, 1)


@dataclass(frozen=True)
class LoopChoice:
    """Whether the trip count is part of a compiled program, and why."""

    static: bool
    reason: str


def choose_loop(device: str, deterministic: bool) -> LoopChoice:
    """Chooses between a trip count that XLA knows and one that a call brings.

    Args:
        device: The model's device, such as "GPU:0".
        deterministic: Whether the session asked for determinism.
    """
    if device.startswith("CPU"):
        return LoopChoice(False, "on a CPU a loop whose trip count is unknown is as fast")
    if deterministic:
        reason = "times would decide which programs run, and these may differ in the last bit"
        return LoopChoice(False, reason)
    return LoopChoice(True, "a GPU would wait for the host in each step")


def choose_sizes(batches: int) -> tuple[int, ...]:
    """Returns the batches of the programs for calls of up to `batches`, largest first."""
    return tuple(size for size in PROGRAM_BATCHES if size <= max(1, batches))


def split_count(count: int, sizes: Sequence[int]) -> list[int]:
    """Splits a number of batches into sizes of programs, as few as possible.

    Args:
        count: The number of batches.
        sizes: The sizes, largest first; the last is 1.
    """
    parts = []
    for size in sizes:
        whole, count = divmod(count, size)
        parts += [size] * whole
    return parts
