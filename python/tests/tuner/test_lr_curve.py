import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukeras.tuner.lr_curve import choose_end, choose_rate, plan_rates, smooth_losses


def curve(steps=100, noise=0.0, scale=1.0, seed=1):
    """Losses that fall from 1 around the rate 1e-3, and rise steeply from 0.5 on."""
    place = np.log10(plan_rates(1e-7, 10.0, steps).astype(float))
    losses = 1 - 0.6 / (1 + np.exp(-3 * (place + 3))) + np.maximum(10 ** (2 * (place + 0.3)) - 1, 0)
    return scale * (losses + noise * np.random.default_rng(seed).normal(size=steps))


# Rates -------------------------------------------------------------------------------------------


@given(st.floats(1e-8, 1e-2), st.floats(1.5, 1e9), st.integers(2, 300))
def test_rates_rise_by_a_factor(low, ratio, steps):
    rates = plan_rates(low, low * ratio, steps)
    assert rates.dtype == np.float32
    assert len(rates) == steps
    np.testing.assert_allclose(rates[[0, -1]], [low, low * ratio], rtol=1e-6)
    factors = rates[1:] / rates[:-1]
    np.testing.assert_allclose(factors, ratio ** (1 / (steps - 1)), rtol=1e-5)


# Smoothing ---------------------------------------------------------------------------------------


def test_smoothing_is_the_definition_without_its_start():
    losses = [3.0, 1.0, 2.0]
    weights = 0.5 ** np.arange(3)[::-1]
    expected = [np.average(losses[: i + 1], weights=weights[2 - i :]) for i in range(3)]
    np.testing.assert_allclose(smooth_losses(losses, 0.5), expected)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50), st.floats(0.0, 0.99))
def test_smoothed_losses_lie_among_the_losses(losses, smoothing):
    smoothed = smooth_losses(losses, smoothing)
    assert smoothed[0] == pytest.approx(losses[0])
    assert min(losses) - 1e-6 <= smoothed.min() <= smoothed.max() <= max(losses) + 1e-6


# The end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], (0, "completed")),
        ([1.0, 0.9, 0.8], (3, "completed")),
        ([1.0, 0.9, math.nan, 0.8], (2, "non_finite")),
        ([math.inf], (0, "non_finite")),
        ([1.0, 1.0, 1.0, 100.0, 1.0], (4, "diverged")),
        ([1.0, 3.9], (2, "completed")),
        ([-1.0, -2.0, -1.5], (3, "completed")),
        ([-1.0, -1.0, 100.0], (3, "diverged")),
    ],
)
def test_a_curve_ends_where_it_diverges(losses, expected):
    assert choose_end(losses) == expected


# The rate ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [50, 100, 400])
@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_the_rate_lies_in_the_descent_below_the_edge(steps, noise, scale):
    losses = curve(steps, noise, scale)
    count, stopped = choose_end(losses)
    choice = choose_rate(plan_rates(1e-7, 10.0, steps)[:count], losses[:count])
    assert stopped in ("diverged", "completed")
    assert 1e-4 < choice.recommended < 0.3
    assert choice.recommended == min(choice.steepest, choice.minimum_tenth)
    assert choice.reason


def test_the_reason_names_the_suggestion_that_was_taken():
    rates = plan_rates(1e-7, 10.0, 100)
    tenth = choose_rate(rates[:60], curve()[:60])  # lowest at its end, hardly past the steepest
    assert tenth.recommended == tenth.minimum_tenth < tenth.steepest
    assert tenth.reason.startswith("a tenth of the rate of the lowest loss")
    losses = np.interp(np.arange(100), [0, 30, 40, 99], [1.0, 1.0, 0.2, 0.15])
    steepest = choose_rate(rates, losses)
    assert steepest.recommended == steepest.steepest < steepest.minimum_tenth
    assert steepest.reason == "where the loss falls fastest"


@pytest.mark.parametrize(
    "losses",
    [
        np.ones(100),
        np.linspace(1, 2, 100),
        1 + 0.1 * np.random.default_rng(3).normal(size=100),
        np.linspace(1, 0.995, 100),
    ],
    ids=["level", "rising", "noise", "hardly falling"],
)
def test_no_descent_no_rate(losses):
    choice = choose_rate(plan_rates(1e-7, 10.0, 100), losses)
    assert (choice.recommended, choice.steepest, choice.minimum_tenth) == (None, None, None)
    assert choice.reason.startswith("the loss never fell by more than its noise")


@pytest.mark.parametrize(("count", "words"), [(0, "0 steps"), (1, "1 step"), (5, "5 steps")])
def test_a_curve_that_ends_at_once_gives_no_rate(count, words):
    choice = choose_rate(plan_rates(1.0, 10.0, 100)[:count], np.ones(count))
    assert choice.recommended is None
    assert choice.reason == f"the loss diverged within {words}: begin with smaller rates"
