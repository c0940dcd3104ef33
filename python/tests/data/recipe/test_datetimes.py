import datetime
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukeras import DataError
from gpukeras.data.recipe import datetimes

UTC = datetime.timezone.utc
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)


def date(*days):
    return {"name": "day", "kind": "date", "values": np.array(days, dtype=float)}


def instant(seconds, offset=0.0):
    offsets = np.full(len(seconds), offset)
    return {"name": "at", "kind": "time", "values": np.array(seconds, float), "offsets": offsets}


def encode(column):
    out = np.empty((len(column["values"]), len(datetimes.CYCLES[column["kind"]])), np.float32)
    datetimes.encode_cycles(column, out)
    return out


def circle(share):
    return [math.sin(2 * math.pi * share), math.cos(2 * math.pi * share)]


def expected(moment):
    """The same by Python's own calendar, which is another one than NumPy's."""
    days = 366 if moment.year % 4 == 0 and (moment.year % 100 or moment.year % 400 == 0) else 365
    seconds = (moment - moment.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()
    yearday = moment.timetuple().tm_yday - 1
    return [*circle(moment.weekday() / 7), *circle(yearday / days), *circle(seconds / 86400)]


@given(st.dates(datetime.date(1600, 1, 1), datetime.date(2400, 12, 31)))
def test_a_date_is_on_its_weekday_and_day_of_the_year(day):
    moment = datetime.datetime(day.year, day.month, day.day, tzinfo=UTC)
    encoded = encode(date((moment - EPOCH).days))
    np.testing.assert_allclose(encoded[0], expected(moment)[:4], atol=1e-6)


@given(
    st.datetimes(datetime.datetime(1800, 1, 1), datetime.datetime(2200, 1, 1)),
    st.integers(-12 * 60, 14 * 60),
)
def test_a_time_is_on_its_places_in_its_own_zone(wall, minutes):
    zone = datetime.timezone(datetime.timedelta(minutes=minutes))
    wall = wall.replace(tzinfo=zone, microsecond=0)
    seconds = (wall - EPOCH).total_seconds()
    encoded = encode(instant([seconds], 60.0 * minutes))
    np.testing.assert_allclose(encoded[0], expected(wall), atol=1e-5)


def test_monday_new_year_and_midnight_are_where_circles_begin():
    monday = 4.0  # 1970-01-05
    np.testing.assert_allclose(encode(date(monday))[0, :2], [0, 1], atol=1e-7)
    np.testing.assert_allclose(encode(date(0.0))[0, 2:], [0, 1], atol=1e-7)
    np.testing.assert_allclose(encode(instant([86400.0 * 5]))[0, 4:], [0, 1], atol=1e-7)


def test_a_part_of_a_day_does_not_make_another_day_of_a_date():
    np.testing.assert_array_equal(encode(date(-0.5)), encode(date(-1.0)))


def test_a_missing_value_has_no_place_on_a_circle():
    np.testing.assert_array_equal(encode(date(np.nan, 3.0))[0], np.zeros(4))
    column = instant([np.nan, 0.0])
    column["offsets"][0] = np.nan
    np.testing.assert_array_equal(encode(column)[0], np.zeros(6))


def test_many_rows_are_encoded_in_blocks(monkeypatch):
    monkeypatch.setattr("gpukeras.data.arrays.BLOCK_BYTES", 128)
    whole = encode(date(*range(100)))
    np.testing.assert_array_equal(whole[37], encode(date(37))[0])


@pytest.mark.parametrize(
    ("given_units", "wanted", "value"),
    [("hours", "hours", 2.0), ("hours", "mins", 120.0), ("weeks", "days", 14.0)],
)
def test_durations_are_converted(given_units, wanted, value):
    column = {"kind": "duration", "values": np.array([2.0]), "units": given_units}
    assert datetimes.read_number(column, wanted).tolist() == [value]


def test_times_are_days_in_utc_whatever_their_zone():
    assert datetimes.read_number(instant([86400 * 1.5], 3600.0)).tolist() == [1.5]


def test_dates_that_no_calendar_has_are_refused():
    datetimes.check_days(np.array([1e8, np.nan]), "day", "x")
    with pytest.raises(DataError, match="`day` of `x` has 2 dates more than 100,000,000 days"):
        datetimes.check_days(np.array([1e9, -1e9, 0.0]), "day", "x")
