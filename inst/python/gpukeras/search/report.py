"""The report of a search, from which R makes a `gpu_tuning`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.core.messages import count_of
from gpukeras.search.halving import Rule, rank
from gpukeras.search.trials import Outcome, Trial


@dataclass(frozen=True)
class Best:
    """The best of all outcomes: more epochs are a setting too, and not always better.

    Args:
        trial: Its trial.
        epochs: Epochs trained.
        value: The metric, as the mean over the resamples.
        std_err: Its standard error over the resamples; None for one resample.
        settings: The trial's settings.
    """

    trial: int
    epochs: int
    value: float
    std_err: float | None
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One row of the trace: a trial up to a number of epochs.

    Args:
        trial: Its number.
        epochs: Epochs in all.
        settings: Its settings.
        metrics: Each metric of the held-out rows, as the mean over the resamples.
        std_err: Standard error of the search's metric over the resamples; None for one.
        seconds: Seconds that it took since its row before.
        error: Why it failed, or "".
    """

    trial: int
    epochs: int
    settings: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    std_err: float | None
    seconds: float
    error: str


@dataclass(frozen=True)
class Tuning:
    """The report of a search.

    Args:
        metric: The metric, such as "val_loss".
        mode: "min" or "max".
        best: The best outcome, or None if no trial has one.
        trace: A row a trial and rung, in the order of trials.
        settings: The settings by name, as `space.describe_space()` has them.
        trials: Number of trials of the search, those that have not begun included.
        failed: Number of trials that failed.
        rungs: Epochs at which trials are compared.
        resamples: Names of the resamples.
        epochs_spent: Epochs of all trials on all resamples.
        found: Trials that the folder held already.
        stopped: "completed", "time" or "interrupted".
        seed: The seed of the search.
        folder: Its folder, or "".
        unsaved: Why the folder lacks outcomes, or "".
        elapsed_s: Seconds of this call.
        together: Which trials trained as stacks, and why others did not; "" before the first.
        notes: Sentences for the user.
    """

    metric: str
    mode: str
    best: Best | None
    trace: tuple[Row, ...]
    settings: Mapping[str, Any]
    trials: int
    failed: int
    rungs: tuple[int, ...]
    resamples: tuple[str, ...]
    epochs_spent: int
    found: int
    stopped: str
    seed: int
    folder: str
    unsaved: str
    elapsed_s: float
    together: str
    notes: tuple[str, ...]


def mean_of(outcome: Outcome, metric: str) -> float | None:
    """Returns a metric's mean over the resamples; None if the trial failed or has none."""
    values = [] if outcome.error else outcome.metrics.get(metric, [])
    return float(np.mean(values)) if values else None


def read_results(
    outcomes: Mapping[int, Mapping[int, Outcome]], metric: str
) -> dict[int, dict[int, float | None]]:
    """Returns what successive halving reads: by epochs and trial, a metric, None for failures."""
    results: dict[int, dict[int, float | None]] = {}
    for number, rungs in outcomes.items():
        for epochs, outcome in rungs.items():
            results.setdefault(epochs, {})[number] = mean_of(outcome, metric)
    return results


def find_best(
    rule: Rule,
    metric: str,
    trials: Mapping[int, Trial],
    outcomes: Mapping[int, Mapping[int, Outcome]],
) -> Best | None:
    """Returns the best outcome; of equals, that of fewer epochs, then of the earlier trial."""
    results = read_results(outcomes, metric)
    sign = 1.0 if rule.mode == "min" else -1.0
    leading = [
        (sign * values[ranked[0]], epochs, ranked[0])  # type: ignore[operator] # `rank()` is of numbers
        for epochs, values in sorted(results.items())
        if (ranked := rank(rule, values))
    ]
    if not leading:
        return None
    value, epochs, trial = min(leading)
    std_err = _std_err(outcomes[trial][epochs], metric)
    return Best(trial, epochs, sign * value, std_err, trials[trial].settings)


def make_trace(
    metric: str, trials: Mapping[int, Trial], outcomes: Mapping[int, Mapping[int, Outcome]]
) -> tuple[Row, ...]:
    """Returns a row a trial and rung."""
    return tuple(
        Row(
            trial=number,
            epochs=epochs,
            settings=trials[number].settings,
            metrics={name: mean_of(outcome, name) for name in outcome.metrics},
            std_err=_std_err(outcome, metric),
            seconds=outcome.seconds,
            error=outcome.error,
        )
        for number, rungs in sorted(outcomes.items())
        for epochs, outcome in sorted(rungs.items())
    )


def count_epochs(outcomes: Mapping[int, Mapping[int, Outcome]], resamples: int) -> int:
    """Returns the epochs of all trials that did not fail, on all resamples."""
    done = [
        max((epochs for epochs, outcome in rungs.items() if not outcome.error), default=0)
        for rungs in outcomes.values()
    ]
    return sum(done) * resamples


def note_failures(outcomes: Mapping[int, Mapping[int, Outcome]]) -> tuple[str, ...]:
    """Returns sentences about trials that failed, one for each reason."""
    reasons: dict[str, list[int]] = {}
    for number, rungs in sorted(outcomes.items()):
        for outcome in rungs.values():
            if outcome.error:
                reasons.setdefault(outcome.error, []).append(number)
    return tuple(
        f"{count_of(len(numbers), 'trial')} failed, first trial {numbers[0]}: {error}."
        for error, numbers in reasons.items()
    )


def _std_err(outcome: Outcome, metric: str) -> float | None:
    values: Sequence[float] = [] if outcome.error else outcome.metrics.get(metric, [])
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
