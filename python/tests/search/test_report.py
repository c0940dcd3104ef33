import numpy as np
import pytest

from gpukeras.search.halving import Rule
from gpukeras.search.report import (
    count_epochs,
    find_best,
    make_trace,
    note_failures,
    read_results,
)
from gpukeras.search.trials import Outcome, Trial

RULE = Rule((1, 3), 3, "min")
TRIALS = {number: Trial(number, {"rate": number / 10}, seed=number) for number in (1, 2, 3)}


def outcome(trial, epochs, *values, error=""):
    metrics = {"val_loss": list(values), "val_accuracy": [0.5] * len(values)}
    return Outcome(trial, epochs, {} if error else metrics, seconds=1.5, error=error)


OUTCOMES = {
    1: {1: outcome(1, 1, 0.5, 0.7), 3: outcome(1, 3, 0.3, 0.5)},
    2: {1: outcome(2, 1, 0.9, 1.1)},
    3: {1: outcome(3, 1, error="the loss or a weight is not finite in epoch 1")},
}


def test_results_are_means_over_the_resamples():
    assert read_results(OUTCOMES, "val_loss") == {
        1: {1: pytest.approx(0.6), 2: pytest.approx(1.0), 3: None},
        3: {1: pytest.approx(0.4)},
    }


def test_the_best_outcome_may_be_one_of_few_epochs():
    best = find_best(RULE, "val_loss", TRIALS, OUTCOMES)
    assert (best.trial, best.epochs, best.settings) == (1, 3, {"rate": 0.1})
    assert best.value == pytest.approx(0.4)
    assert best.std_err == pytest.approx(np.std([0.3, 0.5], ddof=1) / np.sqrt(2))
    worse = {**OUTCOMES, 1: {**OUTCOMES[1], 3: outcome(1, 3, 0.8, 0.8)}}
    assert find_best(RULE, "val_loss", TRIALS, worse).epochs == 1
    most = find_best(Rule((1, 3), 3, "max"), "val_loss", TRIALS, OUTCOMES)
    assert (most.trial, most.value) == (2, pytest.approx(1.0))


def test_without_an_outcome_there_is_no_best():
    assert find_best(RULE, "val_loss", TRIALS, {3: OUTCOMES[3]}) is None
    assert find_best(RULE, "val_loss", TRIALS, {}) is None


def test_the_trace_has_a_row_a_trial_and_rung():
    rows = make_trace("val_loss", TRIALS, OUTCOMES)
    assert [(row.trial, row.epochs) for row in rows] == [(1, 1), (1, 3), (2, 1), (3, 1)]
    assert rows[0].metrics == {"val_loss": pytest.approx(0.6), "val_accuracy": 0.5}
    assert rows[3].error.startswith("the loss")
    assert rows[3].std_err is None
    single = make_trace("val_loss", TRIALS, {1: {1: outcome(1, 1, 0.5)}})
    assert single[0].std_err is None


def test_epochs_and_failures_are_counted():
    assert count_epochs(OUTCOMES, resamples=2) == 8
    assert note_failures(OUTCOMES) == (
        "1 trial failed, first trial 3: the loss or a weight is not finite in epoch 1.",
    )
