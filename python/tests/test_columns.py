import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import DataError, columns, recipes

NAN = np.nan


def column(values, kind="numeric", levels=(), name="size", **more):
    column = {"name": name, "kind": kind, "values": np.array(values), "levels": list(levels)}
    return {**column, **more}


def learn(given, keep=None, scale=True, onehot=True, impute=True, complete=None):
    keep = np.ones(len(given["values"]), bool) if keep is None else np.array(keep)
    return columns.learn_column(given, columns.Learning(keep, scale, onehot, impute, complete))


def bake(rule, given):
    out = np.full((len(given["values"]), len(rule.features)), NAN, np.float32)
    columns.bake_column(rule, given, out, "newdata")
    return out


values = st.one_of(st.just(NAN), st.integers(-1000, 1000).map(float))


@settings(deadline=None)
@given(st.lists(st.tuples(values, st.booleans()), min_size=1, max_size=40), st.booleans())
def test_missing_numbers_become_the_median_of_the_training_rows(rows, scale):
    x, keep = np.array([value for value, _ in rows]), np.array([kept for _, kept in rows])
    training = x[keep & ~np.isnan(x)]
    if not len(training):
        with pytest.raises(DataError, match="`size` of `x` is missing in all training rows"):
            learn(column(x), keep, scale)
        return
    rule = learn(column(x), keep, scale)
    assert rule.fill == np.median(training)
    assert rule.indicator == np.isnan(x[keep]).any()
    baked, missing = bake(rule, column(x)), np.isnan(x)
    back = baked[:, 0] * rule.scale + rule.center
    np.testing.assert_allclose(back, np.where(missing, rule.fill, x), atol=1e-2)
    if rule.indicator:
        np.testing.assert_array_equal(baked[:, 1], missing)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=40))
def test_missing_categories_become_the_most_frequent_training_level(rows):
    codes, keep = np.array([code for code, _ in rows]), np.array([kept for _, kept in rows])
    given_column = column(codes, "factor", ["a", "b", "c"])
    counts = [(codes[keep] == code).sum() for code in (1, 2, 3)]
    if not sum(counts):
        with pytest.raises(DataError, match="missing in all training rows"):
            learn(given_column, keep)
        return
    rule = learn(given_column, keep)
    most = int(np.argmax(counts))
    assert rule.fill == "abc"[most]
    filled = np.where(codes == 0, most + 1, codes) - 1
    np.testing.assert_array_equal(bake(rule, given_column)[:, :3], np.eye(3)[filled])


def test_the_indicator_follows_the_columns_own_features():
    assert learn(column([1.0, NAN])).features == ("size", "size=NA")
    factor = column([1, 0, 2], "factor", ["u", "v"], "cut")
    assert learn(factor).features == ("cut=u", "cut=v", "cut=NA")
    assert learn(factor, onehot=False).features == ("cut", "cut=NA")
    assert learn(column([1.0, 2.0])).features == ("size",)


def test_what_was_whole_in_training_is_imputed_without_indicator():
    rule = learn(column([1.0, 2.0, 9.0]), scale=False)
    np.testing.assert_array_equal(bake(rule, column([NAN, 5.0])), [[2.0], [5.0]])
    rule = learn(column([2, 2, 1], "factor", ["u", "v"]))
    np.testing.assert_array_equal(bake(rule, column([0], "factor", [])), [[0, 1]])


def test_statistics_are_those_of_the_values_that_are_there():
    rule = learn(column([1.0, NAN, 3.0, 100.0]), keep=[True, True, True, False])
    assert (rule.center, rule.scale, rule.fill) == (2.0, 1.0, 2.0)


def test_logicals_become_their_mode_unscaled():
    rule = learn(column([1.0, NAN, 1.0, 0.0], "logical"))
    np.testing.assert_array_equal(
        bake(rule, column([1.0, NAN, 1.0, 0.0], "logical")), [[1, 0], [1, 1], [1, 0], [0, 0]]
    )


def test_a_fill_level_is_found_by_name_in_other_data():
    rule = learn(column([2, 2, 1], "factor", ["u", "v"]), onehot=False)
    np.testing.assert_array_equal(bake(rule, column([0, 1], "factor", ["v", "u"])), [[1], [1]])


def test_missing_values_are_refused_where_nothing_was_learned_to_impute():
    number, factor = column([1.0, 2.0]), column([1, 2], "factor", ["u", "v"], "cut")
    with pytest.raises(DataError, match="Column `size` of `newdata` has 1 missing value") as caught:
        bake(learn(number, impute=False), column([NAN, 1.0]))
    assert 'na = "drop"' in caught.value.hint
    with pytest.raises(DataError, match="Column `cut` of `newdata` has 2 missing values"):
        bake(learn(factor, impute=False), column([0, 0], "factor", ["u", "v"], "cut"))


