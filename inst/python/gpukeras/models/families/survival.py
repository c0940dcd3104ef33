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
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError
from gpukeras.core.options import is_number
from gpukeras.models.families import links, numerics
from gpukeras.models.families.base import Likelihood, Origin
from gpukeras.models.families.spec import EFRON, Family

GRID = 200  # times at which a model of Cox keeps its baseline hazard
HIGHEST = 1 - 1e-6  # hazard before the logarithm of its complement


class Cox(Likelihood):
    """Hazards that are proportional to exp(predictor), by the partial likelihood.

    A row with an event adds the logarithm of the risk of all rows of the batch whose time is not
    before its own, less its predictor. Ties are Efron's or Breslow's. Risk sets are within a batch,
    and within a stratum, whose number the layer passes on beside the risk. Weights multiply both
    events and risks, as in R's `coxph()`.
    """

    additive = False

    def has_intercept(self, family: Family) -> bool:
        """Returns False: the baseline hazard takes its place."""
        return False

    def state(self, family: Family) -> dict[str, tuple[int, ...]]:
        """Returns a grid of times for each stratum, and the cumulative baseline hazard there.

        Both are 0 for a stratum without training rows.
        """
        shape = (max(family.strata, 1), GRID)
        return {"times": shape, "hazard": shape}

    def first_origin(self, family: Family) -> Origin:
        """Returns the mean offset: the predictors start at 0."""
        return Origin(shift=family.shift)

    def names(self, family: Family) -> list[str]:
        """Returns `risk`, that relative to a predictor of 0, and `stratum`, counted from 0."""
        return ["risk", *(["stratum"] if family.strata else [])]

    def parameters(
        self,
        family: Family,
        linear: Any,
        own: Mapping[str, Any],
        offset: Any = None,
        stratum: Any = None,
    ) -> Any:
        """Returns the relative risk of each row, and its stratum if there are several."""
        ops, predictor = runtime.keras().ops, linear
        if offset is not None:
            predictor = linear + offset - self.origin(family, own).shift
        risk = ops.exp(numerics.clip(predictor, -links.REACH, links.REACH))
        return risk if stratum is None else ops.concatenate([risk, stratum], axis=1)

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns each event's part of the negative log partial likelihood, 0 for other rows."""
        return self.weighted_loss(family, labels, parameters, None)

    def weighted_loss(self, family: Family, labels: Any, parameters: Any, weights: Any) -> Any:
        """Returns the parts of a likelihood whose risk sets are weighted too; see `loss()`."""
        ops = runtime.keras().ops
        labels = ops.cast(labels, "float32")
        order = ops.argsort(labels[:, 0])
        stratum = None
        if family.strata:
            stratum = ops.cast(parameters[:, 1], "int32")
            order = ops.take(order, ops.argsort(ops.take(stratum, order)))  # stable
            stratum = ops.take(stratum, order)
        time, event = (ops.take(labels[:, place], order) for place in (0, 1))
        own = ops.take(parameters[:, 0], order)
        risk, weight = own, None
        if weights is not None:
            weight = ops.take(weights, order)
            event = event * ops.cast(weight > 0, "float32")
            risk = weight * own
        largest = ops.stop_gradient(ops.maximum(ops.max(risk), numerics.SMALLEST))
        sorted_rows = _Sorted(time, event, risk / largest, weight, stratum, family.strata)
        left, shared = _risk_sets(sorted_rows, family.ties == EFRON)
        total = ops.log(ops.maximum(left, numerics.SMALLEST)) + ops.log(largest)
        losses = event * (shared * total - (1.0 if weight is None else weight) * ops.log(own))
        return ops.take(losses, ops.argsort(order))


@dataclass(frozen=True)
class _Sorted:
    """Rows by stratum and time, ascending.

    Args:
        time: Times.
        event: 1 for events.
        risk: Relative risks, multiplied by the weights.
        weight: Weights, or None for equal ones.
        stratum: Numbers of the strata, or None for a single one.
        strata: How many there are.
    """

    time: Any
    event: Any
    risk: Any
    weight: Any
    stratum: Any
    strata: int


def _risk_sets(rows: _Sorted, efron: bool) -> tuple[Any, Any]:
    """Returns for each event the risk at its time, and the mean weight of the events then.

    By Efron's method the k-th of m events at a time, from 0, is without k / m of their risks.
    """
    ops = runtime.keras().ops
    count = ops.shape(rows.time)[0]
    later = rows.time[1:] > rows.time[:-1]
    if rows.stratum is not None:
        later = ops.logical_or(later, rows.stratum[1:] > rows.stratum[:-1])
    new = ops.concatenate([ops.ones((1,), bool), later])
    # A number of a group is one of a row, which XLA's programs would not check.
    group = ops.clip(ops.cumsum(ops.cast(new, "int32")) - 1, 0, count - 1)

    def gather(values: Any) -> Any:
        """Returns for each row the sum over the rows of its time and stratum."""
        return ops.take(ops.segment_sum(values, group, num_segments=count), group)

    left = gather(ops.where(new, _sum_after(rows), 0.0))
    deaths = shared = 1.0
    if efron or rows.weight is not None:
        deaths = ops.maximum(gather(rows.event), 1.0)
    if rows.weight is not None:
        shared = gather(rows.event * rows.weight) / deaths
    if efron:
        before = ops.cumsum(rows.event) - rows.event
        place = before - gather(ops.where(new, before, 0.0))
        left = left - place / deaths * gather(rows.event * rows.risk)
    return left, shared


