"""The learning rates of the models of a stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.core.keras_types import Model
from gpukeras.engine.optimizer import count_steps, read_rate, reduce_factor
from gpukeras.engine.schedules import draw_rates_at, parse_schedule


class StackRates:
    """The rates of a training, by a schedule or by each optimizer itself.

    Args:
        models: The models before their training.
        steps: Steps of an epoch of each.
        epochs: Epochs of the training.
        schedule: The schedule, see `schedules`; None for the optimizers' own rates.

    Attributes:
        steps: Steps of an epoch of each model.
        own: The rate that each optimizer began with.
        factors: What each model's rates are multiplied by, see `reduce()`.
    """

    def __init__(
        self,
        models: Sequence[Model],
        steps: Sequence[int],
        epochs: int,
        schedule: Mapping[str, Any] | None,
    ) -> None:
        """Reads where the optimizers stand."""
        self.steps = steps
        self._epochs = epochs
        self.schedule = None if schedule is None else parse_schedule(schedule)
        self.own = [read_rate(model) for model in models]
        self.factors = np.ones(len(models), np.float32)
        self._began = np.array([count_steps(model) for model in models])

    def draw(self, count_steps: Callable[[], np.ndarray]) -> np.ndarray | None:
        """Returns the rates of each model's next epoch, (models, steps); None for their own.

        Args:
            count_steps: Returns the steps that each optimizer has done.
        """
        if self.schedule is None:
            return None
        rates = np.zeros((len(self.steps), max(self.steps)), np.float32)
        for place, first in enumerate(count_steps() - self._began):
            steps = self.steps[place]
            drawn = self._draw(place, first + np.arange(steps))
            rates[place, :steps] = drawn * self.factors[place]
        return rates

    def reduce(self, place: int, by: float, lowest: float) -> None:
        """Multiplies all later rates of a model by a schedule; see `Rates.reduce()`."""
        last = self.steps[place] * self._epochs - 1
        highest = float(self._draw(place, np.array([last]))[0])  # after a warm-up, if any
        self.factors[place] = reduce_factor(self.factors[place], by, lowest, highest)

    def _draw(self, place: int, at: np.ndarray) -> np.ndarray:
        """Returns a model's rates by the schedule at steps from the training's start."""
        assert self.schedule is not None
        steps = self.steps[place]
        return draw_rates_at(self.schedule, self.own[place], at, steps * self._epochs, steps)
