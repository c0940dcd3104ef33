"""Divides wall time among the overlapping work in it, so that the parts always sum to the whole."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpukeras.profiler.trace.activity import Activity, Work
from gpukeras.profiler.trace.events import measure_union

Windows = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class StepShares:
    """Wall time of a window by what ran; the four parts sum to `wall_s`.

    Args:
        wall_s: Length of the window in seconds.
        kernels_s: Time in which at least one kernel ran.
        transfers_s: Time in which a transfer ran and no kernel.
        host_s: Time in which neither ran and the host prepared or launched work, Python included.
        idle_s: The rest: nothing ran, or TensorFlow waited for the next batch of tf.data.
        steps: Marked steps in the window; 0 if none is marked.
    """

    wall_s: float
    kernels_s: float
    transfers_s: float
    host_s: float
    idle_s: float
    steps: int


def attribute_windows(
    works: Iterable[Work], windows: Windows, key: Callable[[Work], Hashable]
) -> dict[Hashable, float]:
    """Returns seconds by key: each moment is divided equally among the works active in it.

    The sum is the length of the union of the works within the windows, so it never exceeds theirs.

    Args:
        works: Works; overlapping ones share the time.
        windows: Begin and end in seconds of each window; sorted, without overlap.
        key: Maps a work to the key that it counts for.
    """
    edges: list[tuple[float, int, int, Hashable]] = []
    for number, (work, begin, end) in enumerate(clip(works, windows)):
        name = key(work)
        edges += [(begin, 1, number, name), (end, 0, number, name)]
    edges.sort(key=lambda edge: edge[:3])
    seconds: dict[Hashable, float] = defaultdict(float)
    active: dict[int, Hashable] = {}
    before = 0.0
    for moment, begins, number, name in edges:
        for one in active.values() if moment > before else ():
            seconds[one] += (moment - before) / len(active)
        if begins:
            active[number] = name
        else:
            del active[number]
        before = moment
    return dict(seconds)


def clip(works: Iterable[Work], windows: Windows) -> Iterator[tuple[Work, float, float]]:
    """Yields each work with its begin and end clipped to every window that it overlaps."""
    ends = [end for _, end in windows]
    for work in works:
        for begin, end in windows[bisect_right(ends, work.begin_s) :]:
            if begin >= work.end_s:
                break
            first, last = max(begin, work.begin_s), min(end, work.end_s)
            if last > first:
                yield work, first, last


def shares(activity: Activity, steps: bool = True) -> StepShares:
    """Returns the wall time of a trace by what ran.

    Args:
        activity: The trace.
        steps: Whether to count within the marked steps only, not between them (where Python waits
            for input, for example). If False, or if the trace has no marks, the window is the whole
            `activity.span`.
    """
    windows = activity.windows if steps else (activity.span,)
    wall = sum(end - begin for begin, end in windows)
    covered = [_cover(activity.works, windows, kinds) for kinds in _PRIORITY]
    kernels, transfers, host = covered[0], covered[1] - covered[0], covered[2] - covered[1]
    idle = max(0.0, wall - covered[2])
    return StepShares(wall, kernels, transfers, host, idle, len(activity.steps))


_PRIORITY = (("kernel",), ("kernel", "transfer"), ("kernel", "transfer", "host"))


def _cover(works: Iterable[Work], windows: Windows, kinds: Sequence[str]) -> float:
    chosen = (work for work in works if work.kind in kinds)
    return measure_union((begin, end) for _, begin, end in clip(chosen, windows))