def _sum_after(rows: _Sorted) -> Any:
    """Returns the sum of the risks of each row and of those after it in its stratum.

    Differences of one sum over all strata would lose the digits of the last rows of a stratum.
    """
    ops = runtime.keras().ops
    if rows.stratum is None:
        return ops.flip(ops.cumsum(ops.flip(rows.risk)))
    own = ops.one_hot(rows.stratum, rows.strata, dtype="float32")
    sums = ops.flip(ops.cumsum(ops.flip(own * rows.risk[:, None], 0), axis=0), 0)
    return ops.sum(own * sums, axis=1)


def baseline_hazard(
    family: Family, labels: np.ndarray, parameters: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the cumulative baseline hazard of each stratum on a grid of `GRID` event times.

    It is Breslow's, or Efron's for his ties: that of R's `basehaz(centered = FALSE)`.

    Args:
        family: A family of Cox.
        labels: Times and events of the training rows, (n, 2).
        parameters: What the model gives, (n, parameters).
        weights: One weight a row, (n,).

    Returns:
        Times and cumulative hazards, (strata, GRID), ascending. Of more distinct event times than
        `GRID`, evenly spread ones are kept; of fewer, the last one is repeated. A stratum without
        events has its last time and hazards of 0; one without rows has times of 0.
    """
    stratum = parameters[:, 1] if family.strata else np.zeros(len(labels))
    hazards = []
    for place in range(max(family.strata, 1)):
        rows = (stratum == place) & (weights > 0)
        hazards.append(_read_hazard(family, labels[rows], parameters[rows, 0], weights[rows]))
    times, hazard = zip(*hazards, strict=True)
    return np.stack(times), np.stack(hazard)


def _read_hazard(
    family: Family, labels: np.ndarray, risk: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the grid of one stratum; see `baseline_hazard()`."""
    if not labels[:, 1].any():
        return np.full(GRID, labels[:, 0].max(initial=0.0)), np.zeros(GRID)
    order = np.argsort(labels[:, 0], kind="stable")
    event, weight = labels[order, 1], weight[order].astype(np.float64)
    risk = weight * risk[order].astype(np.float64)
    moments, first, group = np.unique(labels[order, 0], return_index=True, return_inverse=True)
    left = np.cumsum(risk[::-1])[::-1][first][group]
    deaths, weighed, tied = (
        np.add.reduceat(values, first) for values in (event, event * weight, event * risk)
    )
    if family.ties == EFRON:
        before = np.cumsum(event) - event
        place = before - before[first][group]
        left = left - place / np.maximum(deaths, 1)[group] * tied[group]
    shared = (weighed / np.maximum(deaths, 1))[group]
    hazard = np.cumsum(np.add.reduceat(event * shared / left, first))[deaths > 0]
    moments = moments[deaths > 0]
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
        return _step_curves(family, parameters.astype(float), own, times)
    knots = np.array([0.0, *family.breaks])
    times = knots[1:] if times is None else times
    curve = np.cumprod(np.insert(1 - parameters.astype(float), 0, 1.0, axis=1), axis=1)
    return np.array([np.interp(times, knots, row) for row in curve]), times


def _step_curves(
    family: Family, parameters: np.ndarray, own: Mapping[str, np.ndarray], times: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns curves that step at the times of events, each by the baseline of its stratum."""
    grids, hazards = own["times"], own["hazard"].astype(float)
    known = grids.any(axis=1)
    if times is None:
        # The number with the fewest digits of those that are one float32: mostly the user's own.
        times = np.array([float(str(time)) for time in np.unique(grids[hazards.any(axis=1)])])
    # A step is at the time of an event, which labels and grid hold as float32.
    reached = times.astype(grids.dtype)
    totals = np.stack(
        [
            np.concatenate([[0.0], hazard])[np.searchsorted(grid, reached, side="right")]
            for grid, hazard in zip(grids, hazards, strict=True)
        ]
    )
    stratum = np.zeros(len(parameters), int)
    if family.strata:
        stratum = parameters[:, 1].astype(int)
    if not np.isin(stratum, np.flatnonzero(known)).all():
        raise DataError(
            "`newdata` has rows of a stratum that has no training rows, and so no baseline hazard.",
            hint='type = "response" is the relative risk.',
            arg="newdata",
        )
    return np.exp(-parameters[:, :1] * totals[stratum]), times
