import math

import numpy as np
import pytest

from gpukeras.search.halving import Rule, choose_dropped, choose_job, plan_epochs, plan_rungs, rank

RULE = Rule((1, 3, 9), 3, "min")


@pytest.mark.parametrize(
    ("epochs", "min_epochs", "eta", "rungs"),
    [
        (27, 1, 3, (1, 3, 9, 27)),
        (81, 4, 4, (4, 16, 64, 81)),
        (10, 1, 2, (1, 2, 4, 8, 10)),
        (5, 5, 3, (5,)),
        (1, 1, 3, (1,)),
    ],
)
def test_rungs_grow_by_eta_up_to_all_epochs(epochs, min_epochs, eta, rungs):
    assert plan_rungs(epochs, min_epochs, eta) == rungs


@pytest.mark.parametrize("trials", [1, 2, 7, 9, 10, 26, 27])
@pytest.mark.parametrize("rule", [RULE, Rule((2, 4, 8, 10), 2, "min"), Rule((5,), 3, "min")])
def test_the_epochs_that_are_planned_are_those_that_are_trained(rule, trials):
    results, _ = run(rule, {n: lambda epochs, n=n: float(n) for n in range(trials)})
    reached = {trial: rung for rung in rule.rungs for trial in results.get(rung, {})}
    assert plan_epochs(rule, trials) == sum(reached.values())


def run(rule, values, width=1):
    """Runs a search whose trials have known values by trial and epochs; returns its jobs."""
    results, jobs = {}, []
    while True:
        begun = results.get(rule.rungs[0], {})
        job = choose_job(rule, results, [t for t in values if t not in begun], width)
        if job is None:
            return results, jobs
        jobs.append((job.trials, job.epochs))
        for trial in job.trials:
            results.setdefault(job.epochs, {})[trial] = values[trial](job.epochs)


def asha(losses, rungs, eta):
    """Algorithm 2 of Li et al. (2020) with one worker, until all trials have begun."""
    finished = [{} for _ in rungs]
    promoted = [set() for _ in rungs]
    drawn, jobs = iter(losses), []
    while True:
        for k in range(len(rungs) - 2, -1, -1):
            count = len(finished[k]) // eta
            candidates = sorted(finished[k], key=finished[k].get)[:count]
            promotable = [t for t in candidates if t not in promoted[k]]
            if promotable:
                trial, rung = promotable[0], k + 1
                promoted[k].add(trial)
                break
        else:
            trial, rung = next(drawn, None), 0
            if trial is None:
                return jobs
        finished[rung][trial] = losses[trial](rungs[rung])
        jobs.append(((trial,), rungs[rung]))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("eta", [2, 3, 4])
def test_jobs_are_those_of_asha(seed, eta):
    rng = np.random.default_rng(seed)
    finals, slopes = rng.normal(size=40), rng.normal(size=40)
    values = {
        trial + 1: lambda epochs, t=trial: float(finals[t] + slopes[t] / epochs)
        for trial in range(40)
    }
    rule = Rule(plan_rungs(eta**3, 1, eta), eta, "min")
    _, jobs = run(rule, values)
    expected = asha(values, rule.rungs, eta)
    assert jobs[: len(expected)] == expected


def test_a_batch_of_all_trials_is_synchronous_halving():
    values = {trial: lambda epochs, t=trial: float(t) for trial in range(1, 28)}
    results, jobs = run(RULE, values, width=27)
    assert jobs == [(tuple(range(1, 28)), 1), (tuple(range(1, 10)), 3), ((1, 2, 3), 9)]
    assert {epochs: len(of) for epochs, of in results.items()} == {1: 27, 3: 9, 9: 3}


def test_larger_values_win_where_the_metric_is_maximised():
    values = {trial: lambda epochs, t=trial: float(t) for trial in range(1, 28)}
    _, jobs = run(Rule((1, 3, 9), 3, "max"), values, width=27)
    assert jobs[1] == ((27, 26, 25, 24, 23, 22, 21, 20, 19), 3)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 10, 26])
@pytest.mark.parametrize("width", [1, 4])
def test_a_search_ends_with_a_trial_of_all_epochs(count, width):
    values = {trial: lambda epochs, t=trial: math.sin(t) for trial in range(1, count + 1)}
    results, jobs = run(RULE, values, width)
    assert len(results[9]) >= 1
    assert set(results[1]) == set(values)
    assert len({(trial, epochs) for trials, epochs in jobs for trial in trials}) == sum(
        len(trials) for trials, _ in jobs
    )


def test_where_the_trial_of_all_epochs_fails_the_next_best_goes_on():
    values = {
        1: lambda epochs: None if epochs == 9 else 1.0,
        2: lambda epochs: 2.0,
        3: lambda epochs: 3.0,
    }
    results, jobs = run(RULE, values)
    assert results[9] == {1: None, 2: 2.0}
    assert jobs[-2:] == [((2,), 3), ((2,), 9)]


def test_a_search_of_failures_ends():
    results, _ = run(RULE, {trial: lambda epochs: None for trial in range(1, 10)})
    assert results == {1: dict.fromkeys(range(1, 10))}


def test_without_halving_each_trial_is_trained_once():
    _, jobs = run(Rule((5,), 3, "min"), {t: lambda epochs: 1.0 for t in range(1, 6)}, width=2)
    assert jobs == [((1, 2), 5), ((3, 4), 5), ((5,), 5)]


def test_equal_trials_rank_in_their_order_and_failures_do_not():
    assert rank(RULE, {3: 1.0, 1: 1.0, 2: None, 4: 0.5}) == [4, 1, 3]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("width", [1, 3])
def test_a_trial_that_was_dropped_is_never_promoted(seed, width):
    values = np.random.default_rng(seed).normal(size=(31, 10))
    results, dropped = {}, set()
    while True:
        waiting = [t for t in range(1, 31) if t not in results.get(1, {})]
        job = choose_job(RULE, results, waiting, width)
        if job is None:
            break
        assert not set(job.trials) & dropped
        for trial in job.trials:
            results.setdefault(job.epochs, {})[trial] = float(values[trial, job.epochs])
        dropped |= choose_dropped(RULE, results, 30)
    assert len(dropped) >= 26  # all but those that the bound of each rung leaves


def test_the_best_of_fewer_trials_than_eta_goes_on_alone():
    assert choose_dropped(RULE, {1: {0: 0.1, 1: 0.2}}, 2) == {1}


def test_failures_and_finished_trials_are_dropped():
    assert choose_dropped(RULE, {1: {1: None}, 3: {}, 9: {2: 1.0}}, 3) == {1, 2}
