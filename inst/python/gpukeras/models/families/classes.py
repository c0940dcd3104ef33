"""Families of classes: binomial, multinomial, several labels, ordered classes.

References:
    McCullagh, P. (1980). Regression models for ordinal data. Journal of the Royal Statistical
    Society B 42, 109-142. (As `MASS::polr()`: g(P(Y <= k)) = threshold_k - predictor.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.models.families import links, numerics
from gpukeras.models.families.base import Likelihood, Origin, flat, split
from gpukeras.models.families.numerics import HALF_LOG_2PI
from gpukeras.models.families.spec import Family


class Binomial(Likelihood):
    """Successes s among s + f trials: mass choose(s + f, s) p^s (1 - p)^f; one trial for 0/1.

    Both probabilities are parameters, so that neither is 1 minus a rounded one.
    """

    support = (0.0, 1.0)

    def keras_names(self, family: Family) -> tuple[str, list[str]]:
        """Returns the accuracy, for one trial a row."""
        return "", ["accuracy"] if family.columns == 1 else []

    def names(self, family: Family) -> list[str]:
        """Returns `failure` and `success`."""
        return ["failure", "success"]

    def first_mean(self, family: Family) -> float:
        """Returns the share of successes."""
        return min(max(family.center, 0.001), 0.999)

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns both probabilities."""
        pair = links.probabilities(family.link, self.predictor(family, linear, own, offset))
        return runtime.keras().ops.concatenate(pair[::-1], axis=1)

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the negative log-mass."""
        failure, success = split(parameters, 2)
        if family.columns == 1:
            y = flat(labels)
            ops = runtime.keras().ops
            return -(y * ops.log(success) + (1.0 - y) * ops.log(failure))
        return _trials_loss(labels, failure, success)

    def mean(self, family: Family, parameters: np.ndarray) -> np.ndarray:
        """Returns the probability of success."""
        return parameters[:, 1]


def _trials_loss(labels: Any, failure: Any, success: Any) -> Any:
    """Returns n log-likelihood terms by Stirling's formula, as R's `dbinom()`.

    s log(s / (n p)) + f log(f / (n q)) + log(2 pi s f / n) / 2 + d(s) + d(f) - d(n), where a count
    of 0 adds nothing.
    """
    ops = runtime.keras().ops
    counts = ops.cast(labels, "float32")
    trials = ops.maximum(counts[:, 0] + counts[:, 1], 1.0)
    total = -HALF_LOG_2PI - 0.5 * ops.log(trials) - numerics.stirling_error(trials)
    for place, probability in enumerate((success, failure)):
        some = counts[:, place] > 0
        count = ops.where(some, counts[:, place], 1.0)
        own = count * numerics.log_ratio(count, trials * probability) + 0.5 * ops.log(count)
        own = own + HALF_LOG_2PI + numerics.stirling_error(count)
        total = total + ops.where(some, own, 0.0)
    # Where one count is 0, the other is all trials: its terms and those of the trials cancel.
    return ops.where(counts[:, 0] + counts[:, 1] > 0, total, 0.0)


class Multinomial(Likelihood):
    """Classes by a softmax; the loss is Keras' cross-entropy."""

    def first_origin(self, family: Family) -> Origin:
        """Returns the mean offset: the predictors start at 0."""
        return Origin(shift=family.shift)

    def keras_names(self, family: Family) -> tuple[str, list[str]]:
        """Returns the cross-entropy of classes."""
        return "sparse_categorical_crossentropy", ["accuracy"]

    def predictors(self, family: Family) -> int:
        """Returns one for each class."""
        return family.columns

    def names(self, family: Family) -> list[str]:
        """Returns the classes."""
        numbered = [f"class{place}" for place in range(1, family.columns + 1)]
        return list(family.names) or numbered

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns a probability for each class; Keras' loss finds the logits behind a softmax."""
        return runtime.keras().ops.softmax(linear)

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the negative log-probability of each row's class."""
        ops = runtime.keras().ops
        codes = ops.cast(flat(labels), "int32")
        chosen = ops.one_hot(codes, family.columns, dtype="float32")
        return -ops.sum(chosen * numerics.safe_log(parameters), axis=1)

    def mean(self, family: Family, parameters: np.ndarray) -> np.ndarray:
        """Returns all probabilities."""
        return parameters


class MultiLabel(Multinomial):
    """Several labels of 0 and 1, each by a sigmoid; the loss is Keras' binary cross-entropy."""

    def keras_names(self, family: Family) -> tuple[str, list[str]]:
        """Returns the cross-entropy of labels."""
        return "binary_crossentropy", ["accuracy"]

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns a probability for each label."""
        return runtime.keras().ops.sigmoid(
            linear if offset is None else linear + offset - self.origin(family, own).shift
        )

    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns minus the sum of the labels' log-probabilities, of which Keras takes the mean."""
        ops = runtime.keras().ops
        labels = ops.reshape(ops.cast(labels, "float32"), ops.shape(parameters))
        known, other = numerics.safe_log(parameters), numerics.safe_log(1.0 - parameters)
        return -ops.sum(labels * known + (1.0 - labels) * other, axis=1)


class Ordinal(Multinomial):
    """Ordered classes: P(Y <= k) = F(threshold_k - predictor), and the loss is -log P(Y = y).

    The thresholds are the layer's own weights: the first one, and the softplus of each distance, so
    that they increase.
    """

    def has_intercept(self, family: Family) -> bool:
        """Returns False: thresholds take its place."""
        return False

    def keras_names(self, family: Family) -> tuple[str, list[str]]:
        """Returns the accuracy."""
        return "", ["accuracy"]

    def predictors(self, family: Family) -> int:
        """Returns one."""
        return 1

    def weights(self, family: Family) -> dict[str, tuple[int, ...]]:
        """Returns the thresholds."""
        return {"thresholds": (family.columns - 1,)}

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns the probability of each class."""
        ops = runtime.keras().ops
        predictor = linear
        if offset is not None:
            predictor = linear + offset - self.origin(family, own).shift
        limits = self.thresholds(family, own["thresholds"]) - predictor
        parts = [links.probabilities(family.link, limits[:, :1])[0]]
        if family.columns > 2:
            parts.append(links.probability_between(family.link, limits[:, :-1], limits[:, 1:]))
        parts.append(links.probabilities(family.link, limits[:, -1:])[1])
        return ops.concatenate(parts, axis=1)

    def thresholds(self, family: Family, raw: Any) -> Any:
        """Returns the thresholds, (1, classes - 1): at first those of equally frequent classes."""
        ops = runtime.keras().ops
        first = [
            links.link_of(family.link, place / family.columns) for place in range(1, family.columns)
        ]
        gaps = [math.log(math.expm1(high - low)) for low, high in pairwise(first)]
        lowest = raw[:1] + first[0]
        if not gaps:
            return ops.reshape(lowest, (1, -1))
        steps = ops.softplus(raw[1:] + ops.convert_to_tensor(gaps, dtype="float32"))
        return ops.reshape(ops.concatenate([lowest, lowest + ops.cumsum(steps)]), (1, -1))
