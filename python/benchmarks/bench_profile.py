"""Measures whether monitor and profile tell the truth, and what they cost:  make bench-profile

    bench_profile.py [--quick] [--only REGEX] [--json PATH]

--quick: fewer repetitions. --only: cases whose name matches: monitor, input, verdicts, advice.
Needs gpukeras on PYTHONPATH. Each case runs in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from bench_table import Row, make_parser, run_cases, run_program


def monitor_rows(quick: bool) -> list[Row]:
    """What watching costs the training that is watched; 1 % is promised."""
    found = run_program("profile_cases.py", "monitor", 6 if quick else 20)
    lost = found["slower"] - 1
    return [
        Row(
            "gpu_monitor() at 0.2 s beside a training: median of "
            f"{found['pairs']} pairs, watched and not",
            f"{found['watched_s']:.3f} s",
            f"{found['alone_s']:.3f} s (not watched)",
            f"{100 * lost:+.1f} %",
            "below 1 %",
            lost < 0.01,
        ),
        Row(
            "the same: processor time of the sampler",
            f"{100 * found['sampler_share']:.1f} % of one core",
            "",
            "",
            "",
        ),
    ]


def input_rows(quick: bool) -> list[Row]:
    """Input that is delayed by a known time, before a step of a known time."""
    delays = [10] if quick else [5, 10, 20, 40]
    return [_input_row(*case) for case in run_program("profile_cases.py", "input", *delays)]


def _input_row(delay_ms: float, true: float, found: float, verdict: str) -> Row:
    error = 100 * abs(found - true)
    return Row(
        f"input delayed by {delay_ms:g} ms, step of 20 ms: share of waiting",
        f"{100 * found:.1f} % ({verdict})",
        f"{100 * true:.1f} % (known)",
        f"{error:.1f} points",
        "within 10 points",
        error <= 10,
    )


def verdict_rows(quick: bool) -> list[Row]:
    """A big dense model, on each engine."""
    engines = ["graph_loop"] if quick else ["keras", "graph_loop", "compiled"]
    return [
        Row(
            f"dense 1024-1024 on 256 columns, batch 256, engine {found['engine']}",
            f"{found['verdict']}, {100 * found['kernels']:.0f} % kernels",
            f"layers {1e3 * found['layers_s']:.2f} ms of a step of {1e3 * found['step_s']:.2f} ms",
            f"{found['layers_s'] / found['step_s']:.2f}",
            "compute-bound; layers within 15 %",
            found["verdict"] == "compute-bound" and found["layers_s"] > 0.85 * found["step_s"],
        )
        for found in run_program("profile_cases.py", "verdicts", *engines)
    ]


def advice_rows(quick: bool) -> list[Row]:
    """A tiny model on Keras' own engine, and what its first advice brings in gpu_fit()."""
    found = run_program("profile_cases.py", "advice", 2 if quick else 6)
    return [
        Row(
            f"dense 8 on 5 columns, batch 32, engine keras: {found['verdict']}; {found['advice']}",
            f"{found['after']:,.0f} rows a second",
            f"{found['before']:,.0f} before",
            f"{found['after'] / found['before']:.1f}",
            "at least 5",
            found["after"] >= 5 * found["before"],
        )
    ]


CASES: dict[str, Callable[[bool], list[Row]]] = {
    "monitor": monitor_rows,
    "input": input_rows,
    "verdicts": verdict_rows,
    "advice": advice_rows,
}


def main() -> None:
    """Runs the cases asked for and prints their table."""
    options = make_parser(__doc__).parse_args()
    run_cases({name: partial(case, options.quick) for name, case in CASES.items()}, options)


if __name__ == "__main__":
    main()
