"""Prediction intervals by split conformal prediction: pure functions of arrays.

Rows that did not train the model say how far its predictions are off. If new rows come from the
same distribution (are exchangeable with these), an interval covers the label of a new row with at
least the given probability, whatever the model: Lei, G'Sell, Rinaldo, Tibshirani and Wasserman
(2018), Distribution-free predictive inference for regression, JASA 113. Intervals between predicted
quantiles, which are wide where labels vary much, are corrected alike: Romano, Patterson and Candes
(2019), Conformalized quantile regression, NeurIPS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gpukeras.core.errors import SpecError

MOST_SCORES = (
    10_000  # kept of a calibration; the coverage then varies by 0.3 points (one sd) at 90 %
)
ROUNDING = 1e-9  # of `(n + 1) * level`, so that 10 * 0.9 is rank 9


def absolute_scores(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns how far predictions are off: `|label - predicted|` (float64)."""
    return np.abs(labels.astype(np.float64) - predicted)


def quantile_scores(lower: np.ndarray, upper: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns how far labels lie outside of predicted quantiles (float64); negative inside.

    Equation 6 of Romano et al. (2019): `max(lower - label, label - upper)`.
    """
    labels = labels.astype(np.float64)
    return np.maximum(lower - labels, labels - upper)


def weigh_scores(scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Returns as many scores as there are, in order, of which each stands for a weight of 1.

    The k-th is the least score up to which the weights sum to k, so that ranks of these scores are
    quantiles of the weighted ones. Equal weights change nothing.

    Args:
        scores: A score for each row.
        weights: Weights of the rows, above 0 and 1 on average.
    """
    order = np.argsort(scores, kind="stable")
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, np.arange(1, len(scores) + 1) - ROUNDING * len(scores))
    quantiles: np.ndarray = scores[order][np.minimum(places, len(scores) - 1)]
    return quantiles


def thin_scores(scores: np.ndarray) -> np.ndarray:
    """Returns the scores in order, at most `MOST_SCORES` of them, drawn at random.

    A subset of exchangeable rows is exchangeable too, so intervals stay valid.
    """
    if len(scores) > MOST_SCORES:
        scores = np.random.default_rng(0).choice(scores, MOST_SCORES, replace=False)
    return np.sort(scores)


def conformal_rank(count: int, level: float) -> int:
    """Returns the rank, from 1, of the score that bounds an interval: `ceil((n + 1) * level)`.

    The 1 is the new row itself; it makes the guarantee exact for a finite number of rows.

    Raises:
        SpecError: if that is beyond the scores, so that only an infinite interval would be valid.
    """
    rank = math.ceil((count + 1) * level - ROUNDING)
    if rank > count:
        needed = math.ceil(level / (1 - level) - ROUNDING)
        raise SpecError(
            f"`interval = {level:g}` needs at least {needed} rows in gpu_calibrate(), which had "
            f"{count}.",
            arg="interval",
        )
    return rank


def conformal_quantile(scores: Sequence[float] | np.ndarray, level: float) -> float:
    """Returns the score that an interval of this level adds at both ends.

    Args:
        scores: Scores of the calibration rows, in ascending order.
        level: Probability of covering a label, between 0 and 1.
    """
    return float(scores[conformal_rank(len(scores), level) - 1])


def widen(lower: np.ndarray, upper: np.ndarray, margin: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ends of intervals that are wider by a margin at each end.

    A margin below 0 makes them narrower. Ends that cross so, or that crossed before, as quantiles
    of a network may, both become their mean: that covers no fewer labels than no interval.
    """
    lower, upper = lower - margin, upper + margin
    crossed = lower > upper
    middle = (lower + upper) / 2
    return np.where(crossed, middle, lower), np.where(crossed, middle, upper)


def list_pairs(quantiles: Sequence[float]) -> list[tuple[int, int]]:
    """Returns the columns of each pair of lower and upper quantile, the widest pair first."""
    last = len(quantiles) - 1
    return [(place, last - place) for place in range(len(quantiles) // 2)]


def choose_pair(quantiles: Sequence[float], level: float) -> int:
    """Returns which pair of quantiles lies nearest to a level; correction makes any of them valid.

    Args:
        quantiles: Probabilities of the model's outputs, in ascending order.
        level: Probability of covering a label.
    """
    pairs = list_pairs(quantiles)
    between = [quantiles[high] - quantiles[low] for low, high in pairs]
    return min(range(len(pairs)), key=lambda place: abs(between[place] - level))
