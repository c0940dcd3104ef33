import numpy as np
import pytest

from gpukeras import DataError
from gpukeras.data.recipe.columns import (
    CategoryRule,
    DateRule,
    DurationRule,
    NumberRule,
    TimeRule,
    VectorizedRule,
)
from gpukeras.data.recipe.text_vectorization import TextRule
from gpukeras.serving.columns import to_column

NUMBER = NumberRule("a")
DATE = DateRule("d")
TIME = TimeRule("t", zone="Europe/Berlin")
LEVELS = CategoryRule("b", levels=("x", "y"))


def test_numbers_are_float64_with_nan_for_null():
    column = to_column(NUMBER, [1, 2.5, None], "rows")
    assert column["kind"] == "numeric"
    np.testing.assert_array_equal(column["values"], [1, 2.5, np.nan])


def test_categories_are_codes_of_the_levels_of_training():
    column = to_column(LEVELS, ["y", None, "x"], "rows")
    assert column["values"].tolist() == [2, 0, 1]
    assert column["levels"] == ["x", "y"]


@pytest.mark.parametrize(
    "rule",
    [
        CategoryRule("b", bins=8),
        CategoryRule("b", levels=("x",), new_levels=True),
        VectorizedRule("b", TextRule("count", ())),
    ],
)
def test_open_categories_and_texts_bring_their_own_levels(rule):
    column = to_column(rule, ["u", None, "x", "u"], "rows")
    assert sorted(column["levels"]) == ["u", "x"]
    named = [column["levels"][code - 1] if code else None for code in column["values"]]
    assert named == ["u", None, "x", "u"]


def test_dates_are_days_since_1970():
    column = to_column(DATE, ["1970-01-02", None, "1969-12-31"], "rows")
    np.testing.assert_array_equal(column["values"], [1, np.nan, -1])


LOGICAL = NumberRule("f", logical=True)


def test_logicals_are_true_and_false():
    column = to_column(LOGICAL, [True, False, None], "rows")
    assert column["kind"] == "logical"
    np.testing.assert_array_equal(column["values"], [1, 0, np.nan])


@pytest.mark.parametrize(
    ("rule", "values", "words"),
    [
        (NUMBER, [1, "3"], "must hold numbers, but 1 of 2 are not"),
        (NUMBER, [1, True], "must hold numbers, but 1 of 2 are not"),
        (NUMBER, [1, [1]], "must hold numbers, but 1 of 2 are not"),
        (NUMBER, [1, {}], "must hold numbers, but 1 of 2 are not"),
        (NUMBER, [1, 10**400], "must hold numbers, but 1 of 2 are not"),
        (NUMBER, [float("inf")], "has values .*1 infinite"),
        (LOGICAL, [1, "TRUE", 0.0, True], "must hold true or false, but 3 of 4 are not"),
        (LEVELS, ["x", "secret", "secret"], "has 2 values that training did not see"),
        (LEVELS, [4], "must hold texts, but 1 of 1 are not"),
        (DATE, ["2026-13-01", 5, "secret"], 'must hold dates such as "2026-11-24", but 3 of 3'),
        (TIME, ["2026-07-01T00:00:00"], "must hold times with an offset from UTC"),
    ],
)
def test_other_values_are_counted_and_not_shown(rule, values, words):
    with pytest.raises(DataError, match=f"Column `{rule.name}` of `rows` {words}") as found:
        to_column(rule, values, "rows")
    assert found.value.details["column"] == rule.name
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    ("rule", "other"),
    [
        (DATE, "20261124"),
        (DATE, "2026-W48-2"),
        (DATE, "2026-11-24T00:00:00"),
        (DATE, " 2026-11-24"),
        (DATE, "٢٠٢٦-11-24"),
        (TIME, "20261124T120000Z"),
        (TIME, "2026-11-24 12:00:00Z"),
        (TIME, "2026-11-24T12Z"),
        (TIME, "2026-11-24T12:00Z"),
        (TIME, "2026-11-24T12:00:00,5Z"),
        (TIME, "2026-11-24T12:00:00z"),
        (TIME, "2026-11-24T12:00:00+02"),
        (TIME, "2026-11-24T24:00:00Z"),
        (TIME, "2026-11-24T12:00:00+24:00"),
        (TIME, "0001-01-01T00:00:00+10:00"),
        (TIME, "9999-12-31T23:59:59-10:00"),
        (TIME, 5),
    ],
)
def test_dates_and_times_have_one_form_whatever_pythons_version(rule, other):
    with pytest.raises(DataError, match="but 1 of 1 are not"):
        to_column(rule, [other], "rows")


def test_times_may_have_decimals():
    given = ["2026-07-01T00:00:00.5Z", "2026-07-01T00:00:00.123456789Z"]
    column = to_column(TimeRule("t"), given, "rows")
    np.testing.assert_allclose(column["values"] - 1782864000, [0.5, 0.123456], atol=1e-6)


def test_times_have_the_offset_of_the_zone_of_training():
    given = ["2026-07-01T00:00:00Z", "2026-01-01T01:00:00+01:00", None]
    column = to_column(TIME, given, "rows")
    # date -d '2026-07-01T00:00:00Z' +%s, and the same of 2026-01-01
    np.testing.assert_array_equal(column["values"], [1782864000, 1767225600, np.nan])
    assert column["offsets"].tolist() == [7200, 3600, 0]


def test_a_zone_may_be_an_offset_as_in_files():
    column = to_column(TimeRule("t", zone="-03:30"), ["2026-07-01T00:00:00Z"], "rows")
    assert column["offsets"].tolist() == [-12600]


def test_durations_are_in_the_units_of_training():
    column = to_column(DurationRule("w", units="hours"), [1.5], "rows")
    assert (column["kind"], column["units"]) == ("duration", "hours")
    assert column["values"].tolist() == [1.5]
