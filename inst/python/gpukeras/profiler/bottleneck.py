"""Judges what bounds a training step from the parts of its wall time.

The clock measures the waiting for rows. The trace divides the rest into kernels, transfers, host
work (preparing and launching) and idle time. Copies that do not overlap with a kernel count for the
input. Idle time of a device that has its rows counts for launching: no kernel has been launched.

Time that does not compute is a bottleneck from a fifth of the step on. Input is prefetched, so the
device waits only if the input is the slower of the two, and even then it may wait little; a
threshold of one half would miss this. At a fifth TensorFlow's own profiler reports "highly
input-bound" (`kHighlyInfeedBoundThresholdInPercent`). For launching and other host time it reports
so from 15 % on, but tracers and busy computers blur these shares. The larger bottleneck is the
verdict; if there is none, the verdict is "compute-bound".

"memory-bound" is not a verdict: neither a CPU's nor a GPU's trace records how many bytes a kernel
read.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpukeras.core.messages import percent
from gpukeras.profiler.attribution import StepShares
from gpukeras.profiler.report import PARTS, Decision, Verdict

BOTTLENECK = 0.20  # of a step that does not compute
MAJORITY = 0.5  # of a step: no other part can be larger, so no trace is needed
COMPUTE = "compute-bound"
CAUSES = {
    "input-bound": ("input", "transfers"),
    "launch-bound": ("host", "idle"),
    COMPUTE: ("kernels",),
}
SAYS = {
    "input-bound": "Waiting for rows takes {share} of a step",
    "launch-bound": "Preparing and launching work takes {share} of a step",
    COMPUTE: "Computing takes {share} of a step",
}
Shares = Mapping[str, float | None]


def split_step(
    real_s: float, input_s: float, window: StepShares | None, steps: int
) -> dict[str, float | None]:
    """Returns the wall time of a step by part, as shares that sum to 1.

    The tracer's own work and the short calls of a traced window lie between the kernels. If traced
    steps took longer than untraced ones, host and idle time are shortened by the difference.

    Args:
        real_s: Seconds of a step with its real input, untraced.
        input_s: The part of `real_s` spent waiting for rows while the device was idle.
        window: Shares of traced steps that waited for no input; None if the trace is unusable.
        steps: Number of steps in the window.
    """
    waited = min(1.0, max(0.0, input_s / real_s))
    if window is None:
        return {**dict.fromkeys(PARTS), "input": waited}
    excess = max(0.0, window.wall_s - (real_s - input_s) * steps)
    slack = window.host_s + window.idle_s
    kept = max(0.0, slack - excess) / slack if slack > 0 else 0.0
    parts = {
        "host": window.host_s * kept,
        "kernels": window.kernels_s,
        "transfers": window.transfers_s,
        "idle": max(0.0, window.idle_s) * kept,
    }
    whole = sum(parts.values())
    if whole <= 0:
        return {**dict.fromkeys(PARTS), "input": waited}
    rest = {part: (1.0 - waited) * seconds / whole for part, seconds in parts.items()}
    return {part: {"input": waited, **rest}[part] for part in PARTS}


def group_shares(shares: Shares) -> dict[str, float]:
    """Returns the share that supports each verdict; `shares` must be complete."""
    return {
        verdict: sum(shares[part] or 0.0 for part in parts) for verdict, parts in CAUSES.items()
    }


def judge(shares: Shares, unread: str = "") -> Verdict:
    """Returns what bounds a step.

    Args:
        shares: See `split_step()`.
        unread: Why the trace is unusable, or "".
    """
    if shares["kernels"] is None:
        return _judge_by_clock(shares["input"] or 0.0, unread)
    groups = group_shares(shares)
    verdict = max((name for name in groups if name != COMPUTE), key=lambda name: groups[name])
    threshold = BOTTLENECK
    if groups[verdict] < BOTTLENECK:
        verdict, threshold = COMPUTE, 1.0 - 2 * BOTTLENECK  # the least that two smaller parts leave
    share = groups[verdict]
    others = ", ".join(
        f"{_short(name)} {percent(value)}"
        for name, value in sorted(groups.items(), key=lambda item: -item[1])
        if name != verdict
    )
    text = f"{SAYS[verdict].format(share=percent(share))} ({others})."
    return Verdict(verdict, text, Decision(_short(verdict), share, threshold))


def _judge_by_clock(waited: float, unread: str) -> Verdict:
    """Judges without a trace: only a majority of waiting time gives a verdict."""
    why = unread or "the trace holds no kernels"
    if waited > MAJORITY:
        said = SAYS["input-bound"].format(share=percent(waited))
        text = f"{said}, by the clock; nothing is known of the rest: {why}."
        return Verdict("input-bound", text, Decision("input", waited, MAJORITY))
    text = f"What bounds a step cannot be told: {why}."
    return Verdict("undetermined", text, Decision("trace", None, None))


def _short(verdict: str) -> str:
    return verdict.removesuffix("-bound")
