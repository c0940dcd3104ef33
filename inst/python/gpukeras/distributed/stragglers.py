"""Names workers that the others wait for.

In synchronous training every step takes as long as the slowest worker's. A worker's own time is
what it spends outside of the engine's calls, in which all of them wait for each other: on rows,
callbacks and R. A slow device is not told apart from waiting for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

# NVIDIA's Resiliency Extension reports a straggler where a worker's relative performance is below
# 0.7: the median of the others' times divided by its own.
SCORE = 0.7
LEAST_S = 1.0  # shorter delays of a whole training are noise


def find_stragglers(own_s: Sequence[float]) -> list[int]:
    """Returns the indices of workers that were slower than the others.

    Args:
        own_s: Each worker's own seconds since the training began.
    """
    stragglers = []
    for index, own in enumerate(own_s):
        others = [seconds for place, seconds in enumerate(own_s) if place != index]
        usual = median(others) if others else own
        if own - usual >= LEAST_S and usual < SCORE * own:
            stragglers.append(index)
    return stragglers


def explain_stragglers(own_s: Sequence[float], names: Sequence[str]) -> list[str]:
    """Returns a sentence for each straggler.

    Args:
        own_s: As in `find_stragglers()`.
        names: The workers' names, such as "worker 2 (10.0.0.6:2222)".
    """
    notes = []
    for index in find_stragglers(own_s):
        usual = median([seconds for place, seconds in enumerate(own_s) if place != index])
        name = names[index][:1].upper() + names[index][1:]
        notes.append(
            f"{name} was slow: outside of the steps it took {own_s[index]:.1f} s for its rows, "
            f"callbacks and R, and the others {usual:.1f} s (median), so they waited for it."
        )
    return notes
