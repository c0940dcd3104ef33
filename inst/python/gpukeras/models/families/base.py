"""What all families share: linear predictors become parameters, and parameters a loss a row."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.models.families import links, numerics
from gpukeras.models.families.spec import CONSTANT, NONE, ROWS, Family

SPREAD = 15.0  # reach of the logarithm of a dispersion from its start: factors of 3e6
LARGEST_START = 1e4  # of a dispersion
ORIGIN = "origin"  # what a layer's own weights have beside them where a stack trains its model


@dataclass(frozen=True)
class Origin:
    """Where training starts: all that the parameters take from the labels of the training rows.

    Args:
        start: The linear predictor with which training starts, with the mean offset.
        unit: The size of one unit of the layer below on the link's scale.
        dispersion: The logarithm of the dispersion.
        shift: The mean offset.
    """

    start: Any = 0.0
    unit: Any = 1.0
    dispersion: Any = 0.0
    shift: Any = 0.0


class Likelihood(ABC):
    """One family's parameters and their log-likelihood.

    Tensors have rows first: linear predictors (n, units), parameters (n, len(names)), labels (n,)
    or (n, columns); all are float32.

    Attributes:
        additive: Whether each row has a loss of its own.
        second: Name of the parameter that `dispersion` means.
        support: The least and the largest label that can occur.
    """

    additive = True
    second = ""
    support = (-math.inf, math.inf)

    def keras_names(self, family: Family) -> tuple[str, list[str]]:
        """Returns Keras' names for the loss, "" where it is the mean of `loss()`, and metrics."""
        return "", []

    def has_intercept(self, family: Family) -> bool:
        """Whether the linear predictors have a constant term."""
        return True

    def predictors(self, family: Family) -> int:
        """Returns the number of linear predictors of a row besides that of the dispersion."""
        return 1

    def weights(self, family: Family) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the weights that the last layer has besides, which start at 0."""
        return {"dispersion": (1,)} if family.dispersion == CONSTANT else {}

    def state(self, family: Family) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of further weights that no gradient trains."""
        return {}

    def names(self, family: Family) -> list[str]:
        """Returns the names of the parameters."""
        return ["mean", *([] if family.dispersion == NONE else [self.second])]

    def first_mean(self, family: Family) -> float:
        """Returns the mean with which training starts."""
        return family.center

    def parameters(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns the parameters of each row.

        Args:
            family: The family.
            linear: What the layer below gives, (n, units).
            own: The layer's own weights by name, see `weights()`; also its `ORIGIN` in a stack.
            offset: Added to the linear predictor of the mean, (n, 1), or None.
        """
        predictor = self.predictor(family, linear, own, offset)
        mean = links.positive_mean(family.link, predictor, self.origin(family, own).start)
        return self.with_dispersion(family, [mean], linear, own)

    def predictor(
        self, family: Family, linear: Any, own: Mapping[str, Any], offset: Any = None
    ) -> Any:
        """Returns the linear predictors of the mean, (n, predictors), on the link's scale."""
        origin = self.origin(family, own)
        below = linear[:, : self.predictors(family)]
        predictor = origin.start - origin.shift + origin.unit * below
        return predictor if offset is None else predictor + offset

    def origin(self, family: Family, own: Mapping[str, Any]) -> Origin:
        """Returns where training starts: what a stack has put beside the weights, or the family's.

        Only what the family's parameters depend on differs from the defaults of `Origin`.
        """
        origin = own.get(ORIGIN)
        return self.first_origin(family) if origin is None else origin

    def first_origin(self, family: Family) -> Origin:
        """Returns where training starts, in plain numbers."""
        dispersion = 0.0 if family.dispersion == NONE else self.log_dispersion(family)
        return Origin(self.start(family), self.unit(family), dispersion, family.shift)

    def start(self, family: Family) -> float:
        """Returns the linear predictor with which training starts, with the mean offset."""
        return links.link_of(family.link, self.first_mean(family))

    def unit(self, family: Family) -> float:
        """Returns the size of one unit of the layer below on the link's scale."""
        if family.link == "identity":
            return family.scale
        return abs(self.start(family)) if family.link in ("sqrt", "inverse") else 1.0

    def with_dispersion(
        self, family: Family, parts: list[Any], linear: Any, own: Mapping[str, Any]
    ) -> Any:
        """Returns parameters side by side, the dispersion last if the family has one."""
        ops = runtime.keras().ops
        if family.dispersion != NONE:
            dispersion = self.dispersion(family, linear, own)
            parts = [*parts, ops.broadcast_to(dispersion, ops.shape(parts[0]))]
        return ops.concatenate(parts, axis=1) if len(parts) > 1 else parts[0]

    def dispersion(self, family: Family, linear: Any, own: Mapping[str, Any]) -> Any:
        """Returns the dispersion of each row, (n, 1), or of all, (1, 1); it is positive."""
        ops = runtime.keras().ops
        raw = (
            linear[:, -1:] if family.dispersion == ROWS else ops.reshape(own["dispersion"], (1, 1))
        )
        first = self.origin(family, own).dispersion
        return ops.exp(first + numerics.clip(raw, -SPREAD, SPREAD))

    def log_dispersion(self, family: Family) -> float:
        """Returns the logarithm of the dispersion with which training starts."""
        if self.second == "sd":
            return math.log(family.scale)
        first = self.first_dispersion(family)
        return math.log(min(max(first, 1 / LARGEST_START), LARGEST_START))

    def first_dispersion(self, family: Family) -> float:
        """Returns the dispersion with which training starts: that of the labels' moments."""
        return 1.0

    @abstractmethod
    def loss(self, family: Family, labels: Any, parameters: Any) -> Any:
        """Returns the negative log-likelihood of each row, (n,)."""

    def weighted_loss(self, family: Family, labels: Any, parameters: Any, weights: Any) -> Any:
        """Returns the loss of each row, multiplied by its weight, (n,)."""
        return weights * self.loss(family, labels, parameters)

    def mean(self, family: Family, parameters: np.ndarray) -> np.ndarray:
        """Returns what `gpu_predict(type = "response")` gives, in NumPy."""
        return parameters[:, 0]


def split(parameters: Any, count: int) -> list[Any]:
    """Returns the columns of parameters, each (n,)."""
    return [parameters[:, place] for place in range(count)]


def flat(labels: Any) -> Any:
    """Returns labels of one column as (n,) float32."""
    ops = runtime.keras().ops
    return ops.reshape(ops.cast(labels, "float32"), (-1,))
