"""Measures what several workers cost on this computer, and reckons with more:  make bench-scale

    bench_scale.py [--quick] [--only REGEX] [--json PATH]

--quick: fewer repetitions. --only: cases whose name matches: loopback, limited, fit, predict.
Needs gpukeras on PYTHONPATH. Workers are processes here, which share its cores; so steps are also
measured with all computing beside each other without any exchange. "limited" gives each worker a
link of a known speed in a network namespace (Linux, ip, tc, unshare), so that the network and not
the cores is the limit; elsewhere it says why it was left out. "predict" prints what hundreds of
GPUs would do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache, partial
from statistics import median
from typing import Any

from bench_table import Row, make_parser, run_cases
from ring_costs import Measurement, RingFit, fit_ring
from scale_group import FREE, explain_no_limit, run_group
from scale_tables import format_tables
from scaling import predict

WORKERS = (2, 4)
MBIT_PER_S = 200  # little enough for two cores to serve four workers
SIZES = {FREE: [2**power for power in (10, 13, 16, 18, 20, 22, 24, 26)]}
SIZES[MBIT_PER_S] = [2**power for power in (16, 18, 20, 22)]
BATCH_SIZE = 256  # of each worker
NEAR = 0.25  # what a prediction may be wrong by, as a share


def loopback_rows(quick: bool) -> list[Row]:
    """Workers on this computer, as fast as it goes."""
    return [*_reduce_rows(FREE, quick), *_step_rows(FREE, quick)]


def limited_rows(quick: bool) -> list[Row]:
    """The same over links of a known speed: whether a ring costs what theory says."""
    problem = explain_no_limit()
    if problem:
        return [Row("workers on limited links: left out", problem, "", "")]
    found = fit_ring(list_reductions(MBIT_PER_S, quick))
    known = MBIT_PER_S / 8 * 1e6
    off = found.ring.bytes_per_s / known - 1
    speed = Row(
        f"bandwidth of links of {MBIT_PER_S} Mbit/s, found by the fit",
        f"{found.ring.bytes_per_s / 1e6:.1f} MB/s",
        f"{known / 1e6:.1f} MB/s (known)",
        f"{1 + off:.2f}",
        f"within {NEAR:.0%}",
        abs(off) <= NEAR,
    )
    rows = [*_reduce_rows(MBIT_PER_S, quick), speed, _foretell_row(quick)]
    return rows + _step_rows(MBIT_PER_S, quick)


def fit_rows(quick: bool) -> list[Row]:
    """gpukeras' own training of the same network, beside the bare one."""
    rows = []
    for workers in (1, *WORKERS):
        records = run_group(workers, FREE, "scale_fit.py", _rounds(quick), BATCH_SIZE)
        own_s = _slowest(records)["together"]
        bare_s = measure(workers, FREE, quick)["together"]
        rows.append(
            Row(
                f"step by gpukeras, {_count(workers)}, {BATCH_SIZE} rows each",
                _ms(own_s),
                f"{_ms(bare_s)} (bare TensorFlow)",
                f"{bare_s / own_s:.2f}",
            )
        )
    return rows


@cache
def measure(workers: int, mbit_per_s: int, quick: bool) -> dict[str, float]:
    """Median seconds of all that scale_worker.py measures, and "gradient_bytes"."""
    sizes = SIZES[mbit_per_s] if workers > 1 else []
    arguments = [_rounds(quick), BATCH_SIZE, *sizes]
    records = run_group(workers, mbit_per_s, "scale_worker.py", *arguments)
    return {**_slowest(records), "gradient_bytes": records[0]["gradient_bytes"]}


def list_reductions(mbit_per_s: int, quick: bool) -> list[Measurement]:
    """The all-reduces of all sizes and numbers of workers."""
    return [
        Measurement(workers, size, measure(workers, mbit_per_s, quick)[str(size)])
        for workers in WORKERS
        for size in SIZES[mbit_per_s]
    ]


def _slowest(records: list[dict[str, Any]]) -> dict[str, float]:
    """Workers wait for each other, so the slowest of a round counts; the median of the rounds."""
    every = [record["seconds"] for record in records]
    return {
        name: median(map(max, zip(*(seconds[name] for seconds in every), strict=True)))
        for name in every[0]
    }


def _reduce_rows(mbit_per_s: int, quick: bool) -> list[Row]:
    measurements = list_reductions(mbit_per_s, quick)
    found = fit_ring(measurements)
    rows = [
        Row(
            f"all-reduce, {_count(point.replicas)}{_links(mbit_per_s)}, {_size(point.size_bytes)}",
            f"{_ms(point.seconds)} (measured)",
            f"{_ms(fitted_s)} (fitted)",
            f"{fitted_s / point.seconds:.2f}",
        )
        for point, fitted_s in zip(measurements, found.fitted_s, strict=True)
    ]
    fits = {f"{_count(n)}": _fit_alone(measurements, n) for n in WORKERS}
    fits["all of them"] = found
    return rows + [_fit_row(f"{name}{_links(mbit_per_s)}", fit) for name, fit in fits.items()]


