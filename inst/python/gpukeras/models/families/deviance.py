"""Log-likelihoods and deviances of rows, defined as in R's `glm()`.

The deviance is 2 (l_s - l): l is the log-likelihood of the rows, l_s that of a model with a
parameter for each row. A continuous family's deviance is not divided by its dispersion, as in
`glm()`. For classes, hazards and partial likelihoods l_s is 0, as in `MASS::polr()` and
`nnet::multinom()`. The null model has the mean alone (and the offset), found by Fisher scoring.

References:
    McCullagh, P. & Nelder, J. A. (1989). Generalized Linear Models, 2nd ed., sections 2.3 and 2.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.models.families.links import link_of
from gpukeras.models.families.registry import likelihood
from gpukeras.models.families.spec import NONE, ROWS, Family

UNIT = ("gaussian", "poisson", "negative_binomial", "gamma", "binomial")  # have unit deviances
CERTAIN = ("multinomial", "multi_label", "ordinal", "cox", "discrete_time")  # l_s is 0
BLOCK = 100_000  # rows whose log-likelihood is computed at once
STEPS, TOLERANCE = 50, 1e-12  # of Fisher scoring
SMALLEST = 1e-30  # of a probability before its logarithm
NEAR = 1e-9  # the first mean's distance from the ends of its range


@dataclass(frozen=True)
class Rows:
    """Rows with what a model says of them; all float64.

    Args:
        labels: (n,) or (n, columns).
        parameters: What the model gives, (n, parameters of the family).
        weights: One weight a row, (n,).
        offset: Added to the linear predictor, (n,); zeros without one.
    """

    labels: np.ndarray
    parameters: np.ndarray
    weights: np.ndarray
    offset: np.ndarray

    def keep(self, rows: np.ndarray) -> Rows:
        """Returns some of the rows."""
        parts = (self.labels, self.parameters, self.weights, self.offset)
        return Rows(*(part[rows] for part in parts))


@dataclass(frozen=True)
class Deviance:
    """What the likelihood says of rows; None where the family does not define it.

    Args:
        log_likelihood: Of all rows, each multiplied by its weight.
        deviance: See above.
        null_deviance: That of the mean alone.
    """

    log_likelihood: float | None
    deviance: float | None
    null_deviance: float | None


def measure_deviance(family: Family, rows: Rows) -> Deviance:
    """Returns log-likelihood, deviance and null deviance of rows.

    A Gaussian family without a dispersion has the log-likelihood of `glm()`, at the variance
    deviance / n; "quantile" has none. Families whose dispersion depends on the rows, "beta" and
    "zero_inflated_poisson" have no deviance, as no model of the mean alone compares with them.
    """
    if family.name == "quantile":
        return Deviance(None, None, None)
    deviance, null = _measure_both(family, rows)
    if family.name == "gaussian" and family.dispersion == NONE:
        assert deviance is not None
        return Deviance(_gaussian_likelihood(rows, deviance), deviance, null)
    return Deviance(log_likelihood(family, rows), deviance, null)


def _measure_both(family: Family, rows: Rows) -> tuple[float | None, float | None]:
    if family.name in CERTAIN:
        null = null_parameters(family, rows)
        deviances = -2 * log_likelihood(family, rows)
        if null is None:
            return deviances, None
        without = Rows(rows.labels, null, rows.weights, rows.offset)
        return deviances, -2 * log_likelihood(family, without)
    if family.name not in UNIT or family.dispersion == ROWS:
        return None, None
    size = rows.parameters[:, 1] if family.name == "negative_binomial" else np.ones(1)
    total = float(rows.weights @ unit_deviance(family, rows.labels, _means(family, rows), size))
    # Under an inverse or square root link, offsets may leave no intercept with means above 0.
    with np.errstate(all="ignore"):
        means = _null_means(family, rows)
        alone = float(rows.weights @ unit_deviance(family, rows.labels, means, size))
    return total, alone if math.isfinite(alone) else None


def _gaussian_likelihood(rows: Rows, deviance: float) -> float | None:
    """Returns `logLik()` of `glm()`: -n (log(2 pi deviance / n) + 1) / 2 + sum(log(weights)) / 2.

    None for several columns of labels, whose variances differ, and for a deviance of 0.
    """
    count = len(rows.labels)
    if rows.labels.ndim > 1 or deviance <= 0:
        return None
    fit = -0.5 * count * (math.log(2 * math.pi * deviance / count) + 1)
    return fit + 0.5 * float(np.log(rows.weights).sum())


def log_likelihood(family: Family, rows: Rows) -> float:
    """Returns the sum of the rows' log-likelihoods, each multiplied by its weight."""
    # Risk sets need all rows at once.
    size = BLOCK if likelihood(family).additive else len(rows.labels)
    return sum(
        _block_likelihood(family, rows.keep(np.arange(first, min(first + size, len(rows.labels)))))
        for first in range(0, len(rows.labels), size)
    )


