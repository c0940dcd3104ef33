"""Survival families: Cox' proportional hazards, and hazards in intervals of time.

Labels are (n, 2): a time above 0, and a status, 1 for an event and 0 for a censored row.

References:
    Cox, D. R. (1972). Regression models and life-tables. Journal of the Royal Statistical Society
    B 34, 187-220.
    Efron, B. (1977). The efficiency of Cox's likelihood function for censored data. Journal of the
    American Statistical Association 72, 557-565.
    Breslow, N. (1974). Covariance analysis of censored survival data. Biometrics 30, 89-99.
    Prentice, R. L. & Gloeckler, L. A. (1978). Regression analysis of grouped survival data with
    application to breast cancer data. Biometrics 34, 57-67.
    Gensheimer, M. F. & Narasimhan, B. (2019). A scalable discrete-time survival model for neural
    networks. PeerJ 7, e6257.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.options import is_number
from gpukeras.models.families import links, numerics
from gpukeras.models.families.base import Likelihood, Origin
from gpukeras.models.families.spec import EFRON, Family

GRID = 200  # times at which a model of Cox keeps its baseline hazard
HIGHEST = 1 - 1e-6  # hazard before the logarithm of its complement


class Cox(Likelihood):
    """Hazards that are proportional to exp(predictor), by the partial likelihood.

    A row with an event adds the logarithm of the risk of all rows of the batch whose time is not
    before its own, less its predictor. Ties are Efron's or Breslow's. Risk sets are within a batch.
    """

    additive = False

    def has_intercept(self, family: Family) -> bool:
        """Returns False: the baseline hazard takes its place."""
        return False

    def state(self, family: Family) -> dict[str, tuple[int, ...]]:
        """Returns the grid of times, and the cumulative baseline hazard there: 0 if unknown."""
        return {"times": (GRID,), "hazard": (GRID,)}

    def first_origin(self, family: Family) -> Origin:
        """Returns the mean offset: the predictors start at 0."""
        return Origin(shift=family.shift)

    def names(self, family: Family) -> list[str]:
        """Returns `risk`, that relative to a predictor of 0."""
        return ["risk"]

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns the relative risk of each row."""
        predictor = linear
        if offset is not None:
            predictor = linear + offset - self.origin(family, own).shift
        return runtime.keras().ops.exp(numerics.clip(predictor, -links.REACH, links.REACH))

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns each event's part of the negative log partial likelihood, 0 for other rows."""
        ops = runtime.keras().ops
        labels = ops.cast(labels, "float32")
        order = ops.argsort(labels[:, 0])
        time, event = (ops.take(labels[:, place], order) for place in (0, 1))
        risk = ops.take(parameters[:, 0], order)
        largest = ops.stop_gradient(ops.max(risk))
        left, tied = _risk_sets(time, event, risk / largest, family.ties == EFRON)
        total = ops.log(ops.maximum(left - tied, numerics.SMALLEST)) + ops.log(largest)
        losses = event * (total - ops.log(risk))
        return ops.take(losses, ops.argsort(order))


def _risk_sets(time: Any, event: Any, risk: Any, efron: bool) -> tuple[Any, Any]:
    """Returns the risk at each row's time, and what Efron's method takes off for ties.

    Args:
        time: Times, ascending.
        event: 1 for events.
        risk: Relative risks.
        efron: Whether the k-th of m events at a time, from 0, is without k / m of their risks.
    """
    ops = runtime.keras().ops
    rows = ops.shape(time)[0]
    new = ops.concatenate([ops.ones((1,), bool), time[1:] > time[:-1]])
    group = ops.cumsum(ops.cast(new, "int32")) - 1

    def gather(values: Any) -> Any:
        """Returns for each row the sum over the rows of its time."""
        return ops.take(ops.segment_sum(values, group, num_segments=rows), group)

    at_or_after = ops.flip(ops.cumsum(ops.flip(risk)))
    left = gather(ops.where(new, at_or_after, 0.0))
    if not efron:
        return left, 0.0
    before = ops.cumsum(event) - event
    place = before - gather(ops.where(new, before, 0.0))
    return left, place / ops.maximum(gather(event), 1.0) * gather(event * risk)


