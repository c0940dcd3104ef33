import numpy as np
import pytest

from gpukeras import DataError
from gpukeras.data.recipe.columns import ColumnRule
from gpukeras.serving.columns import find_zone, to_column

NUMBER = ColumnRule("a", "number")
LEVELS = ColumnRule("b", "category", levels=("x", "y"))


def test_numbers_are_float64_with_nan_for_null_and_one_for_true():
    column = to_column(NUMBER, [1, 2.5, None, True], "rows")
    assert column["kind"] == "numeric"
    np.testing.assert_array_equal(column["values"], [1, 2.5, np.nan, 1])


@pytest.mark.parametrize("wrong", ["3", [1], {}, 10**400])
def test_what_is_no_number_is_counted_and_not_shown(wrong):
    with pytest.raises(
        DataError, match="Column `a` of `rows` must hold numbers, but 1 of 2 are not"
    ) as found:
        to_column(NUMBER, [1, wrong], "rows")
    assert found.value.details["column"] == "a"


def test_infinite_numbers_are_refused():
    with pytest.raises(DataError, match="Column `a` of `rows` has values .*1 infinite"):
        to_column(NUMBER, [float("inf")], "rows")


def test_categories_are_codes_of_the_levels_of_training():
    column = to_column(LEVELS, ["y", None, "x"], "rows")
    assert column["values"].tolist() == [2, 0, 1]
    assert column["levels"] == ["x", "y"]


def test_new_levels_are_counted_and_not_shown():
    with pytest.raises(DataError, match="has 2 values that training did not see") as found:
        to_column(LEVELS, ["x", "secret", "secret"], "rows")
    assert "secret" not in str(found.value)
    with pytest.raises(DataError, match="must hold texts, but 1 of 1 are not"):
        to_column(LEVELS, [4], "rows")


@pytest.mark.parametrize(
    "rule",
    [
        ColumnRule("b", "category", bins=8),
        ColumnRule("b", "category", levels=("x",), new_levels=True),
        ColumnRule("b", "text"),
    ],
)
def test_open_categories_and_texts_bring_their_own_levels(rule):
    column = to_column(rule, ["u", None, "x", "u"], "rows")
    assert column["levels"] == ["u", "x"] or column["levels"] == ["x", "u"]
    assert [None if not c else column["levels"][c - 1] for c in column["values"]] == [
        "u",
        None,
        "x",
        "u",
    ]


def test_dates_are_days_since_1970():
    column = to_column(ColumnRule("d", "date"), ["1970-01-02", None, "1969-12-31"], "rows")
    np.testing.assert_array_equal(column["values"], [1, np.nan, -1])
    with pytest.raises(DataError, match='dates such as "2026-11-24", but 3 of 3 are not'):
        to_column(ColumnRule("d", "date"), ["2026-13-01", 5, "yesterday"], "rows")


LOGICAL = ColumnRule("f", "number", logical=True)


def test_logicals_are_true_and_false_and_nothing_else():
    column = to_column(LOGICAL, [True, False, None], "rows")
    assert column["kind"] == "logical"
    np.testing.assert_array_equal(column["values"], [1, 0, np.nan])
    with pytest.raises(DataError, match="must hold true or false, but 3 of 4 are not"):
        to_column(LOGICAL, [1, "TRUE", 0.0, True], "rows")


@pytest.mark.parametrize(
    "other", ["20261124", "2026-W48-2", "2026-11-24T00:00:00", " 2026-11-24", "٢٠٢٦-11-24"]
)
def test_dates_have_one_form_whatever_pythons_version(other):
    with pytest.raises(DataError, match="but 1 of 1 are not"):
        to_column(ColumnRule("d", "date"), [other], "rows")


@pytest.mark.parametrize(
    "other",
    [
        "20261124T120000Z",
        "2026-11-24 12:00:00Z",
        "2026-11-24T12Z",
        "2026-11-24T12:00Z",
        "2026-11-24T12:00:00,5Z",
        "2026-11-24T12:00:00z",
        "2026-11-24T12:00:00+02",
        "2026-11-24T24:00:00Z",
        "2026-11-24T12:00:00+24:00",
        "0001-01-01T00:00:00+10:00",
        "9999-12-31T23:59:59-10:00",
        5,
    ],
)
def test_times_have_one_form_whatever_pythons_version(other):
    with pytest.raises(DataError, match="but 1 of 1 are not"):
        to_column(ColumnRule("t", "time", zone="Europe/Berlin"), [other], "rows")


def test_times_may_have_decimals():
    given = ["2026-07-01T00:00:00.5Z", "2026-07-01T00:00:00.123456789Z"]
    column = to_column(ColumnRule("t", "time"), given, "rows")
    np.testing.assert_allclose(column["values"] - 1782864000, [0.5, 0.123456], atol=1e-6)


def test_times_need_an_offset_and_have_that_of_the_zone_of_training():
    rule = ColumnRule("t", "time", zone="Europe/Berlin")
    given = ["2026-07-01T00:00:00Z", "2026-01-01T01:00:00+01:00", None]
    column = to_column(rule, given, "rows")
    # date -d '2026-07-01T00:00:00Z' +%s, and the same of 2026-01-01
    np.testing.assert_array_equal(column["values"], [1782864000, 1767225600, np.nan])
    assert column["offsets"].tolist() == [7200, 3600, 0]
    with pytest.raises(DataError, match="times with an offset from UTC"):
        to_column(rule, ["2026-07-01T00:00:00"], "rows")


def test_a_zone_that_is_not_known_is_said():
    assert find_zone("").utcoffset(None) is not None
    with pytest.raises(DataError, match="does not know the time zone 'Mars/Olympus'"):
        find_zone("Mars/Olympus")


def test_durations_are_in_the_units_of_training():
    column = to_column(ColumnRule("w", "duration", units="hours"), [1.5], "rows")
    assert (column["kind"], column["units"], column["values"].tolist()) == (
        "duration",
        "hours",
        [1.5],
    )