def _block_likelihood(family: Family, rows: Rows) -> float:
    ops = runtime.keras().ops
    labels, parameters, weights = (
        ops.convert_to_tensor(np.asarray(part, np.float32))
        for part in (rows.labels, rows.parameters, rows.weights)
    )
    kin = likelihood(family)
    if kin.additive:
        losses = ops.convert_to_numpy(kin.loss(family, labels, parameters))
        return -float(rows.weights @ np.asarray(losses, np.float64))
    losses = ops.convert_to_numpy(kin.weighted_loss(family, labels, parameters, weights))
    return -float(np.asarray(losses, np.float64).sum())


# Deviances ---------------------------------------------------------------------------------------


def unit_deviance(
    family: Family, labels: np.ndarray, mean: np.ndarray, size: np.ndarray
) -> np.ndarray:
    """Returns each row's deviance, (n,), as R's `dev.resids()` with a weight of 1.

    Args:
        family: One of `UNIT`.
        labels: (n,); for trials (n, 2), successes and failures; for Gaussian columns (n, columns).
        mean: Means, or probabilities of success, (n,); for Gaussian columns (n, columns).
        size: Of a negative binomial, (n,) or (1,); not used by others.
    """
    y = labels
    if family.name == "gaussian":
        deviances: np.ndarray = np.square(y - mean)
        return deviances.sum(axis=1) if deviances.ndim > 1 else deviances
    if family.name == "binomial":
        trials = y if y.ndim > 1 else np.column_stack([y, 1 - y])
        total = trials.sum(axis=1)
        return 2 * (
            _times_log(trials[:, 0], total * mean) + _times_log(trials[:, 1], total - total * mean)
        )
    if family.name == "gamma":
        return 2 * ((y - mean) / mean - np.log(y / mean))
    if family.name == "poisson":
        return 2 * (_times_log(y, mean) - (y - mean))
    return 2 * (_times_log(y, mean) - _times_log(y + size, mean + size))


