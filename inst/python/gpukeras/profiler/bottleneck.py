"""What bounds a training: judged from where its step's time goes, without touching anything.

A step's wall time is waiting for rows (measured by the clock), then what the trace says of the
rest: kernels, transfers, the host preparing and launching, nothing at all. Copies that no kernel
hides belong to the input, idleness of a device that has its rows to the launching: it has nothing
to do because nobody told it.

Time that does not compute is a bottleneck from a fifth of the step on. Where input runs ahead of
the device, the device waits only if the input is the slower of the two, however little it waits; so
more than half is too much to ask. A fifth is where TensorFlow's own profiler says "highly
input-bound" (`kHighlyInfeedBoundThresholdInPercent`); of launching and of other time on the host it
says so from 15 % on, which tracers and busy computers blur. The larger bottleneck is the verdict;
without one, the computing is.

"memory-bound" is not claimed: neither a CPU's nor a GPU's trace tells how many bytes a kernel read.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpukeras.core.messages import percent
from gpukeras.profiler.attribution import StepShares
from gpukeras.profiler.report import PARTS, Decision, Verdict

BOTTLENECK = 0.20  # of a step that does not compute
MAJORITY = 0.5  # of a step: more than anything else can be, so no trace is needed to tell
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
    """A step's wall time by part, as shares that sum to 1.

    A tracer's own work and the short calls of a traced window lie between the kernels. So where
    traced steps took longer than untraced ones, the host's and idle time is shortened by as much.

    Args:
        real_s: Seconds of a step with its real input, untraced.
        input_s: Of these, waiting for rows while the device had nothing to do.
        window: What the trace says of steps that waited for nothing; None if it says nothing.
        steps: How many steps that were.
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
    """What each verdict would rest on; `shares` must be complete."""
    return {
        verdict: sum(shares[part] or 0.0 for part in parts) for verdict, parts in CAUSES.items()
    }


def judge(shares: Shares, unread: str = "") -> Verdict:
    """What bounds a step.

    Args:
        shares: See `split_step()`.
        unread: Why the trace says nothing, or "".
    """
    if shares["kernels"] is None:
        return _judge_by_clock(shares["input"] or 0.0, unread)
    groups = group_shares(shares)
    verdict = max((name for name in groups if name != COMPUTE), key=lambda name: groups[name])
    threshold = BOTTLENECK
    if groups[verdict] < BOTTLENECK:
        verdict, threshold = COMPUTE, 1.0 - 2 * BOTTLENECK  # what two smaller parts leave at least
    share = groups[verdict]
    others = ", ".join(
        f"{_short(name)} {percent(value)}"
        for name, value in sorted(groups.items(), key=lambda item: -item[1])
        if name != verdict
    )
    text = f"{SAYS[verdict].format(share=percent(share))} ({others})."
    return Verdict(verdict, text, Decision(_short(verdict), share, threshold))


def _judge_by_clock(waited: float, unread: str) -> Verdict:
    """Without a trace only a majority can be told, and only of the waiting."""
    why = unread or "the trace holds no kernels"
    if waited > MAJORITY:
        said = SAYS["input-bound"].format(share=percent(waited))
        text = f"{said}, by the clock; nothing is known of the rest: {why}."
        return Verdict("input-bound", text, Decision("input", waited, MAJORITY))
    text = f"What bounds a step cannot be told: {why}."
    return Verdict("undetermined", text, Decision("trace", None, None))


def _short(verdict: str) -> str:
    return verdict.removesuffix("-bound")
