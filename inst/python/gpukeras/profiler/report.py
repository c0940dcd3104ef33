"""What a profile says: the record that R makes a `gpu_profile` of.

All seconds are those of one step as it is untraced, unless the field says otherwise: a tracer slows
down what it watches, so what the trace gives are shares, and the clock gives the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpukeras.profiler.layer_times import LayerTime, OpTime
from gpukeras.profiler.timeline import Bar

VERDICTS = ("input-bound", "launch-bound", "compute-bound", "undetermined")
PARTS = ("input", "host", "kernels", "transfers", "idle")  # of a step


@dataclass(frozen=True)
class Decision:
    """The number that decided a verdict.

    Args:
        name: What it is, such as "input" (a share of the step).
        value: The number; None where there is none.
        threshold: What it was compared with; None where there was none.
    """

    name: str
    value: float | None
    threshold: float | None


@dataclass(frozen=True)
class Verdict:
    """What bounds a training.

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
        batch_s: Seconds a batch, with nothing else running.
        share: As a share of all stages.
        what: What it does, for users.
    """

    stage: str
    batch_s: float
    share: float
    what: str


@dataclass(frozen=True)
class InputCost:
    """What input costs.

    Args:
        real_s: Seconds a step with its real input, as in training.
        wait_s: Of these, waiting for rows.
        repeated_s: Seconds a step on rows that are already on the device.
        alone_s: Seconds a batch of the input pipeline with no training beside it.
        speedup_if_free: How many times faster training were if it never waited for rows.
        stages: The pipeline's stages in their order; empty where they cannot be told apart.
    """

    real_s: float
    wait_s: float
    repeated_s: float
    alone_s: float
    speedup_if_free: float
    stages: tuple[StageTime, ...] = ()


@dataclass(frozen=True)
class Advice:
    """One thing to do.

    Args:
        id: Its short name, such as "batch_size".
        text: What to do, in a sentence, with numbers.
        why: What of the profile says so.
        gain: How many times as many rows a second to expect, from the profile alone (Amdahl);
            None where that does not tell.
        apply: Arguments of `gpu_fit()` that do it; empty where there are none.
        measured: How many times as many rows a second were measured with `apply`; None where that
            was not asked for, or is not possible.
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
        sentence: It in a sentence.
        decided_by: The number that decided it.
        device: Where the model is, such as "GPU:0".
        engine: What trained.
        reason: Why that engine.
        batch_size: Rows a step.
        steps: Steps that were traced.
        step_s: Seconds of a step with its real input, untraced: the median.
        samples_per_s: Rows a second at that.
        shares: The step's wall time by `PARTS`; they sum to 1. Where the trace says nothing only
            "input" is a number, the others are None.
        ops: The ops that took most time; `total_s` and `count` of one step, `share` of all kernels.
        layers: Time by layer, in the model's order, then "optimizer", "loss and metrics", "input"
            and "other"; seconds of one step. They sum to `shares["kernels"] * step_s`.
        kernels: The GPU's kernels by name, as `ops`; empty on a CPU.
        bytes: Bytes copied a step, `to_device` and `to_host`; None on a CPU.
        input: What input costs.
        advice: What to do, the largest expected gain first.
        timeline: Bars of one or two traced steps, in the trace's own seconds from their begin.
        trace: The folder with the trace, "" if it was temporary.
        notes: What its reader should know, sentences.
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
    trace: str
    notes: tuple[str, ...]