def _times_log(y: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Returns y log(y / mean), 0 where y is 0."""
    some = y > 0
    safe = np.maximum(np.where(some, mean, 1.0), SMALLEST)
    return np.where(some, y * np.log(np.where(some, y, 1.0) / safe), 0.0)


def _means(family: Family, rows: Rows) -> np.ndarray:
    return np.asarray(likelihood(family).mean(family, rows.parameters), np.float64)


# The model of the mean alone ---------------------------------------------------------------------


def null_parameters(family: Family, rows: Rows) -> np.ndarray | None:
    """Returns the parameters of each row, of a family in `CERTAIN`, by the model without features.

    None where they depend on an offset, but for "cox".
    """
    if family.name == "cox":
        return np.column_stack([np.exp(rows.offset), rows.parameters[:, 1:]])
    if rows.offset.any():
        return None
    if family.name == "discrete_time":
        shares = _null_hazards(family, rows)
    elif family.name == "multi_label":
        shares = np.average(rows.labels, axis=0, weights=rows.weights)
    else:
        codes = rows.labels.reshape(-1).astype(np.int64)
        counts = np.bincount(codes, rows.weights, minlength=family.columns)
        shares = counts / counts.sum()
    return np.tile(shares, (len(rows.labels), 1))


def _null_hazards(family: Family, rows: Rows) -> np.ndarray:
    """Returns the share of events among the rows at risk, in each interval; see `DiscreteTime`."""
    time = rows.labels[:, :1]
    event = rows.labels[:, 1:] > 0
    weights = rows.weights
    upper = np.array([family.breaks])
    lower = np.array([[0.0, *family.breaks[:-1]]])
    died = weights @ ((time > lower) & (time <= upper) & event)
    lived = weights @ np.where(event, time > upper, time >= (lower + upper) / 2)
    hazards: np.ndarray = died / np.maximum(died + lived, SMALLEST)
    return hazards


def _null_means(family: Family, rows: Rows) -> np.ndarray:
    """Returns the mean of each row by the model without features."""
    labels, weights = rows.labels, rows.weights
    if family.name == "binomial" and labels.ndim > 1:
        weights = weights * labels.sum(axis=1)
        labels = labels[:, 0] / np.maximum(labels.sum(axis=1), 1)
    mean = np.average(labels, axis=0, weights=weights)
    if not rows.offset.any():
        return np.broadcast_to(mean, labels.shape)
    if family.link == "identity" and family.name == "gaussian":
        shift = np.average((labels.T - rows.offset).T, axis=0, weights=weights)
        means: np.ndarray = (rows.offset + np.reshape(shift, (-1, 1))).T
        return means.reshape(labels.shape)
    return _score_intercept(family, rows, labels, weights)


def _score_intercept(
    family: Family, rows: Rows, labels: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Returns the means of an intercept beside the offset, by Fisher scoring."""
    mean = max(float(np.average(labels, weights=weights)), NEAR)
    mean = min(mean, 1 - NEAR) if family.name == "binomial" else mean
    start = link_of(family.link, mean) - float(np.average(rows.offset, weights=weights))
    for _ in range(STEPS):
        means, slopes = invert_link(family.link, start + rows.offset)
        variance = _variance(family, means, rows)
        # Both are NumPy's numbers, whose division by 0 gives NaN.
        step = weights @ ((labels - means) * slopes / variance)
        step = float(step / (weights @ (slopes**2 / variance)))
        start += step
        if abs(step) <= TOLERANCE * (1 + abs(start)):
            break
    return invert_link(family.link, start + rows.offset)[0]


def invert_link(link: str, predictor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean at linear predictors and its derivative, as R's `make.link()`."""
    if link == "identity":
        return predictor, np.ones_like(predictor)
    if link == "log":
        return np.exp(predictor), np.exp(predictor)
    if link == "sqrt":
        return predictor**2, 2 * predictor
    if link == "inverse":
        return 1 / predictor, -1 / predictor**2
    if link == "logit":
        chance = 1 / (1 + np.exp(-predictor))
        return chance, chance * (1 - chance)
    if link == "cloglog":
        rate = np.exp(predictor)
        return -np.expm1(-rate), rate * np.exp(-rate)
    normal = NormalDist()
    chance = np.array([normal.cdf(score) for score in predictor.tolist()])
    return chance, np.exp(-0.5 * predictor**2) / math.sqrt(2 * math.pi)


def _variance(family: Family, mean: np.ndarray, rows: Rows) -> Any:
    """Returns the variance at means, apart from the dispersion."""
    if family.name == "negative_binomial":
        return mean + mean**2 / rows.parameters[:, 1]
    kinds = {"poisson": mean, "gamma": mean**2, "binomial": mean * (1 - mean)}
    return kinds.get(family.name, 1.0)
