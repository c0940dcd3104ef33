"""The record of a profile, from which R makes a `gpu_profile`.

Unless a field says otherwise, all seconds are those of one untraced step: a tracer slows down the
program, so the trace gives shares and the clock gives the step time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpukeras.profiler.layer_times import LayerTime, OpTime
from gpukeras.profiler.peak_use import PeakUse
from gpukeras.profiler.timeline import Bar

VERDICTS = ("input-bound", "launch-bound", "compute-bound", "undetermined")
PARTS = ("input", "host", "kernels", "transfers", "idle")  # of a step


@dataclass(frozen=True)
class Decision:
    """The number that decided a verdict.

    Args:
        name: Its name, such as "input" (a share of the step).
        value: The number; None if there is none.
        threshold: The threshold that it was compared with; None if there was none.
    """

    name: str
    value: float | None
    threshold: float | None


@dataclass(frozen=True)
class Verdict:
    """The bottleneck of a training step.

    Args:
        verdict: One of `VERDICTS`.
        sentence: The verdict in one sentence, with its number.
        decided_by: That number.
    """

    verdict: str
    sentence: str
    decided_by: Decision


@dataclass(frozen=True)
class StageTime:
    """A stage of the input pipeline.

    Args:
        stage: One of `loading.profile.WHAT`.
        batch_s: Seconds per batch, with nothing else running.
        share: Its share of the time of all stages.
        what: What it does, for users.
    """

    stage: str
    batch_s: float
    share: float
    what: str


@dataclass(frozen=True)
class InputCost:
    """Cost of the input.

    Args:
        real_s: Seconds per step with its real input, as in training.
        wait_s: The part of `real_s` spent waiting for rows.
        repeated_s: Seconds per step on rows that are already on the device.
        alone_s: Seconds per batch of the input pipeline without training beside it.
        speedup_if_free: How many times faster training would be if it never waited for rows.
        stages: The pipeline's stages in order; empty if they cannot be separated.
    """

    real_s: float
    wait_s: float
    repeated_s: float
    alone_s: float
    speedup_if_free: float
    stages: tuple[StageTime, ...] = ()


@dataclass(frozen=True)
class Advice:
    """One piece of advice.

    Args:
        id: Its short name, such as "batch_size".
        text: What to do, in a sentence, with numbers.
        why: The evidence from the profile.
        gain: Expected factor on rows per second, from the profile alone (Amdahl); None if the
            profile does not determine it.
        apply: Arguments of `gpu_fit()` that apply the advice; empty if there are none.
        measured: Measured factor on rows per second with `apply`; None if it was not requested or
            is not possible.
    """

    id: str
    text: str
    why: str
    gain: float | None
    apply: Mapping[str, Any] = field(default_factory=dict)
    measured: float | None = None


@dataclass(frozen=True)
class ProfileReport:
    """Where the time of a training step goes.

    Args:
        verdict: One of `VERDICTS`.
        sentence: The verdict in a sentence.
        decided_by: The number that decided it.
        device: The model's device, such as "GPU:0".
        engine: The engine that trained.
        reason: Why that engine was chosen.
        batch_size: Rows per step.
        steps: Number of traced steps.
        step_s: Seconds of a step with its real input, untraced: the median.
        samples_per_s: Rows per second at `step_s`.
        shares: The step's wall time by `PARTS`; they sum to 1. If the trace is unusable, only
            "input" is a number and the others are None.
        ops: The ops with the most time; `total_s` and `count` of one step, `share` of all kernels.
        layers: Time by layer, in the model's order, then "optimizer", "loss and metrics", "input"
            and "other"; seconds of one step. They sum to `shares["kernels"] * step_s`.
        kernels: The GPU's kernels by name, as `ops`; empty on a CPU.
        bytes: Bytes copied per step, `to_device` and `to_host`; None on a CPU.
        input: Cost of the input.
        advice: Advice, the largest expected gain first.
        timeline: Bars of one or two traced steps, in the trace's own seconds since their begin.
        peak: The share of the card's peak FLOP/s; None on a CPU, or if not determined.
        trace: The folder with the trace, "" if it was temporary.
        notes: Sentences that qualify the results.
    """

    verdict: str
    sentence: str
    decided_by: Decision
    device: str
    engine: str
    reason: str
    batch_size: int
    steps: int
    step_s: float
    samples_per_s: float
    shares: dict[str, float | None]
    ops: tuple[OpTime, ...]
    layers: tuple[LayerTime, ...]
    kernels: tuple[OpTime, ...]
    bytes: dict[str, float] | None
    input: InputCost
    advice: tuple[Advice, ...]
    timeline: tuple[Bar, ...]
    peak: PeakUse | None
    trace: str
    notes: tuple[str, ...]
