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

from collections import Counter
from collections.abc import Sequence

MOST_PROGRAMS = 6  # of one shape of blocks: each costs seconds, or a minute, of compiling
# Seconds of a call of a program, at most. Progress, interrupts and checkpoints wait for its end,
# and for that of the call before, which a GPU may still run: 4 s, of the 30 s or more that queues
# leave between a signal and the kill. A call costs 0.3 ms, so shorter ones would gain a program's
# compilation and lose nothing; longer ones would gain nothing.
LONGEST_CALL_S = 2.0


def knows_trip_counts(device: str, deterministic: bool) -> bool:
    """Whether trip counts are parts of compiled programs, as a GPU would wait for the host else.

    Args:
        device: The model's device, such as "GPU:0".
        deterministic: Whether the session asked for determinism: then times may not decide which
            programs run, as these may differ in the last bit.
    """
    return not device.startswith("CPU") and not deterministic


def choose_size(batches: int, batch_s: float) -> int:
    """Returns the batches of a block's calls: all of them, or an equal part where batches are slow.

    A block of up to twice `LONGEST_CALL_S` takes at most two calls. A slower one takes more, each
    of a second at least, if a batch does not take longer. Smaller blocks would need as many, and
    programs of their own: a batch's time is known only when those of the first block are compiled.
    Parts are halves of halves, so that a time that varies changes them seldom.

    Args:
        batches: Batches of the block.
        batch_s: Seconds of a batch; infinity while they are unknown.
    """
    parts, size = 1, max(1, batches)
    while size > 1 and size * batch_s > LONGEST_CALL_S:
        parts *= 2
        size = -(-batches // parts)
    return size


class ProgramSizes:
    """Chooses the numbers of batches for which there are programs.

    Each number that is asked for a second time gets a program of its own: then it will come in each
    epoch, as the batches of a block and of an epoch's last block do. What comes once, such as the
    rest of a training's first block, is split into programs that are there, or runs in one whose
    number is a run-time value.

    Attributes:
        made: Numbers of batches of the programs that can run, largest first.
    """

    def __init__(self) -> None:
        """Starts with single batches."""
        self.made: tuple[int, ...] = (1,)
        self._asked: Counter[int] = Counter()

    def add(self, *counts: int) -> None:
        """Adds programs."""
        self.made = tuple(sorted({*self.made, *counts}, reverse=True))

    def wants(self, count: int) -> bool:
        """Whether now is the time to make a program for calls of so many batches."""
        wanted = self.is_next(count)
        self._asked[count] += 1
        return wanted

    def is_next(self, count: int) -> bool:
        """Whether a program will be made when so many batches are asked for again."""
        again = self._asked[count] == 1 and count not in self.made
        return again and len(self.made) < MOST_PROGRAMS

    def is_settled(self, count: int) -> bool:
        """Whether calls of so many batches run as they will: their program is there, or none comes.

        Before that their time tells nothing: they take many calls, or wait for the compiler.
        """
        return count in self.made or self._asked[count] > 2

    def split(self, count: int) -> list[int]:
        """Splits a call into those of programs."""
        return split_count(count, self.made)


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
