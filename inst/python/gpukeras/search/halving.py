"""Successive halving: trials train a few epochs, and the best go on with eta times as many.

The rule is that of ASHA (Li et al. 2020, A system for massively parallel hyperparameter tuning,
MLSys, algorithm 2): a trial is promoted as soon as it is among the best 1/eta of its rung, without
waiting for the rest of the rung; where nothing can be promoted, a new trial begins. It differs in
two points: all trials of a rung that can be promoted form one batch, so that a trainer may stack
them; and when no new trial is left, the best trial of the highest rung goes on alone, so that the
search always ends with a trial of all epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Values of finished trials by epochs of the rung; None for a trial that failed there.
Results = Mapping[int, Mapping[int, float | None]]


@dataclass(frozen=True)
class Job:
    """What to train next.

    Args:
        trials: Numbers of trials that have trained equally long.
        epochs: Epochs that they are to have trained in all.
    """

    trials: tuple[int, ...]
    epochs: int


@dataclass(frozen=True)
class Rule:
    """The rule of a search.

    Args:
        rungs: Epochs at which trials are compared, rising; the last is the most that any trains.
        eta: One in so many trials is promoted.
        mode: "min" if smaller values are better, "max" if larger ones are.
    """

    rungs: tuple[int, ...]
    eta: int
    mode: str


def plan_rungs(epochs: int, min_epochs: int, eta: int) -> tuple[int, ...]:
    """Returns the epochs at which trials are compared: `min_epochs` times powers of eta.

    Args:
        epochs: The last of them.
        min_epochs: The first of them; `epochs` for no halving.
        eta: The factor between two.
    """
    rungs, at = [], min_epochs
    while at < epochs:
        rungs.append(at)
        at *= eta
    return (*rungs, epochs)


def plan_epochs(rule: Rule, trials: int) -> int:
    """Returns the epochs that a search of so many trials takes on one resample if none fails."""
    total = before = 0
    for rung in rule.rungs:
        total += trials * (rung - before)
        trials = max(1, trials // rule.eta)
        before = rung
    return total


def choose_job(rule: Rule, results: Results, waiting: Sequence[int], width: int = 1) -> Job | None:
    """Returns what to train next, or None if the search is complete.

    Args:
        rule: The rule.
        results: What is known; nothing is being trained.
        waiting: Numbers of trials that have not begun, in their order.
        width: Most trials of a job.
    """
    for below, above in reversed(list(zip(rule.rungs, rule.rungs[1:], strict=False))):
        ranked, begun = rank(rule, results.get(below, {})), results.get(above, {})
        best = ranked[: len(results.get(below, {})) // rule.eta]
        able = [trial for trial in best if trial not in begun]
        if able:
            return Job(tuple(able[:width]), above)
    if waiting:
        return Job(tuple(waiting[:width]), rule.rungs[0])
    return _finish(rule, results)


def _finish(rule: Rule, results: Results) -> Job | None:
    """Returns the job of the best trial of the highest rung that a trial has passed and lives."""
    failed = {t for values in results.values() for t, value in values.items() if value is None}
    for below, above in reversed(list(zip(rule.rungs, rule.rungs[1:], strict=False))):
        begun = results.get(above, {})
        if set(begun) - failed:
            return None
        left = [t for t in rank(rule, results.get(below, {})) if t not in begun]
        if left:
            return Job((left[0],), above)
    return None


def rank(rule: Rule, values: Mapping[int, float | None]) -> list[int]:
    """Returns the trials of a rung that did not fail, the best first; of equals, the earlier."""
    sign = 1.0 if rule.mode == "min" else -1.0
    known = [(sign * value, trial) for trial, value in values.items() if value is not None]
    return [trial for _, trial in sorted(known)]


def choose_dropped(rule: Rule, results: Results, trials: int) -> set[int]:
    """Returns trials that the rule will never promote, whatever the others come to.

    Args:
        rule: The rule.
        results: What is known.
        trials: Number of trials of the search, those that have not begun included.
    """
    last = {trial: rung for rung in rule.rungs for trial in results.get(rung, {})}
    dropped: set[int] = set()
    most = trials
    for rung in rule.rungs:
        promoted = 0 if rung == rule.rungs[-1] else max(1, most // rule.eta)
        ranked = rank(rule, results.get(rung, {}))
        here = {trial for trial, at in last.items() if at == rung}
        dropped |= here - set(ranked[:promoted])
        most = promoted
    return dropped
