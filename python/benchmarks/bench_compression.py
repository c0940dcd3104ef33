"""Measures what compressed models keep and gain, on real digits:  make bench-compression

    bench_compression.py [--quick] [--only REGEX] [--seeds N] [--json PATH]

--quick: two seeds. --only: cases whose name matches: prune, conv, wide, small, int8, distill,
distill_wrong, distill_short. --seeds: how many, 5 if it is not said. Needs gpukeras on PYTHONPATH.
Every seed is another split of the digits, other first weights and another order; accuracies are of
the rows held out, 30 % of all, 50 % where a student is taught. Figures are medians over seeds;
differences are paired, the mean with its 95 % interval (Student's t). How students are taught was
chosen on seeds 101 to 105, not on those that are reported (1, 2, ...).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, median, stdev
from typing import Any

from bench_table import Row, make_parser, run_cases, run_program

# Student's t for an interval of 95 %, by degrees of freedom.
T_95 = {1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}

Record = dict[str, Any]
Seeds = Sequence[int]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean of some differences, and half of its 95 % interval."""
    if len(values) < 2:
        return mean(values), math.inf
    return mean(values), T_95.get(len(values) - 1, 1.96) * stdev(values) / math.sqrt(len(values))


def read_accuracies(found: Sequence[Record], side: str) -> list[float]:
    """Of the models before or after, in points, one a seed."""
    return [one[side]["accuracy"] for one in found]


def compare_accuracies(
    what: str, ours: list[float], other: list[float], than: str, promise: str = "within 1 point"
) -> Row:
    """A line for the paired difference of accuracies; all of its interval keeps a promise."""
    middle, half = interval([one - two for one, two in zip(ours, other, strict=True)])
    low = middle - half
    kept = {"within 1 point": low > -1, "above 0": low > 0, "mean above 0": middle > 0}
    return Row(
        what,
        f"{median(ours):.2f} %",
        f"{median(other):.2f} % ({than})",
        f"{middle:+.2f} points [{middle - half:+.2f}, {middle + half:+.2f}]",
        promise,
        kept.get(promise),
    )


def compare_sides(
    what: str, found: Sequence[Record], read: Callable[[Record], float], promise: float | None
) -> Row:
    """A line for a figure of which less is better: after, before, and the median ratio."""
    before, after = ([read(one[side]) for one in found] for side in ("before", "after"))
    ratio = median(new / old for new, old in zip(after, before, strict=True))
    return Row(
        what,
        f"{median(after):.4g}",
        f"{median(before):.4g} (before)",
        f"{ratio:.3f}",
        f"at most {promise:g}" if promise else "",
        ratio <= promise if promise else None,
    )


def prune_rows(seeds: Seeds) -> list[Row]:
    """80 % of the weights are zeros."""
    found = run_program("compression_cases.py", "prune", *seeds)
    ours = read_accuracies(found, "after")
    what = "conv 32-64, dense 128; 80 % zeros: accuracy"
    longer = [one["longer"] for one in found]
    return [
        compare_accuracies(what, ours, read_accuracies(found, "before"), "before"),
        compare_accuracies(what, ours, longer, "as many more epochs, not pruned", ""),
        compare_sides("the same: KiB compressed", found, lambda one: one["packed_bytes"] / 1024, 0),
    ]


def structured_rows(case: str, what: str, promised: bool, seeds: Seeds) -> list[Row]:
    """Half the FLOPs, and what that does to the time of a batch and of a row."""
    found = run_program("compression_cases.py", case, *seeds)
    rows = found[0]["after"]["latency"][-1]["rows"]
    what += "; half the FLOPs:"
    ours, before = read_accuracies(found, "after"), read_accuracies(found, "before")
    return [
        compare_sides(f"{what} MFLOPs a row", found, lambda one: one["flops"] / 1e6, 0.5),
        compare_sides(
            f"{what} ms for {rows} rows",
            found,
            lambda one: 1e3 * one["latency"][-1]["median_s"],
            0.7 if promised else None,
        ),
        compare_sides(
            f"{what} ms for 1 row", found, lambda one: 1e3 * one["latency"][0]["median_s"], None
        ),
        compare_accuracies(f"{what} accuracy", ours, before, "before", ""),
    ]


def int8_rows(seeds: Seeds) -> list[Row]:
    """Whole numbers of 8 bits."""
    found = run_program("compression_cases.py", "int8", *seeds)
    ours, before = read_accuracies(found, "after"), read_accuracies(found, "before")
    what = "dense 512-512; int8:"
    return [
        compare_sides(f"{what} KiB on disk", found, lambda one: one["disk_bytes"] / 1024, 0.3),
        compare_accuracies(f"{what} accuracy", ours, before, "before"),
        compare_sides(
            f"{what} ms for 32 rows", found, lambda one: 1e3 * one["latency"][-1]["median_s"], None
        ),
    ]


def distill_rows(case: str, what: str, promise: str, seeds: Seeds) -> list[Row]:
    """A student taught, against the same one alone."""
    found = run_program("compression_cases.py", case, *seeds)
    taught, alone = ([one[name] for one in found] for name in ("taught", "alone"))
    teacher = median(one["teacher"] for one in found)
    what = f"{what} (teacher: {teacher:.2f} %)"
    return [compare_accuracies(what, taught, alone, "alone", promise)]


CONV, WIDE = "conv 64-128, dense 128", "dense 2048-2048"
STUDENT = "dense 32 taught by conv 16-32 trained on shifted images, T 3, alpha 0.5, {} epochs"
CASES: dict[str, Callable[[Seeds], list[Row]]] = {
    "prune": prune_rows,
    "conv": partial(structured_rows, "conv", CONV, False),
    "wide": partial(structured_rows, "wide", WIDE, True),
    "small": partial(structured_rows, "small", "dense 32: a call's own time", False),
    "int8": int8_rows,
    "distill": partial(distill_rows, "distill", STUDENT.format(100), "mean above 0"),
    "distill_wrong": partial(
        distill_rows,
        "distill_wrong",
        f"{STUDENT.format(100)}, a fifth of all labels random",
        "above 0",
    ),
    "distill_short": partial(distill_rows, "distill_short", STUDENT.format(20), ""),
}


def main() -> None:
    """Runs the cases asked for and prints their table."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    seeds = range(1, 1 + (2 if options.quick else options.seeds))
    run_cases({name: partial(case, seeds) for name, case in CASES.items()}, options)


if __name__ == "__main__":
    main()
