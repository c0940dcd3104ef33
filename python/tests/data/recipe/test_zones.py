from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import DataError
from gpukeras.data.recipe.datetimes import utc_offsets

ZONES = ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"]


@given(
    seconds=st.lists(st.integers(-5_000_000_000, 5_000_000_000), min_size=1, max_size=30),
    zone=st.sampled_from(ZONES),
)
@settings(max_examples=60, deadline=None)
def test_offsets_are_those_of_each_instant(seconds, zone):
    expected = [
        datetime.fromtimestamp(second, timezone.utc).astimezone(ZoneInfo(zone)).utcoffset()
        for second in seconds
    ]
    found = utc_offsets(np.array(seconds, dtype=float), zone, "v")
    assert found.tolist() == [offset.total_seconds() for offset in expected]


@pytest.mark.parametrize(
    ("zone", "change"),  # the last second before clocks change, in UTC
    [
        ("Europe/Berlin", datetime(2024, 3, 31, 0, 59, 59, tzinfo=timezone.utc)),
        ("Europe/Berlin", datetime(2024, 10, 27, 0, 59, 59, tzinfo=timezone.utc)),
        ("America/St_Johns", datetime(2010, 3, 14, 3, 30, 59, tzinfo=timezone.utc)),
    ],
)
def test_offsets_change_in_the_second_in_which_clocks_do(zone, change):
    found = utc_offsets(change.timestamp() + np.array([0.0, 0.999, 1.0]), zone, "v")
    assert found[0] == found[1]
    assert abs(found[2] - found[1]) == 3600


@pytest.mark.parametrize(
    ("zone", "offset"), [("+02:00", 7200), ("-0330", -12600), ("UTC", 0), ("Etc/GMT-3", 10800)]
)
def test_fixed_offsets_are_zones(zone, offset):
    found = utc_offsets(np.array([0.0, np.nan, 1e17, -1e17]), zone, "v")
    np.testing.assert_array_equal(found, [offset, np.nan, offset, offset])


@pytest.mark.parametrize("zone", ["Mars/Olympus", "../etc/passwd", "+2", "+99:99", "-24:00"])
def test_an_unknown_zone_names_the_column(zone):
    with pytest.raises(DataError, match="Column `when` has the unknown time zone"):
        utc_offsets(np.zeros(1), zone, "when")
