import numpy as np
import pytest
from series import factor, make_columns, numbers, take

from gpukeras import DataError
from gpukeras.data.recipe.windows import order_series


def order(columns, gaps="refuse", step=None):
    by_name = {column["name"]: column for column in columns}
    groups = [by_name["site"]] if "site" in by_name else []
    return order_series(by_name["when"], groups, gaps, step, "x")


def times(values, kind="date", **fields):
    return [numbers("when", values, kind, **fields)]


def test_rows_in_order_are_not_moved():
    series = order(make_columns(10))
    assert series.take is None
    assert (series.first.tolist(), series.length.tolist()) == ([0, 10], [10, 10])
    assert (series.group.tolist(), series.step, series.rows) == ([0, 1], 1.0, 20)
    np.testing.assert_array_equal(series.times(np.array([0, 9, 10])), [19000, 19009, 19000])


def test_rows_in_any_order_are_sorted_by_group_and_time():
    mixed = np.random.default_rng(0).permutation(20)
    series = order(take(make_columns(10), mixed))
    np.testing.assert_array_equal(mixed[series.take], np.arange(20))
    assert series.length.tolist() == [10, 10]


def test_a_gap_is_refused_dropped_or_filled():
    gapped = take(make_columns(10), np.delete(np.arange(20), [13, 14]))
    with pytest.raises(DataError, match="Group `B` has a gap in time") as caught:
        order(gapped)
    assert "between 2022-01-10 and 2022-01-13: the step is 1 day" in str(caught.value)
    assert caught.value.details["column"] == "when"
    dropped = order(gapped, "drop")
    assert (dropped.first.tolist(), dropped.length.tolist()) == ([0, 10, 13], [10, 3, 5])
    assert dropped.group.tolist() == [0, 1, 1]
    assert dropped.start.tolist() == [19000, 19000, 19005]
    filled = order(gapped, "fill")
    assert filled.length.tolist() == [10, 10]
    np.testing.assert_array_equal(filled.take[10:], [10, 11, 12, 12, 12, 13, 14, 15, 16, 17])


def test_the_step_is_the_most_common_difference_or_as_given():
    assert order(times([0, 7, 14, 21, 35]), "drop").step == 7
    assert order(times([0, 7, 14, 21, 35]), "fill").rows == 6
    assert order(times([0, 2, 4, 6]), "fill", 1.0).rows == 7
    with pytest.raises(DataError, match="`x` has a gap .* between 1970-01-01 and 1970-01-03"):
        order(times([0, 2, 4, 6]), step=1.0)
    with pytest.raises(DataError, match="rows too close in time .* the step is 2 days"):
        order(times([0, 2, 3, 5, 7]))
    with pytest.raises(DataError, match=r"between 10 and 12.5: the step is 5\.") as caught:
        order(times([0, 5, 10, 12.5], "numeric"), "fill")
    assert "whole steps" in caught.value.hint


def test_small_deviations_of_a_time_are_no_gap():
    seconds = 1.7e9 + 0.1 * np.arange(500)
    series = order(times(seconds, "time"))
    assert series.length.tolist() == [500]
    np.testing.assert_allclose(series.times(np.arange(500)), seconds, atol=1e-3)


def test_times_in_messages_are_local():
    hours = 3600.0 * np.array([0, 1, 2, 4])
    with pytest.raises(DataError, match="1970-01-01 04:00:00 and 1970-01-01 06:00:00") as caught:
        order(times(hours, "time", offsets=np.full(4, 7200.0), zone="Africa/Cairo"))
    assert "the step is 3600 seconds" in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (times([0, 1, 1]), "`x` has more than one row at 1970-01-02"),
        (times([0, np.nan, 1]), "Column `when` of `x` has 1 missing value"),
        (times([0, np.inf, 1]), "cannot be trained on: 1 infinite"),
        (times([]), "`x` has no rows"),
        ([*times([0, 1]), {**factor("site", "ab"), "values": np.array([0, 1])}], "Column `site`"),
        ([*times([0, 1]), numbers("site", [np.nan, 1])], "Column `site` of `x` has 1 missing"),
    ],
)
def test_rows_without_an_order_are_refused(columns, said):
    with pytest.raises(DataError, match=said):
        order(columns)


def test_two_rows_at_one_time_name_the_group():
    twice = take(make_columns(10), np.append(np.arange(20), 15))
    with pytest.raises(DataError, match="Group `B` has more than one row at 2022-01-13"):
        order(twice)


def test_a_wrong_time_does_not_fill_the_memory():
    with pytest.raises(DataError, match='"fill" would make 100,001 rows of 3') as caught:
        order(times([0, 1, 100_000]), "fill")
    assert caught.value.details["arg"] == "gaps"


def test_several_columns_tell_series_apart():
    columns = [factor("a", "xxyy"), numbers("b", [1, 2, 1, 1])]
    time = numbers("when", [0, 0, 0, 1], "date")
    series = order_series(time, columns, "refuse", None, "x")
    assert series.length.tolist() == [1, 1, 2]
    assert series.name(2) == "group `y, 1`"
