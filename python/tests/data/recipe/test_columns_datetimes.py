"""Columns of dates, times and durations: what is learned from them and what they become."""

import numpy as np
import pytest
from frames import NAN, column, date, learn, transform

from gpukeras import DataError
from gpukeras.data.recipe import columns


def instant(*seconds, zone="UTC"):
    offsets = np.where(np.isnan(seconds), NAN, 0.0)
    return column(list(map(float, seconds)), "time", name="at", offsets=offsets, zone=zone)


def test_dates_and_times_become_a_number_and_circles():
    day, at = learn(date(19000, 19001), impute=False), learn(instant(0, 60), impute=False)
    circles = ("weekday_sin", "weekday_cos", "yearday_sin", "yearday_cos")
    assert day.features == ("day", *(f"day:{part}" for part in circles))
    assert at.features[-2:] == ("at:daytime_sin", "at:daytime_cos")
    assert (day.kind, at.kind, at.zone) == ("date", "time", "UTC")
    assert transform(day, date(19000, 19001)).shape == (2, 5)


def test_days_are_standardised_even_without_scale():
    rule = learn(date(10, 20, 30), scale=False, impute=False)
    np.testing.assert_allclose(
        transform(rule, date(10, 20, 30))[:, 0], np.array([-1, 0, 1]) * 1.5**0.5, rtol=1e-6
    )


def test_a_missing_date_becomes_the_median_off_the_circles():
    rule = learn(date(10, 20, NAN, 60))
    baked = transform(rule, date(NAN, 20))
    assert rule.fill == 20.0
    assert baked[0, 0] == baked[1, 0]
    np.testing.assert_array_equal(baked[0, 1:], [0, 0, 0, 0, 1])
    assert baked[1, -1] == 0
    rule = learn(instant(0, 86400, NAN))
    assert rule.fill == 0.5
    np.testing.assert_array_equal(transform(rule, instant(NAN))[0, 1:], [0, 0, 0, 0, 0, 0, 1])


def test_the_na_of_r_which_is_a_signalling_nan_warns_nobody():
    na = np.array([0x7FF00000000007A2], dtype=np.uint64).view(np.float64)
    numbers = np.concatenate([na, [1.0, 2.0]])
    for given_column in (
        column(numbers),
        column(numbers, "logical"),
        column(numbers, "date"),
        column(numbers, "time", offsets=numbers, zone="UTC"),
        column(numbers, "duration", units="mins"),
    ):
        baked = transform(learn(given_column), given_column)
        np.testing.assert_array_equal(baked[:, -1], [1, 0, 0])
    hours = learn(column([1.0], "duration", units="hours"))
    assert transform(hours, column(numbers, "duration", units="mins"))[0, 0] == 0


def test_a_missing_date_is_refused_by_name():
    with pytest.raises(DataError, match="`day` of `x` has 1 missing value"):
        learn(date(10, NAN), impute=False)


def test_durations_are_numbers_in_the_units_of_training():
    hours = column([1.0, 3.0], "duration", units="hours")
    rule = learn(hours, impute=False, scale=False)
    assert (rule.kind, rule.units, rule.features) == ("duration", "hours", ("size",))
    minutes = column([60.0, 180.0], "duration", units="mins")
    np.testing.assert_array_equal(transform(rule, minutes), transform(rule, hours))
    scaled = learn(hours, impute=False)
    np.testing.assert_array_equal(transform(scaled, minutes)[:, 0], [-1, 1])
    missing = column([NAN, 60.0], "duration", units="mins")
    np.testing.assert_array_equal(transform(learn(hours, scale=False), missing), [[2.0], [1.0]])


@pytest.mark.parametrize(
    ("trained", "new", "message"),
    [
        (date(1, 2), column([1.0, 2.0], name="day"), "number where training had a date"),
        (date(1, 2), column([1], "character", ["x"], "day"), "category where training had a date"),
        (date(1, 2), {**instant(1.0), "name": "day"}, "time where training had a date"),
        (column([1.0, 2.0], name="day"), date(1, 2), "date where training had a number"),
    ],
)
def test_a_column_of_another_type_is_refused_by_name(trained, new, message):
    with pytest.raises(DataError, match=f"Column `day` of `newdata` is a {message}") as caught:
        transform(learn(trained, impute=False), new)
    assert caught.value.details["column"] == "day"
    assert ("as.Date()" in caught.value.hint) == (trained["kind"] == "date")


def test_take_rows_takes_the_offsets_along():
    taken = columns.take_rows(instant(0, 1, 2), np.array([True, False, True]))
    assert (len(taken["values"]), len(taken["offsets"])) == (2, 2)
    given_column = column([1.0])
    assert columns.take_rows(given_column, None) is given_column
