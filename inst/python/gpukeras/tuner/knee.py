"""Finds where a curve of throughput over batch sizes flattens; pure functions with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

ENOUGH = 0.9  # share of the best throughput: the last tenth costs twice the memory each time
GAIN = 1.05  # least factor of two doublings, else the curve counts as flat
FITS, FULL = "ok", "out of memory"


@dataclass(frozen=True)
class Point:
    """The measurement of one batch size.

    Args:
        batch_size: Rows per batch.
        rows_per_s: Median throughput, or None if the batch did not fit.
        peak_bytes: Peak of a GPU's memory that was held; None on the CPU, or if unknown.
        status: "ok" or "out of memory".
    """

    batch_size: int
    rows_per_s: float | None
    peak_bytes: float | None = None
    status: str = FITS


def smooth_rates(rates: Sequence[float]) -> list[float]:
    """Smooths with running medians of three and Tukey's end rule (1977), against outliers.

    At an end the rule takes the median of the end rate, of the smoothed rate beside it, and of the
    extrapolation from the two smoothed rates nearest to it; so a rising curve keeps its end.
    """
    if len(rates) < 3:
        return list(rates)
    inner = [median(rates[i - 1 : i + 2]) for i in range(1, len(rates) - 1)]
    if len(inner) < 2:
        return [rates[0], *inner, rates[-1]]
    first = median([rates[0], inner[0], 3 * inner[0] - 2 * inner[1]])
    last = median([rates[-1], inner[-1], 3 * inner[-1] - 2 * inner[-2]])
    return [first, *inner, last]


def choose_knee(points: Sequence[Point]) -> int | None:
    """Returns the smallest batch size with 90 % of the best throughput; None if none fits.

    Throughput is smoothed first, so that a single outlier does not decide.
    """
    sizes, rates = _split_fits(points)
    if not sizes:
        return None
    enough = ENOUGH * max(rates)
    return next(size for size, rate in zip(sizes, rates, strict=True) if rate >= enough)


def is_flat(points: Sequence[Point]) -> bool:
    """Whether the last two doublings gained less than 5 % over the best before them."""
    _, rates = _split_fits(points)
    return len(rates) > 3 and max(rates[-2:]) < GAIN * max(rates[:-2])


def choose_sizes(first: int, last: int) -> list[int]:
    """Returns the sizes to try: doubled from `first`, and also `last`."""
    sizes = [first]
    while 2 * sizes[-1] <= last:
        sizes.append(2 * sizes[-1])
    return sizes if sizes[-1] == last else [*sizes, last]


def explain_choice(points: Sequence[Point], stopped: str) -> str:
    """Returns why the size was recommended, and why the search ended."""
    ends = {
        "flat": "larger ones bring no more",
        "memory": f"{points[-1].batch_size:,} does not fit in memory" if points else "",
        "rows": "larger ones leave too few updates an epoch, or the data has no more rows",
        "to": "`to` was reached",
        "time": "the time for the search was up",
        "interrupted": "the search was interrupted",
    }
    chosen = choose_knee(points)
    if chosen is None:
        return f"nothing was measured: {ends[stopped]}"
    sizes, rates = _split_fits(points)
    best = max(rates)
    share = rates[sizes.index(chosen)] / best
    what = (
        f"the smallest with {ENOUGH:.0%} of the best throughput ({share:.0%} of {best:,.0f} rows/s)"
    )
    return f"{what}; {ends[stopped]}"


def _split_fits(points: Sequence[Point]) -> tuple[list[int], list[float]]:
    """Returns the sizes that fit, and their smoothed throughput."""
    fits = [
        (point.batch_size, point.rows_per_s) for point in points if point.rows_per_s is not None
    ]
    return [size for size, _ in fits], smooth_rates([rate for _, rate in fits])
