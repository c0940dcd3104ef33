"""Computes learning-rate schedules: from a few options to the rate of every step of a training.

The table of rates is computed before the training starts. So a schedule can be plotted without a
model and tested against its formula, and a step inside a compiled program looks its rate up.
A warm-up may precede any schedule; its steps are subtracted from the schedule's steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import check_count, check_number, describe
from gpukeras.engine.lr_schedules import (
    ConstantSpec,
    CyclicSpec,
    ExponentialSpec,
    OneCycleSpec,
    PlateauSpec,
    ScheduleSpec,
    WarmupCosineSpec,
)

KINDS: dict[str, type[ScheduleSpec]] = {
    spec.kind: spec
    for spec in (
        OneCycleSpec,
        CyclicSpec,
        WarmupCosineSpec,
        ExponentialSpec,
        PlateauSpec,
        ConstantSpec,
    )
}


def parse_schedule(given: Any) -> ScheduleSpec:
    """Parses and checks a schedule, given as a mapping of its `kind` and options.

    Raises:
        SpecError: naming the option.
    """
    if not isinstance(given, Mapping) or given.get("kind") not in KINDS:
        raise SpecError(
            f"`schedule` must be what a schedule_*() function gives, not {describe(given)}.",
            hint="Such as schedule_one_cycle().",
            arg="schedule",
        )
    options = {name: value for name, value in given.items() if name != "kind"}
    return KINDS[given["kind"]].from_dict(options)


def describe_schedule(schedule: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a checked schedule with all its options: `kind` and the fields of its record."""
    spec = parse_schedule(schedule)
    return {"kind": spec.kind, **asdict(spec)}


def draw_schedule(
    schedule: Mapping[str, Any], rate: float, epochs: int, steps_per_epoch: int
) -> np.ndarray:
    """Returns the rates of a schedule that R passes as a mapping; float32.

    Args:
        schedule: Its `kind` and options.
        rate: The optimizer's own rate.
        epochs: Epochs of the training.
        steps_per_epoch: Steps per epoch.
    """
    steps = check_count("steps_per_epoch", steps_per_epoch)
    whole = check_count("epochs", epochs) * steps
    return draw_rates(parse_schedule(schedule), check_number("rate", rate, 0.0), whole, steps)


def draw_rates(
    spec: ScheduleSpec, base_rate: float, steps: int | None, steps_per_epoch: int | None
) -> np.ndarray:
    """Returns the rate of every step.

    Args:
        spec: The schedule.
        base_rate: The optimizer's own rate.
        steps: Steps of the whole training; None if unknown.
        steps_per_epoch: Steps per epoch; None if unknown.

    Returns:
        Shape (steps,), float32; a single rate for all steps where their number is unknown.

    Raises:
        SpecError: if an unknown number is needed, or if rates or the warm-up do not fit.
    """
    return draw_rates_at(spec, base_rate, np.arange(steps or 1), steps, steps_per_epoch)


def draw_rates_at(
    spec: ScheduleSpec,
    base_rate: float,
    at: np.ndarray,
    steps: int | None,
    steps_per_epoch: int | None,
) -> np.ndarray:
    """Returns the rates of some steps; raises as `draw_rates()`.

    Args:
        spec: The schedule.
        base_rate: The optimizer's own rate.
        at: Numbers of the steps, from 0.
        steps: Steps of the whole training; None if unknown.
        steps_per_epoch: Steps per epoch; None if unknown.
    """
    steps, epoch = _check_steps(spec, steps, steps_per_epoch)
    warm = round(spec.warmup * epoch)
    if warm >= steps:
        raise SpecError(
            f"`warmup` is {count_of(spec.warmup, 'epoch')}, which leaves nothing of the training's "
            f"{steps / epoch:g}.",
            hint="Give more `epochs` or less `warmup`.",
            arg="warmup",
        )
    rates = spec.curve(base_rate, np.maximum(at - warm, 0), steps - warm, epoch)
    if warm:
        first = spec.curve(base_rate, np.zeros(1, int), steps - warm, epoch)
        share = spec.warmup_from + (1 - spec.warmup_from) * at / warm
        rates = np.where(at < warm, first * share, rates)
    return rates.astype(np.float32)


def _check_steps(
    spec: ScheduleSpec, steps: int | None, steps_per_epoch: int | None
) -> tuple[int, int]:
    if (steps is None or steps_per_epoch is None) and spec.needs_steps:
        raise SpecError(
            "`schedule` must know how many batches an epoch has, and this dataset does not tell.",
            hint="Give gpu_dataset(steps = ).",
            arg="schedule",
        )
    return steps or 1, steps_per_epoch or 1
