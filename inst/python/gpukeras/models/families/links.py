"""Links: how a linear predictor becomes a mean or a probability.

As R's `make.link()`, probabilities keep away from 0 and 1: linear predictors are clipped where
float32 knows no difference any more.
"""

from __future__ import annotations

import math
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.options import is_number
from gpukeras.models.families import numerics

REACH = 30.0  # of a predictor on the log scale, from that of the mean label: a factor of 1e13
# The largest predictors of probabilities.
LOGIT = 30.0
PROBIT = 9.0
CLOGLOG = 4.0
FLOOR = 1e-3  # least mean of an identity link, or predictor of an inverse one, by the first one


def link_of(link: str, mean: float) -> float:
    """Returns the linear predictor of a mean, a plain number."""
    if link == "log":
        return math.log(mean)
    if link in ("logit", "probit", "cloglog"):
        return _probability_link(link, mean)
    return {"identity": mean, "sqrt": math.sqrt(max(mean, 0.0)), "inverse": 1 / (mean or 1.0)}[link]


def _probability_link(link: str, mean: float) -> float:
    if link == "probit":
        from statistics import NormalDist

        return NormalDist().inv_cdf(mean)
    return math.log(mean / (1 - mean)) if link == "logit" else math.log(-math.log1p(-mean))


def positive_mean(link: str, predictor: Any, start: Any) -> Any:
    """Returns a positive mean.

    Args:
        link: "log", "sqrt", "inverse" or "identity".
        predictor: Linear predictors.
        start: The predictor of the mean label, a number or a tensor.
    """
    ops = runtime.keras().ops
    if link == "log":
        return ops.exp(numerics.clip(predictor, start - REACH, start + REACH))
    size = abs(start)
    floor = FLOOR * ((size or 1.0) if is_number(size) else ops.where(size > 0, size, 1.0))
    if link == "sqrt":
        return ops.square(predictor) + floor * floor
    kept = numerics.positive(predictor, floor)
    return 1.0 / kept if link == "inverse" else kept


def probabilities(link: str, predictor: Any) -> tuple[Any, Any]:
    """Returns a probability and its complement, neither by a difference from 1."""
    ops = runtime.keras().ops
    if link == "logit":
        kept = numerics.clip(predictor, -LOGIT, LOGIT)
        return ops.sigmoid(kept), ops.sigmoid(-kept)
    if link == "probit":
        kept = numerics.clip(predictor, -PROBIT, PROBIT)
        return numerics.normal_cdf(kept), numerics.normal_cdf(-kept)
    rate = ops.exp(numerics.clip(predictor, -LOGIT, CLOGLOG))
    return -ops.expm1(-rate), ops.exp(-rate)


def probability_between(link: str, low: Any, high: Any) -> Any:
    """Returns the probability between two thresholds, low < high, without cancellation."""
    ops = runtime.keras().ops
    if link == "logit":
        both = probabilities(link, high)[0] * probabilities(link, low)[1]
        return both * -ops.expm1(low - high)
    if link == "probit":
        above = low + high > 0
        return _normal_below(above, low, high)
    lower, upper = (ops.exp(numerics.clip(each, -LOGIT, CLOGLOG)) for each in (low, high))
    return ops.exp(-lower) * -ops.expm1(lower - upper)


def _normal_below(above: Any, low: Any, high: Any) -> Any:
    """Mirrors intervals in the upper tail, where a difference would lose digits."""
    ops = runtime.keras().ops
    left = numerics.clip(ops.where(above, -high, low), -PROBIT, PROBIT)
    right = numerics.clip(ops.where(above, -low, high), -PROBIT, PROBIT)
    return numerics.normal_cdf(right) - numerics.normal_cdf(left)
