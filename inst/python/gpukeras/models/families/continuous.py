"""Families of continuous labels: Gaussian, quantiles, gamma and beta.

References:
    Koenker, R. & Bassett, G. (1978). Regression quantiles. Econometrica 46, 33-50.
    McCullagh, P. & Nelder, J. A. (1989). Generalized Linear Models, 2nd ed., chapter 8. (Gamma.)
    Ferrari, S. & Cribari-Neto, F. (2004). Beta regression for modelling rates and proportions.
    Journal of Applied Statistics 31, 799-815.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.models.families import links, numerics
from gpukeras.models.families.base import Likelihood, flat, split
from gpukeras.models.families.numerics import HALF_LOG_2PI
from gpukeras.models.families.spec import NONE, Family


class Gaussian(Likelihood):
    """A normal distribution: ((y - mean) / sd)^2 / 2 + log(sd) + log(2 pi) / 2.

    Without a dispersion the loss is Keras' mean squared error.
    """

    second = "sd"

    def keras_names(self, family: Family) -> tuple[str, list[str]]:
        """Returns the mean squared error, unless a deviation is learned."""
        if family.dispersion != NONE:
            return "", []
        return "mean_squared_error", ["mean_absolute_error"]

    def predictors(self, family: Family) -> int:
        """Returns one for each column of the labels."""
        return family.columns

    def names(self, family: Family) -> list[str]:
        """Returns `mean`, or the names of the labels' columns."""
        if family.columns == 1:
            return super().names(family)
        numbered = [f"mean{place}" for place in range(1, family.columns + 1)]
        return list(family.names) or numbered

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns means, which may be negative under the identity link, and the deviation."""
        if family.link != "identity":
            return super().parameters(family, linear, own, offset)
        mean = self.predictor(family, linear, own, offset)
        return self.with_dispersion(family, [mean], linear, own)

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the negative log-density."""
        ops, (mean, deviation) = runtime.keras().ops, split(parameters, 2)
        distance = (flat(labels) - mean) / deviation
        return 0.5 * ops.square(distance) + ops.log(deviation) + HALF_LOG_2PI

    def mean(self, family: Family, parameters: np.ndarray) -> np.ndarray:
        """Returns the means."""
        return parameters if family.columns > 1 else parameters[:, 0]


class Quantile(Likelihood):
    """Quantiles by the pinball loss: the mean over q of max(q (y - f), (q - 1) (y - f)).

    The first one is linear; each further one is the one before plus a softplus, so that they never
    cross.
    """

    def predictors(self, family: Family) -> int:
        """Returns one for each quantile."""
        return len(family.quantiles)

    def names(self, family: Family) -> list[str]:
        """Returns names such as `q0.1`."""
        return [f"q{value:g}" for value in family.quantiles]

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns the quantiles, which start as those of the normal distribution."""
        ops, first = runtime.keras().ops, [NormalDist().inv_cdf(q) for q in family.quantiles]
        gaps = [math.log(math.expm1(high - low)) for low, high in pairwise(first)]
        origin = self.origin(family, own)
        values = origin.start - origin.shift + origin.unit * linear[:, :1]
        if gaps:
            steps = ops.softplus(linear[:, 1:] + ops.convert_to_tensor([gaps], dtype="float32"))
            above = values + origin.unit * ops.cumsum(steps, axis=1)
            values = ops.concatenate([values, above], axis=1)
        return values if offset is None else values + offset

    def start(self, family: Family) -> float:
        """Returns the lowest quantile with which training starts."""
        return family.center + family.scale * NormalDist().inv_cdf(family.quantiles[0])

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the pinball loss, averaged over the quantiles."""
        ops = runtime.keras().ops
        shares = ops.convert_to_tensor([family.quantiles], dtype="float32")
        above = ops.expand_dims(flat(labels), 1) - parameters
        return ops.mean(ops.maximum(shares * above, (shares - 1.0) * above), axis=1)

    def mean(self, family: Family, parameters: np.ndarray) -> np.ndarray:
        """Returns all quantiles."""
        return parameters


class Gamma(Likelihood):
    """A gamma distribution of mean m and shape k: density (k / m)^k y^(k - 1) exp(-k y / m) / G(k).

    With Stirling's formula its logarithm is k (log(y / m) - y / m + 1) + log(k) / 2 - log(y) -
    log(2 pi) / 2 - d(k), in which nothing large cancels.
    """

    second = "shape"
    support = (0.0, math.inf)

    def first_dispersion(self, family: Family) -> float:
        """Returns mean^2 / variance."""
        return (family.center / family.scale) ** 2

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the negative log-density."""
        ops, (mean, shape) = runtime.keras().ops, split(parameters, 2)
        y = flat(labels)
        deviance = (y - mean) / mean - numerics.log_ratio(y, mean)
        rest = ops.log(y) + HALF_LOG_2PI + numerics.stirling_error(shape) - 0.5 * ops.log(shape)
        return shape * deviance + rest


class Beta(Likelihood):
    """A beta distribution of mean m and precision p: shapes a = m p and b = (1 - m) p.

    With Stirling's formula its log-density is a log(y / m) + b log((1 - y) / (1 - m)) +
    (log(m) + log(1 - m) + log(p) - log(2 pi)) / 2 - log(y) - log(1 - y) + d(p) - d(a) - d(b).
    """

    support = (0.0, 1.0)

    def names(self, family: Family) -> list[str]:
        """Returns R's names, as in `dbeta()`: the mean is shape1 / (shape1 + shape2)."""
        return ["shape1", "shape2"]

    def first_dispersion(self, family: Family) -> float:
        """Returns mean (1 - mean) / variance - 1."""
        return max(family.center * (1 - family.center) / family.scale**2 - 1.0, 1.0)

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns both shapes."""
        ops = runtime.keras().ops
        mean = links.probabilities(family.link, self.predictor(family, linear, own, offset))
        return self.dispersion(family, linear, own) * ops.concatenate(mean, axis=1)

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the negative log-density."""
        ops, (a, b) = runtime.keras().ops, split(parameters, 2)
        y, precision = flat(labels), a + b
        fit = a * numerics.log_ratio(y, a / precision)
        fit = fit + b * numerics.log_ratio(1.0 - y, b / precision)
        sizes = 0.5 * (ops.log(a) + ops.log(b) - ops.log(precision)) - HALF_LOG_2PI
        errors = [numerics.stirling_error(each) for each in (precision, a, b)]
        rest = errors[0] - errors[1] - errors[2] - ops.log(y) - ops.log1p(-y)
        return -(fit + sizes + rest)

    def mean(self, family: Family, parameters: np.ndarray) -> np.ndarray:
        """Returns shape1 / (shape1 + shape2)."""
        mean: np.ndarray = parameters[:, 0] / parameters.sum(axis=1)
        return mean