def test_infinite_values_stay_an_error():
    with pytest.raises(DataError, match="1 infinite"):
        learn(column([1.0, NAN, np.inf]))


# Dates and times ---------------------------------------------------------------------------------


def date(*days):
    return column([float(day) for day in days], "date", name="day")


def instant(*seconds, zone="UTC"):
    offsets = np.where(np.isnan(seconds), NAN, 0.0)
    return column(list(map(float, seconds)), "time", name="at", offsets=offsets, zone=zone)


def test_dates_and_times_become_a_number_and_circles():
    day, at = learn(date(19000, 19001), impute=False), learn(instant(0, 60), impute=False)
    circles = ("weekday_sin", "weekday_cos", "yearday_sin", "yearday_cos")
    assert day.features == ("day", *(f"day:{part}" for part in circles))
    assert at.features[-2:] == ("at:daytime_sin", "at:daytime_cos")
    assert (day.kind, at.kind, at.zone) == ("date", "time", "UTC")
    assert bake(day, date(19000, 19001)).shape == (2, 5)


def test_days_are_standardised_even_without_scale():
    rule = learn(date(10, 20, 30), scale=False, impute=False)
    np.testing.assert_allclose(
        bake(rule, date(10, 20, 30))[:, 0], np.array([-1, 0, 1]) * 1.5**0.5, rtol=1e-6
    )


def test_a_missing_date_becomes_the_median_off_the_circles():
    rule = learn(date(10, 20, NAN, 60))
    baked = bake(rule, date(NAN, 20))
    assert rule.fill == 20.0
    assert baked[0, 0] == baked[1, 0]
    np.testing.assert_array_equal(baked[0, 1:], [0, 0, 0, 0, 1])
    assert baked[1, -1] == 0
    rule = learn(instant(0, 86400, NAN))
    assert rule.fill == 0.5
    np.testing.assert_array_equal(bake(rule, instant(NAN))[0, 1:], [0, 0, 0, 0, 0, 0, 1])


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
        baked = bake(learn(given_column), given_column)
        np.testing.assert_array_equal(baked[:, -1], [1, 0, 0])
    hours = learn(column([1.0], "duration", units="hours"))
    assert bake(hours, column(numbers, "duration", units="mins"))[0, 0] == 0


def test_a_missing_date_is_refused_by_name():
    with pytest.raises(DataError, match="`day` of `x` has 1 missing value"):
        learn(date(10, NAN), impute=False)


def test_durations_are_numbers_in_the_units_of_training():
    hours = column([1.0, 3.0], "duration", units="hours")
    rule = learn(hours, impute=False, scale=False)
    assert (rule.kind, rule.units, rule.features) == ("duration", "hours", ("size",))
    minutes = column([60.0, 180.0], "duration", units="mins")
    np.testing.assert_array_equal(bake(rule, minutes), bake(rule, hours))
    scaled = learn(hours, impute=False)
    np.testing.assert_array_equal(bake(scaled, minutes)[:, 0], [-1, 1])
    missing = column([NAN, 60.0], "duration", units="mins")
    np.testing.assert_array_equal(bake(learn(hours, scale=False), missing), [[2.0], [1.0]])


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
        bake(learn(trained, impute=False), new)
    assert caught.value.details["column"] == "day"
    assert ("as.Date()" in caught.value.hint) == (trained["kind"] == "date")


def test_take_rows_takes_the_offsets_along():
    taken = columns.take_rows(instant(0, 1, 2), np.array([True, False, True]))
    assert (len(taken["values"]), len(taken["offsets"])) == (2, 2)
    given_column = column([1.0])
    assert columns.take_rows(given_column, None) is given_column


# Whole data frames -------------------------------------------------------------------------------


def test_dropping_and_imputing_differ_only_where_values_are_missing():
    given_columns = [column([1.0, NAN, 3.0]), date(1, 2, 9)]
    complete = np.array([True, False, True])
    dropped = recipes.learn_columns(
        given_columns, np.ones(2, bool), True, "onehot", na="drop", complete=complete
    )
    features = {"kind": "columns", "columns": given_columns}
    baked = recipes.bake(dropped, features, complete=complete)
    assert baked.shape == (2, 6)
    np.testing.assert_allclose(baked[:, :2], [[-1, -1], [1, 1]], rtol=1e-6)
    assert dropped.indicators == ()
    imputed = recipes.learn_columns(given_columns, np.ones(3, bool), True, "onehot", na="impute")
    assert imputed.indicators == ("size",)
    assert not recipes.same_encoding(dropped, imputed)
