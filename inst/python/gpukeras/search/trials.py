"""Trials of a search, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.core.metric_values import split_components


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


def summarise(
    trial: int, epochs: int, histories: Sequence[Mapping[str, list[Any]]], seconds: float
) -> Outcome:
    """Returns the outcome of a trial.

    Args:
        trial: Its number.
        epochs: Epochs trained in all.
        histories: Each metric after each epoch, for each resample.
        seconds: Seconds that it took.
    """
    by_resample = [_by_component(history) for history in histories]
    names = [name for name in by_resample[0] if all(name in other for other in by_resample)]
    mean = {
        name: np.mean([other[name] for other in by_resample], axis=0).tolist() for name in names
    }
    held_out = [name for name in names if name.startswith("val_")]
    metrics = {name: [other[name][epochs - 1] for other in by_resample] for name in held_out}
    return Outcome(trial, epochs, metrics, mean, seconds)


def _by_component(history: Mapping[str, list[Any]]) -> dict[str, list[float]]:
    """Returns each metric after each epoch, with an array's components as metrics of their own."""
    components: dict[str, list[float]] = {}
    for epoch in range(len(next(iter(history.values()), []))):
        values = {name: each[epoch] for name, each in history.items()}
        for name, value in split_components(values).items():
            components.setdefault(name, []).append(value)
    return components
