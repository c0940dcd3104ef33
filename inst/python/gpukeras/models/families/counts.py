"""Families of counts: Poisson, negative binomial and zero-inflated Poisson.

Log factorials are written by Stirling's formula, as in R's `dpois()` and `dnbinom()`, so that large
counts lose no digits in float32.

References:
    Hilbe, J. M. (2011). Negative Binomial Regression, 2nd ed. (NB2, as `MASS::glm.nb()`.)
    Lambert, D. (1992). Zero-inflated Poisson regression. Technometrics 34, 1-14.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.models.families import links, numerics
from gpukeras.models.families.base import Likelihood, flat, split
from gpukeras.models.families.numerics import HALF_LOG_2PI
from gpukeras.models.families.spec import Family

FEW = 1e-3  # the mean with which training starts if all counts are 0
ZEROS = -1.0  # the first linear predictor of surplus zeros: a share of 0.27


class Poisson(Likelihood):
    """Counts y of mean m: mass exp(-m) m^y / y!."""

    support = (0.0, math.inf)

    def first_mean(self, family: Family) -> float:
        """Returns the mean count."""
        return max(family.center, FEW)

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the negative log-mass."""
        return poisson_loss(flat(labels), parameters[:, 0])


def poisson_loss(y: Any, mean: Any) -> Any:
    """Returns m - y + y log(y / m) + log(2 pi y) / 2 + d(y), and m for y = 0."""
    ops = runtime.keras().ops
    some = y > 0
    count = ops.where(some, y, 1.0)
    fit = mean - count + count * numerics.log_ratio(count, mean)
    rest = 0.5 * ops.log(count) + HALF_LOG_2PI + numerics.stirling_error(count)
    return ops.where(some, fit + rest, mean)


class NegativeBinomial(Poisson):
    """Counts of mean m and variance m + m^2 / size, R's `dnbinom(mu = , size = )`.

    For a = y + size the log-mass is a log(a / (m + size)) - y log(y / m) - log(a / size) / 2 -
    log(2 pi y) / 2 + d(a) - d(size) - d(y); for y = 0 it is size log(size / (m + size)).
    """

    second = "size"

    def first_dispersion(self, family: Family) -> float:
        """Returns mean^2 / (variance - mean), or 10 where counts vary less than Poisson's."""
        surplus = family.scale**2 - family.center
        return self.first_mean(family) ** 2 / surplus if surplus > 0 else 10.0

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the negative log-mass."""
        ops, (mean, size) = runtime.keras().ops, split(parameters, 2)
        y = flat(labels)
        some, all_ = y > 0, y + size
        count = ops.where(some, y, 1.0)
        fit = -all_ * numerics.log_ratio(all_, mean + size)
        own = count * numerics.log_ratio(count, mean) + 0.5 * ops.log(count) + HALF_LOG_2PI
        errors = [numerics.stirling_error(each) for each in (count, size, all_)]
        own = own + 0.5 * ops.log1p(y / size) + errors[0] + errors[1] - errors[2]
        return fit + ops.where(some, own, 0.0)


class ZeroInflatedPoisson(Poisson):
    """Counts that are 0 with probability `zero`, else Poisson of mean `rate`.

    The log-mass is log(zero + nonzero exp(-rate)) for y = 0, else log(nonzero) plus Poisson's.
    """

    def predictors(self, family: Family) -> int:
        """Returns two: of the logarithm of the rate, and of the logit of surplus zeros."""
        return 2

    def names(self, family: Family) -> list[str]:
        """Returns `rate`, `zero` and `nonzero`, which is 1 - zero."""
        return ["rate", "zero", "nonzero"]

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns the rate, and the probabilities of a surplus zero and of none."""
        ops = runtime.keras().ops
        origin = self.origin(family, own)
        predictor = origin.start - origin.shift + linear[:, :1]
        predictor = predictor if offset is None else predictor + offset
        rate = links.positive_mean("log", predictor, origin.start)
        return ops.concatenate([rate, *links.probabilities("logit", linear[:, 1:] + ZEROS)], axis=1)

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the negative log-mass."""
        ops, (rate, zero, nonzero) = runtime.keras().ops, split(parameters, 3)
        y = flat(labels)
        none = -ops.log(zero + nonzero * ops.exp(-rate))
        return ops.where(y > 0, poisson_loss(y, rate) - ops.log(nonzero), none)

    def mean(self, family: Family, parameters: np.ndarray) -> np.ndarray:
        """Returns nonzero * rate."""
        mean: np.ndarray = parameters[:, 2] * parameters[:, 0]
        return mean
