import numpy as np
import pytest
from series import make_columns, numbers, take

from gpukeras import DataError, SpecError
from gpukeras.data.recipe import windows
from gpukeras.data.recipe.windows import WindowRule, order_series


def rule(**options):
    return WindowRule(
        **{"window": 4, "horizon": 2, "time": "when", "targets": ("load",), **options}
    )


def series(rows=10, groups="AB", without=(), gaps="refuse"):
    columns = make_columns(rows, groups)
    columns = take(columns, np.delete(np.arange(rows * len(groups)), list(without)))
    return order_series(columns[0], [columns[1]], gaps, None, "x")


def test_windows_never_reach_into_another_group_or_across_a_gap():
    assert windows.find_windows(series(), rule()).tolist() == [*range(5), *range(10, 15)]
    assert windows.find_windows(series(), rule(stride=3)).tolist() == [0, 3, 10, 13]
    gapped = series(without=[13], gaps="drop")
    assert windows.find_windows(gapped, rule()).tolist() == [*range(5), 13]
    alone = rule(horizon=0, targets=())
    assert windows.find_windows(gapped, alone).tolist() == [*range(7), 13, 14, 15]


def test_a_window_longer_than_every_group_says_how_long_the_longest_is():
    said = "`window` = 9 with `horizon` = 2 needs 11 rows one step apart, .* group `A`, has 10"
    with pytest.raises(DataError, match=said):
        windows.find_windows(series(), rule(window=9))
    one = order_series(make_columns(10, "A")[0], [], "refuse", None, "x")
    with pytest.raises(DataError, match="`window` = 11 needs 11 rows .* of `x`, has 10"):
        windows.find_windows(one, rule(window=11, horizon=0, targets=()))


def test_groups_without_a_window_are_counted():
    gapped = series(without=[10, 11, 12, 13, 14])
    assert windows.note_short(gapped, rule()) == (
        "1 of 2 groups have fewer than 6 rows in sequence.",
    )
    assert windows.note_short(series(), rule()) == ()


@pytest.mark.parametrize("stride", [1, 2])
def test_validation_is_the_last_part_in_time_and_shares_no_target(stride):
    given, how = series(50), rule(stride=stride)
    starts = windows.find_windows(given, how)
    train, held = windows.split_windows(given, how, starts, 0.2)
    targets = [set(np.add.outer(starts[part], [4, 5]).ravel() % 50) for part in (train, held)]
    assert max(targets[0]) == 39
    assert (min(targets[1]), max(targets[1])) == (40, 49)
    assert {int(start) // 50 for start in starts[held]} == {0, 1}
    early = windows.training_rows(given, 0.2, 100)
    np.testing.assert_array_equal(early, np.arange(100) % 50 < 40)


def test_windows_without_targets_do_not_cross_the_border():
    given, how = series(50), rule(horizon=0, targets=())
    starts = windows.find_windows(given, how)
    train, held = windows.split_windows(given, how, starts, 0.2)
    assert (starts[train] % 50).max() == 36
    assert (starts[held] % 50).min() == 40


def test_training_rows_are_those_given():
    mixed = np.random.default_rng(0).permutation(20)
    columns = take(make_columns(10), mixed)
    given = order_series(columns[0], [columns[1]], "refuse", None, "x")
    np.testing.assert_array_equal(windows.training_rows(given, 0.5, 20), mixed % 10 < 5)


@pytest.mark.parametrize(("share", "use"), [(0.05, "validate"), (0.95, "train")])
def test_a_split_that_leaves_a_part_empty_is_refused(share, use):
    starts = windows.find_windows(series(), rule())
    with pytest.raises(DataError, match=f"leaves no window to {use} on"):
        windows.split_windows(series(), rule(), starts, share)


def test_the_last_window_of_each_group_predicts():
    assert windows.last_windows(series(), 4).tolist() == [6, 16]
    gapped = series(without=[17], gaps="drop")
    assert windows.last_windows(gapped, 2).tolist() == [8, 17]
    with pytest.raises(DataError, match="Group `B` ends with 2 rows in sequence where .* needs 4"):
        windows.last_windows(gapped, 4)


def test_forecasts_have_the_times_after_the_window():
    about = windows.describe_forecasts(series(), rule(), np.array([0, 13]))
    assert about["time"]["values"].tolist() == [19004, 19005, 19007, 19008]
    (site,) = about["groups"]
    assert (site["name"], site["values"].tolist(), site["levels"]) == ("site", [1, 2], ["A", "B"])
    assert (about["horizon"], about["targets"]) == (2, ("load",))


COLUMNS = {column["name"]: column for column in [*make_columns(4), numbers("horizon", range(8))]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"time": "whem"}, "`time` names `whem`, which is no column of `x`"),
        ({"time": "site"}, "`time` names `site`, which is a factor, not a time"),
        ({"group": ("site", "site")}, "`group` names `site`, which stands there twice"),
        ({"targets": ("day",)}, "`y` names `day`, which is a factor: windows predict numbers"),
        (
            {"targets": ("load",), "known": ("load",)},
            "names `load`, which `time`, `group` or `known` names too",
        ),
        ({"targets": (), "horizon": 2}, "`horizon` of windows needs `y`"),
        ({"targets": (), "horizon": 0, "known": ("day",)}, "`known` needs `y`"),
        ({"targets": ("horizon",)}, "rename the column"),
    ],
)
def test_a_column_that_does_not_suit_is_named(options, said):
    with pytest.raises(SpecError, match=said):
        rule(**options).check(COLUMNS, "x")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window": 0}, "`window` must be a whole number"),
        ({"stride": 1.5}, "`stride` must be a whole number"),
        ({"gaps": "skip"}, '`gaps` must be one of "refuse", "drop", "fill"'),
        ({"step": 0}, "`step` must be above 0"),
        ({"targets": (1.0,)}, "`y` must be names of columns"),
        ({"time": 3}, "`time` must be the name of a column"),
    ],
)
def test_an_option_that_does_not_suit_is_named(options, said):
    with pytest.raises(SpecError, match=said):
        rule(**options)


def test_labels_have_no_dimension_of_one():
    two = ("load", "temp")
    assert rule(horizon=1).label_shape == ()
    assert rule(horizon=1, targets=two).label_shape == (2,)
    assert rule(horizon=3).label_shape == (3,)
    assert rule(horizon=3, targets=two).label_shape == (3, 2)
