"""Learning-rate schedules: their options, their formulas, and the rate of every step of a training.

Where no rate is given, the optimizer's own rate is the highest rate of the schedule. The table of
rates is computed before the training starts: a schedule can be plotted without a model and tested
against its formula, and a step inside a compiled program looks its rate up. A warm-up may precede
any schedule; its steps are subtracted from the schedule's steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.core.messages import count_of
from gpukeras.core.options import (
    Spec,
    check_choice,
    check_count,
    check_flag,
    check_fraction,
    check_number,
    check_positive,
    check_text,
    describe,
    option,
)

POLICIES = ("triangular", "triangular2", "exp_range")
HIGHEST = 1e3  # no optimizer learns at higher rates


@dataclass(frozen=True)
class ScheduleSpec(Spec, ABC):
    """The options that all schedules share.

    Args:
        warmup: Epochs, also fractions, in which the rate rises linearly to the schedule's first
            rate (Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.2); 0 is none.
        warmup_from: The rate at the start of the warm-up, as a share of the schedule's first rate.
    """

    kind: ClassVar[str] = ""
    warmup: float = option(0.0, check_number, 0.0)
    warmup_from: float = option(0.01, check_number, 0.0, 1.0)

    def __post_init__(self) -> None:
        """Checks every field, and the lowest rate against the highest where both are given."""
        super().__post_init__()
        top = getattr(self, "max_rate", None) or getattr(self, "rate", None)
        low = getattr(self, "min_rate", None)
        if top is not None and low is not None:
            _check_floor(low, top)

    @property
    def needs_steps(self) -> bool:
        """Whether its rates depend on the total number of steps."""
        return True

    @abstractmethod
    def curve(self, base: float, at: np.ndarray, steps: int, epoch: int) -> np.ndarray:
        """Returns the rates after the warm-up.

        Args:
            base: The optimizer's own rate.
            at: Steps since the warm-up, from 0.
            steps: Number of steps without those of the warm-up.
            epoch: Steps per epoch.

        Returns:
            One float64 per step of `at`.
        """


@dataclass(frozen=True)
class OneCycleSpec(ScheduleSpec):
    """Up once and down once, with the two phases and the defaults of PyTorch's `OneCycleLR`.

    Smith 2018, "A disciplined approach to neural network hyper-parameters", section 4.1; the
    momentum stays constant.

    The rate goes from `max_rate / div_factor` up to `max_rate`, which it reaches at step
    `pct_start * steps - 1`, and down to `max_rate / div_factor / final_div` at the last step. From
    rate a to b, with p from 0 to 1: `b + (a - b) / 2 * (1 + cos(pi * p))`, or `a + (b - a) * p`.

    Args:
        max_rate: The highest rate; None is the optimizer's own.
        pct_start: Share of the steps in which the rate rises.
        div_factor: The highest rate divided by the first one.
        final_div: The first rate divided by the last one.
        anneal: "cos" or "linear".
    """

    kind: ClassVar[str] = "one_cycle"
    max_rate: float | None = option(None, check_positive, HIGHEST)
    pct_start: float = option(0.3, check_number, 0.0, 1.0)
    div_factor: float = option(25.0, check_number, 1.0)
    final_div: float = option(1e4, check_number, 1.0)
    anneal: str = option("cos", check_choice, ("cos", "linear"))

    def curve(self, base: float, at: np.ndarray, steps: int, epoch: int) -> np.ndarray:
        """Returns the rates after the warm-up."""
        top = _given(self.max_rate, base)
        first = top / self.div_factor
        peak, end = self.pct_start * steps - 1, steps - 1
        up = at / peak if peak > 0 else np.ones_like(at)
        down = (at - peak) / (end - peak) if end > peak else np.ones_like(at)
        rising = (at <= peak) & (peak > 0)
        return np.where(
            rising, self._between(first, top, up), self._between(top, first / self.final_div, down)
        )

    def _between(self, start: float, end: float, share: np.ndarray) -> np.ndarray:
        share = np.clip(share, 0.0, 1.0)  # each phase is also computed outside of its steps
        if self.anneal == "cos":
            return end + (start - end) / 2 * (1 + np.cos(np.pi * share))
        return start + (end - start) * share


@dataclass(frozen=True)
class CyclicSpec(ScheduleSpec):
    """Up and down repeatedly, by one of three policies.

    Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.1.

    At step i, with half cycles of h steps: `c = floor(1 + i / 2h)`, `x = |i / h - 2c + 1|`, and the
    rate is `min_rate + (max_rate - min_rate) * max(0, 1 - x) * s`, where s is 1 ("triangular"),
    `1 / 2^(c - 1)` ("triangular2"), or `gamma^i` ("exp_range").

    Args:
        max_rate: The highest rate; None is the optimizer's own.
        min_rate: The lowest rate; None is a quarter of the highest (the paper, section 3.3: a
            third or a quarter).
        policy: "triangular", "triangular2" or "exp_range".
        step_size: Length of half a cycle (the paper: 2 to 10 epochs).
        unit: The unit of `step_size`: "epochs" or "steps".
        gamma: For "exp_range": the factor of the height at each step.
    """

    kind: ClassVar[str] = "cyclic"
    max_rate: float | None = option(None, check_positive, HIGHEST)
    min_rate: float | None = option(None, check_number, 0.0, HIGHEST)
    policy: str = option("triangular", check_choice, POLICIES)
    step_size: float = option(2.0, check_positive)
    unit: str = option("epochs", check_choice, ("epochs", "steps"))
    gamma: float = option(0.99994, check_positive, 1.0)  # from the paper's experiments

    def curve(self, base: float, at: np.ndarray, steps: int, epoch: int) -> np.ndarray:
        """Returns the rates after the warm-up."""
        top = _given(self.max_rate, base)
        low = _check_floor(_given(self.min_rate, top / 4), top)
        half = max(1, round(self.step_size * (epoch if self.unit == "epochs" else 1)))
        cycle = np.floor(1 + at / (2 * half))
        height = np.maximum(0.0, 1 - np.abs(at / half - 2 * cycle + 1))
        return low + (top - low) * height * self._scale(at, cycle)

    def _scale(self, at: np.ndarray, cycle: np.ndarray) -> np.ndarray | float:
        if self.policy == "triangular2":
            return 0.5 ** (cycle - 1)
        return self.gamma**at if self.policy == "exp_range" else 1.0


@dataclass(frozen=True)
class WarmupCosineSpec(ScheduleSpec):
    """A warm-up, then half a cosine down, optionally with restarts.

    Loshchilov & Hutter 2017, "SGDR: Stochastic Gradient Descent with Warm Restarts", equation 5.
    At step i of a cycle of n: `min_rate + (max_rate - min_rate) * (1 + cos(pi * i / n)) / 2`, as
    Keras' `CosineDecay`: `min_rate` is the rate that would follow the cycle's last step.

    Args:
        warmup: As in every schedule, but 1 by default.
        max_rate: The highest rate; None is the optimizer's own.
        min_rate: The lowest rate.
        cycles: Number of cosine cycles, all of equal length.
    """

    kind: ClassVar[str] = "warmup_cosine"
    warmup: float = option(1.0, check_number, 0.0)
    max_rate: float | None = option(None, check_positive, HIGHEST)
    min_rate: float = option(0.0, check_number, 0.0, HIGHEST)
    cycles: int = option(1, check_count, 1, 10**6)

    def curve(self, base: float, at: np.ndarray, steps: int, epoch: int) -> np.ndarray:
        """Returns the rates after the warm-up."""
        top = _given(self.max_rate, base)
        low = _check_floor(self.min_rate, top)
        share = (at * self.cycles) % steps / steps  # integers up to here, so cycles are exact
        return low + (top - low) * (1 + np.cos(np.pi * share)) / 2


@dataclass(frozen=True)
class ExponentialSpec(ScheduleSpec):
    """Down by a constant factor per number of epochs, as Keras' `ExponentialDecay`.

    At step i, with epochs of n steps: `rate * decay^(i / (every * n))`, the exponent rounded down
    if `staircase`, and never below `min_rate`.

    Args:
        rate: The first rate; None is the optimizer's own.
        decay: The factor of the rate.
        every: Epochs, also fractions, in which the rate decays by the factor.
        staircase: Whether the rate changes at once at their end, rather than gradually.
        min_rate: The lowest rate.
    """

    kind: ClassVar[str] = "exponential"
    rate: float | None = option(None, check_positive, HIGHEST)
    decay: float = option(0.9, check_positive, 1.0)
    every: float = option(1.0, check_positive)
    staircase: bool = option(False, check_flag)
    min_rate: float = option(0.0, check_number, 0.0, HIGHEST)

    def curve(self, base: float, at: np.ndarray, steps: int, epoch: int) -> np.ndarray:
        """Returns the rates after the warm-up."""
        top = _given(self.rate, base)
        low = _check_floor(self.min_rate, top)
        power = at / (self.every * epoch)
        return np.maximum(top * self.decay ** (np.floor(power) if self.staircase else power), low)


@dataclass(frozen=True)
class ConstantSpec(ScheduleSpec):
    """One rate: useful where only a warm-up is wanted.

    Args:
        rate: The rate; None is the optimizer's own.
    """

    kind: ClassVar[str] = "constant"
    rate: float | None = option(None, check_positive, HIGHEST)

    @property
    def needs_steps(self) -> bool:
        """Whether its rates depend on the total number of steps."""
        return self.warmup > 0

    def curve(self, base: float, at: np.ndarray, steps: int, epoch: int) -> np.ndarray:
        """Returns the rates after the warm-up."""
        return np.full(len(at), _given(self.rate, base))


@dataclass(frozen=True)
class PlateauSpec(ConstantSpec):
    """Down when a metric stops improving, as Keras' `ReduceLROnPlateau`.

    The table holds the rate without any reduction, because reductions are unknown in advance.

    Args:
        factor: The factor of a reduction.
        patience: Epochs without improvement before a reduction.
        monitor: The metric; None is the validation loss, or the loss without validation rows.
        mode: "min" or "max": which is better; None derives it from the metric's name.
        min_delta: Smallest change that counts as an improvement.
        cooldown: Epochs after a reduction that are not counted.
        min_rate: The lowest rate.
    """

    kind: ClassVar[str] = "plateau"
    factor: float = option(0.5, check_fraction)
    patience: int = option(5, check_count)
    monitor: str | None = option(None, check_text, "the name of a metric")
    mode: str | None = option(None, check_choice, ("min", "max"))
    min_delta: float = option(1e-4, check_number, 0.0)
    cooldown: int = option(0, check_count, 0)
    min_rate: float = option(0.0, check_number, 0.0, HIGHEST)

    def curve(self, base: float, at: np.ndarray, steps: int, epoch: int) -> np.ndarray:
        """Returns the rates after the warm-up."""
        _check_floor(self.min_rate, _given(self.rate, base))
        return super().curve(base, at, steps, epoch)


# Checks ------------------------------------------------------------------------------------------


def _check_floor(low: float, top: float) -> float:
    if low > top:
        raise SpecError(
            f"`min_rate` is {low:g}, above the highest rate, {top:g}.",
            hint="The highest is the optimizer's own rate where none is given.",
            arg="min_rate",
        )
    return low


def _given(rate: float | None, otherwise: float) -> float:
    return otherwise if rate is None else rate


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


def parse_schedule(schedule: Any) -> ScheduleSpec:
    """Parses and checks a schedule, given as a mapping of its `kind` and options.

    Raises:
        SpecError: naming the option.
    """
    if not isinstance(schedule, Mapping) or schedule.get("kind") not in KINDS:
        raise SpecError(
            f"`schedule` must be what a schedule_*() function gives, not {describe(schedule)}.",
            hint="Such as schedule_one_cycle().",
            arg="schedule",
        )
    options = {name: value for name, value in schedule.items() if name != "kind"}
    return KINDS[schedule["kind"]].from_dict(options)


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
