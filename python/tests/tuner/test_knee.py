import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukeras.tuner.knee import (
    ENOUGH,
    FULL,
    Point,
    choose_knee,
    choose_sizes,
    explain_choice,
    is_flat,
    smooth_rates,
)

# Thousands of rows a second from batch size 32 on, doubled each time, and where the knee is.
CURVES = {
    "small perceptron on 2 cores": ([101, 190, 330, 560, 790, 1010, 1180, 1230, 1260], 2048),
    "the same, while others work": ([39, 78, 74, 238, 331, 1230, 1203], 1024),
    "flat from the start": ([50, 51, 50, 49], 32),
    "a lucky measurement": ([100, 102, 101, 160, 103, 101], 32),
    "a disturbed one": ([100, 195, 380, 120, 1400, 1500, 1520], 512),
    "still rising at its end": ([1, 2, 4, 8, 16, 32, 64], 2048),
    "falling once caches are full": ([100, 180, 300, 290, 220, 150], 128),
    "one size": ([7], 32),
    "two sizes": ([7, 9], 64),
}


def points_of(rates, full=False):
    points = [Point(32 * 2**place, 1000.0 * rate) for place, rate in enumerate(rates)]
    return points + [Point(32 * 2 ** len(rates), None, None, FULL)] * full


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("full", [False, True])
def test_the_knee_of_recorded_curves(name, full):
    rates, knee = CURVES[name]
    assert choose_knee(points_of(rates, full)) == knee


def test_nothing_measured_has_no_knee():
    assert choose_knee([]) is None
    assert choose_knee(points_of([], full=True)) is None


@given(st.lists(st.floats(1.0, 1e9), min_size=1, max_size=15))
def test_the_knee_reaches_enough_and_knows_no_unit(rates):
    points = points_of(rates)
    knee = choose_knee(points)
    smoothed = smooth_rates([point.rows_per_s for point in points])
    place = [point.batch_size for point in points].index(knee)
    assert smoothed[place] >= ENOUGH * max(smoothed)
    assert all(rate < ENOUGH * max(smoothed) for rate in smoothed[:place])
    assert min(rates) * 1000 <= min(smoothed) <= max(smoothed) <= max(rates) * 1000
    assert choose_knee([Point(p.batch_size, p.rows_per_s * 2.0) for p in points]) == knee


@pytest.mark.parametrize(
    ("rates", "smoothed"),
    [
        ([], []),
        ([3], [3]),
        ([3, 1], [3, 1]),
        ([1, 9, 2], [1, 2, 2]),
        ([1, 2, 4, 8], [1, 2, 4, 8]),
        ([100, 99, 100, 130], [100, 100, 100, 100]),
        ([1, 2, 4, 30, 8], [1, 2, 4, 8, 8]),
    ],
)
def test_smoothing_takes_single_points_out_and_keeps_slopes(rates, smoothed):
    assert smooth_rates(rates) == smoothed


@pytest.mark.parametrize(
    ("rates", "flat"),
    [
        ([1, 2, 4, 8, 16], False),
        ([10, 20, 20, 20], True),
        ([10, 10, 10], False),  # too few to tell
        ([10, 20, 30, 31, 31], True),
        ([10, 20, 30, 29, 33], False),
        ([100, 180, 300, 290, 220], True),
        ([1, 2, 4, 30, 8, 16], False),
    ],
)
def test_a_curve_is_flat_after_two_doublings_without_gain(rates, flat):
    assert is_flat(points_of(rates)) is flat


@pytest.mark.parametrize(
    ("first", "last", "sizes"),
    [
        (32, 256, [32, 64, 128, 256]),
        (32, 300, [32, 64, 128, 256, 300]),
        (10, 10, [10]),
        (7, 13, [7, 13]),
    ],
)
def test_sizes_double_and_end_with_the_last(first, last, sizes):
    assert choose_sizes(first, last) == sizes


@pytest.mark.parametrize(
    ("stopped", "says"),
    [
        ("flat", "larger ones bring no more"),
        ("memory", "128 does not fit in memory"),
        ("rows", "too few updates an epoch"),
        ("to", "`to` was reached"),
        ("time", "the time for the search was up"),
        ("interrupted", "was interrupted"),
    ],
)
def test_the_reason_has_the_figures_and_the_end(stopped, says):
    points = points_of([95, 100], full=stopped == "memory")
    reason = explain_choice(points, stopped)
    assert "90% of the best throughput (95% of 100,000 rows/s)" in reason
    assert says in reason


def test_a_search_that_measured_nothing_says_so():
    assert explain_choice([], "interrupted") == ("nothing was measured: the search was interrupted")