def baseline_hazard(
    time: np.ndarray, event: np.ndarray, risk: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns Breslow's cumulative baseline hazard on a grid of `GRID` event times.

    Args:
        time: Times of the training rows.
        event: 1 for events.
        risk: Relative risks by the model.

    Returns:
        Times and cumulative hazards, ascending. Of more distinct event times than `GRID`, evenly
        spread ones are kept; of fewer, the last one is repeated. Without events all are 0.
    """
    if not event.any():
        return np.zeros(GRID), np.zeros(GRID)
    order = np.argsort(time, kind="stable")
    time, event, risk = time[order], event[order], risk[order].astype(np.float64)
    after = np.cumsum(risk[::-1])[::-1]
    moments, first = np.unique(time, return_index=True)
    events = np.add.reduceat(event, first)
    hazard = np.cumsum(events / after[first])[events > 0]
    moments = moments[events > 0]
    kept = np.unique(np.round(np.linspace(0, len(moments) - 1, GRID)).astype(int))
    kept = np.concatenate([kept, np.full(GRID - len(kept), len(moments) - 1)])
    return moments[kept], hazard[kept]


class DiscreteTime(Likelihood):
    """A hazard for each interval: an event gives -log(h) of its interval, survival -log(1 - h).

    A censored row has survived an interval if it was seen for at least half of it. Proportional
    effects are the same in all intervals, each of which has an intercept of its own: with the link
    cloglog that is Cox' model of grouped times.
    """

    def has_intercept(self, family: Family) -> bool:
        """Whether no weights of the family's own take its place."""
        return not family.proportional

    def predictors(self, family: Family) -> int:
        """Returns one for each interval, or one for all."""
        return 1 if family.proportional else len(family.breaks)

    def weights(self, family: Family) -> dict[str, tuple[int, ...]]:
        """Returns the intercepts of proportional effects."""
        return {"intercepts": (len(family.breaks),)} if family.proportional else {}

    def names(self, family: Family) -> list[str]:
        """Returns `hazard1`, `hazard2` and so on."""
        return [f"hazard{place}" for place in range(1, len(family.breaks) + 1)]

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns the hazard in each interval."""
        predictor = self.predictor(family, linear, own, offset)
        if family.proportional:
            predictor = predictor + runtime.keras().ops.reshape(own["intercepts"], (1, -1))
        return links.probabilities(family.link, predictor)[0]

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the negative log-likelihood of each row."""
        ops = runtime.keras().ops
        labels = ops.cast(labels, "float32")
        time, event = labels[:, :1], labels[:, 1:]
        upper = _as_row(family.breaks)
        lower = _as_row((0.0, *family.breaks[:-1]))
        died = ops.cast(ops.logical_and(time > lower, time <= upper), "float32") * event
        lived = ops.where(event > 0, time > upper, time >= (lower + upper) / 2)
        alive = ops.log1p(-ops.minimum(parameters, HIGHEST))
        losses = died * numerics.safe_log(parameters) + ops.cast(lived, "float32") * alive
        return -ops.sum(losses, axis=1)

    def mean(self, family: Family, parameters: np.ndarray) -> np.ndarray:
        """Returns the mean survival time up to the last break."""
        return mean_times(family, parameters, {})


def _as_row(values: Sequence[Any]) -> Any:
    """Returns numbers, or tensors of one number each, as (1, values) float32."""
    if all(map(is_number, values)):
        return np.array([values], "float32")
    ops = runtime.keras().ops
    return ops.stack([ops.cast(value, "float32") for value in values])[None]


def mean_times(family: Family, parameters: np.ndarray, own: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns each row's mean survival time up to the last of the model's own times, (n,).

    It is the area under the curve, which R's `survfit()` calls the restricted mean. The arguments
    are those of `survival_curves()`.
    """
    curve, times = survival_curves(family, parameters, own, None)
    before = np.insert(curve[:, :-1], 0, 1.0, axis=1)
    heights = before if family.name == "cox" else (before + curve) / 2
    area: np.ndarray = heights @ np.diff(times, prepend=0.0)
    return area


def survival_curves(
    family: Family, parameters: np.ndarray, own: Mapping[str, np.ndarray], times: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the probability of each row to survive each time.

    Args:
        family: "cox" or "discrete_time".
        parameters: What the model gives, (n, parameters).
        own: The layer's own weights, see `Cox.state()`.
        times: Times of at least 0, or None for the grid, or the breaks.

    Returns:
        Probabilities (n, times), and the times. Cox' curves are steps; others are linear between
        breaks, and constant after the last.
    """
    if family.name == "cox":
        grid, hazard = own["times"].astype(float), own["hazard"].astype(float)
        times = np.unique(grid) if times is None else times
        place = np.searchsorted(grid, times, side="right")
        total = np.concatenate([[0.0], hazard])[place]
        return np.exp(-parameters[:, :1].astype(float) * total), times
    knots = np.array([0.0, *family.breaks])
    times = knots[1:] if times is None else times
    curve = np.cumprod(np.insert(1 - parameters.astype(float), 0, 1.0, axis=1), axis=1)
    return np.array([np.interp(times, knots, row) for row in curve]), times
