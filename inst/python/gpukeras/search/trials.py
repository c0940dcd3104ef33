"""Trials of a search, what came of them, and who trains them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Trial:
    """One combination of settings.

    Args:
        number: Its number, counted from 1.
        settings: Plain values by name.
        seed: Seed of its initial weights and of all that its builder draws.
    """

    number: int
    settings: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What came of a trial up to a number of epochs.

    Args:
        trial: Its number.
        epochs: Epochs trained in all, those of earlier calls included.
        metrics: Each metric of the held-out rows after the last epoch, one value a resample.
        history: Each metric after each epoch, as the mean over the resamples.
        seconds: Seconds that this call took for the trial.
        error: Why the trial failed, as a sentence without its period, or "".
    """

    trial: int
    epochs: int
    metrics: Mapping[str, list[float]] = field(default_factory=dict)
    history: Mapping[str, list[float]] = field(default_factory=dict)
    seconds: float = 0.0
    error: str = ""


class Trainer(Protocol):
    """Trains trials; keeps the state of those that may go on.

    Attributes:
        width: Number of trials that it trains at once.
    """

    width: int

    def train(self, trials: Sequence[Trial], epochs: int) -> Iterator[Outcome]:
        """Yields an outcome a trial as soon as it is known.

        Args:
            trials: Trials that all have trained equally long.
            epochs: Epochs to have trained in all; what earlier calls trained is not repeated as
                long as the trainer has its state.
        """

    def drop(self, trials: Sequence[Trial]) -> None:
        """Forgets the state of trials that will not go on."""
