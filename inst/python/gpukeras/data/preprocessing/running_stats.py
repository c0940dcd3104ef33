"""Computes mean and deviation of rows block by block, with NumPy only."""

from __future__ import annotations

from typing import Any

import numpy as np


class RunningStats:
    """Mean and deviation of columns in float64, merged block by block (Chan et al. 1979).

    Each value has the first one subtracted, so values far from 0 lose no digits, and a constant
    column has a deviation of exactly 0. A vector has one mean, a matrix one per column.
    """

    def __init__(self) -> None:
        """Starts without rows."""
        self.count = 0
        self._origin: Any = 0.0
        self._mean: Any = 0.0
        self._squares: Any = 0.0

    def add(self, block: np.ndarray) -> None:
        """Adds a block of rows, which may be empty."""
        if len(block) == 0:
            return
        if self.count == 0:
            self._origin = np.array(block[0], np.float64)
        total = self.count + len(block)
        with np.errstate(over="ignore", invalid="ignore"):  # overflow is refused elsewhere
            away = np.subtract(block, self._origin, dtype=np.float64)
            mean = away.mean(axis=0)
            shift = mean - self._mean
            away -= mean
            np.square(away, out=away)
            self._squares += away.sum(axis=0) + shift**2 * (self.count * len(block) / total)
            self._mean, self.count = self._mean + shift * (len(block) / total), total

    @property
    def mean(self) -> Any:
        """The mean."""
        return self._origin + self._mean

    @property
    def deviation(self) -> Any:
        """The standard deviation, 1 where it is 0."""
        deviation = np.sqrt(self._squares / max(1, self.count))
        return np.where(deviation > 0, deviation, 1.0)