def _fit_alone(measurements: list[Measurement], workers: int) -> RingFit:
    return fit_ring([point for point in measurements if point.replicas == workers])


def _fit_row(name: str, found: RingFit) -> Row:
    return Row(
        f"the ring that fits {name}: latency and bandwidth",
        f"{_ms(found.ring.latency_s)}, {found.ring.bytes_per_s / 1e6:.0f} MB/s",
        "",
        f"{found.typical_error:.0%} off, at worst {found.worst_error:.0%}",
    )


def _foretell_row(quick: bool) -> Row:
    """Four workers, foretold from measurements of two alone."""
    measurements = list_reductions(MBIT_PER_S, quick)
    ring = _fit_alone(measurements, WORKERS[0]).ring
    errors = [
        abs(ring.reduce_s(point.replicas, point.size_bytes) / point.seconds - 1)
        for point in measurements
        if point.replicas == WORKERS[1]
    ]
    return Row(
        f"{WORKERS[1]} workers, foretold from {WORKERS[0]}{_links(MBIT_PER_S)}: error",
        f"{median(errors):.0%} (median of {len(errors)} sizes)",
        "",
        f"at worst {max(errors):.0%}",
        f"median within {NEAR:.0%}",
        median(errors) <= NEAR,
    )


def _step_rows(mbit_per_s: int, quick: bool) -> list[Row]:
    single = measure(1, FREE, quick)
    rows = []
    if mbit_per_s == FREE:
        rows.append(Row(f"step, 1 worker, {BATCH_SIZE} rows", _ms(single["alone"]), "", ""))
    ring = fit_ring(list_reductions(mbit_per_s, quick)).ring
    for workers in WORKERS:
        found = measure(workers, mbit_per_s, quick)
        foretold = predict(found["alone"], found["gradient_bytes"], workers, ring)
        what, promised = f"{_count(workers)}{_links(mbit_per_s)}", mbit_per_s != FREE
        rows += _compare_steps(what, single["alone"], found, foretold.step_s, promised)
    return rows


def _compare_steps(
    what: str, single_s: float, found: dict[str, float], foretold_s: float, promised: bool
) -> list[Row]:
    alone_s, step_s = found["alone"], found["together"]
    return [
        Row(
            f"step, {what}, computing beside each other without exchange",
            _ms(alone_s),
            f"{_ms(single_s)} (one worker)",
            f"{single_s / alone_s:.2f}",
        ),
        Row(
            f"step, {what}, gradients of {_size(found['gradient_bytes'])} exchanged",
            f"{_ms(step_s)} (measured)",
            f"{_ms(foretold_s)} (foretold by the ring)",
            f"{foretold_s / step_s:.2f}",
            f"within {NEAR:.0%}" if promised else "",
            abs(foretold_s / step_s - 1) <= NEAR if promised else None,
        ),
        Row(
            f"efficiency, {what}: what the exchange leaves of a step",
            f"{alone_s / step_s:.0%} (measured)",
            f"{alone_s / foretold_s:.0%} (foretold by the ring)",
            f"{step_s / foretold_s:.2f}",
        ),
        Row(
            f"the same, {what}, with what sharing the cores costs",
            f"{single_s / step_s:.0%}",
            f"{_ms(single_s)} (one worker)",
            "",
        ),
    ]


def _rounds(quick: bool) -> int:
    return 3 if quick else 5


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f} ms"


def _count(workers: int) -> str:
    return f"{workers} worker{'s' * (workers > 1)}"


def _links(mbit_per_s: int) -> str:
    return f" on links of {mbit_per_s} Mbit/s" if mbit_per_s != FREE else ""


def _size(size_bytes: float) -> str:
    if size_bytes >= 2**20:
        return f"{size_bytes / 2**20:.3g} MiB"
    return f"{size_bytes / 2**10:.3g} KiB"


CASES: dict[str, Callable[[bool], list[Row]]] = {
    "loopback": loopback_rows,
    "limited": limited_rows,
    "fit": fit_rows,
}


def main() -> None:
    """Runs the cases asked for and prints their table, then the predictions."""
    options = make_parser(__doc__).parse_args()
    if any(re.search(options.only, name) for name in CASES):
        print(f"{os.cpu_count()} cores; workers are processes on them.\n")
        run_cases({name: partial(case, options.quick) for name, case in CASES.items()}, options)
    if re.search(options.only, "predict"):
        print(f"\n{format_tables()}")


if __name__ == "__main__":
    main()
