import numpy as np
import pytest
from series import make_columns, take, windows

from gpukeras import DataError, SpecError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.options import DatasetSpec
from gpukeras.data.reader import rows
from gpukeras.data.reader.registry import open_features
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.data.reader.windows import Span, WindowRows
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.windows import find_windows

pytestmark = pytest.mark.tf
ROWS = np.arange(200, dtype=np.float32).reshape(50, 4)
STARTS = np.arange(0, 40, 2, dtype=np.int32)
ORDER = np.array([19, 0, 7, 7, 3])


def stored(rows=ROWS):
    made = aligned_empty(rows.shape)
    made[:] = rows
    return MemoryRows(made)


def expect(rows=ORDER):
    return np.stack([ROWS[start : start + 8] for start in STARTS[rows]])


def test_windows_are_rows_side_by_side():
    source = WindowRows(stored(), STARTS, [Span(np.arange(8))])
    assert (source.shape, source.row_bytes) == ((20, 8, 4), 8 * 4 * 4)
    assert source.stored_bytes == source.resident_bytes == ROWS.nbytes
    np.testing.assert_array_equal(source.gather(ORDER), expect())
    np.testing.assert_array_equal(source.gather(slice(3)), expect(np.arange(3)))


@pytest.mark.parametrize("place", ["CPU:0", "GPU:0"])
def test_tensors_are_gathered_where_the_rows_lie(place, monkeypatch):
    from gpukeras.backend import runtime

    monkeypatch.setattr(rows, "LEAST_BYTES", 1)
    source = WindowRows(stored(), STARTS, [Span(np.arange(8))])
    with runtime.on_device(place, soft=True):  # without a GPU the CPU computes
        np.testing.assert_array_equal(source.gatherer(place)(ORDER).numpy(), expect())
    gather = source.reusing_gatherer()
    np.testing.assert_array_equal(gather(ORDER).numpy(), expect())
    np.testing.assert_array_equal(gather(ORDER[:2]).numpy(), expect(ORDER[:2]))


@pytest.mark.parametrize("offset", [np.int64(8), np.arange(8, 10)])
def test_labels_are_single_rows_or_several(offset):
    source = WindowRows(stored(np.arange(50)), STARTS, [Span(offset)])
    expected = np.add.outer(STARTS[ORDER], offset)
    np.testing.assert_array_equal(source.gather(ORDER), expected)
    np.testing.assert_array_equal(source.reusing_gatherer()(ORDER).numpy(), expected)
    assert source.shape == (20, *np.shape(offset))


def test_several_parts_of_a_window_lie_side_by_side():
    spans = [Span(np.arange(8)), Span(np.arange(8, 10), 3)]
    source = WindowRows(stored(), STARTS, spans)
    ahead = np.stack([ROWS[start + 8 : start + 10, 3] for start in STARTS[ORDER]])
    expected = np.concatenate([expect().reshape(5, -1), ahead], axis=1)
    for found in (source.gather(ORDER), source.gatherer("CPU:0")(ORDER).numpy()):
        np.testing.assert_array_equal(found, expected)


# Features ----------------------------------------------------------------------------------------


def open_windows(columns=None, recipe=None, **options):
    given = windows(make_columns() if columns is None else columns, **options)
    if recipe is not None:
        given = {"kind": "windows", "columns": given["columns"], **options}
    return open_features(given, "x", encoding=recipe)


def learn(found, **options):
    return found.learn(Learning(np.ones(found.rows, bool), DatasetSpec(**options)))


def test_time_and_group_are_features_only_if_they_are_known_ahead():
    recipe = learn(open_windows())
    assert recipe.feature_names == ("load", "temp", "day=x", "day=y")
    assert recipe.shape == (8, 4)
    recipe = learn(open_windows(known=["when", "temp"]))
    assert recipe.feature_names[:3] == ("load", "day=x", "day=y")
    assert recipe.feature_names[3:5] == ("when", "when:weekday_sin")
    assert recipe.feature_names[-1] == "temp"
    assert recipe.shape == (8 * 9 + 3 * 6,)


def test_rows_are_encoded_in_order_whatever_order_they_came_in():
    columns, mixed = make_columns(), np.random.default_rng(0).permutation(120)
    found = open_windows(take(columns, mixed))
    recipe = learn(found)
    starts = find_windows(found.series, found.rule)
    ordered = open_windows(columns).windows(recipe, starts)
    np.testing.assert_array_equal(
        found.windows(recipe, starts).gather(slice(None)), ordered.gather(slice(None))
    )


def test_filled_rows_repeat_the_row_before_but_have_their_time():
    columns = take(make_columns(20, "A"), np.delete(np.arange(20), [5, 6]))
    found = open_windows(columns, gaps="fill", known=["when"])
    rows = found.encode_rows(learn(found, scale=False))
    np.testing.assert_array_equal(rows[4, :4], rows[6, :4])
    steps = np.diff(rows[:, 4])  # days are always standardised
    np.testing.assert_allclose(steps, steps[0], rtol=1e-3)
    assert rows[7, 0] == 7.5


def test_filled_rows_have_the_clock_of_their_own_time():
    columns = take(make_columns(20, "A"), np.delete(np.arange(20), [5, 6]))
    when = next(column for column in columns if column["name"] == "when")
    # Hours of 2023-03-26 in Berlin, where clocks changed at 01:00 UTC, the sixth hour.
    times = 1679774400.0 + (np.asarray(when["values"]) - when["values"][0]) * 3600
    offsets = np.where(times < 1679792400, 3600.0, 7200.0)
    when |= {"kind": "time", "values": times, "offsets": offsets, "zone": "Europe/Berlin"}
    found = open_windows(columns, gaps="fill", known=["when"])
    filled = found.take("when")["offsets"]
    assert filled[3:8].tolist() == [3600, 3600, 7200, 7200, 7200]


def test_new_rows_give_the_last_window_of_each_group():
    columns = make_columns()
    found = open_windows(columns)
    recipe = learn(found)
    again = open_windows(columns, recipe)
    source = again.encode_later(recipe)
    expected = again.windows(recipe, np.array([52, 112], np.int32))
    np.testing.assert_array_equal(source.gather(slice(None)), expected.gather(slice(None)))
    about = source.forecasts()
    assert about["time"]["values"].tolist() == [19060, 19061, 19062] * 2


def test_rows_to_predict_need_what_is_known_ahead_only():
    columns = make_columns()
    recipe = learn(open_windows(known=["temp"]))
    future = np.arange(120) % 60 >= 57
    blank = [dict(column, values=np.array(column["values"])) for column in columns]
    blank[2]["values"][future] = np.nan
    blank[4]["values"][future] = 0
    source = open_windows(blank, recipe).encode(recipe)
    full = open_windows(columns, recipe).encode(recipe)
    np.testing.assert_array_equal(source.gather(slice(None)), full.gather(slice(None)))
    assert source.forecasts()["time"]["values"][:3].tolist() == [19057, 19058, 19059]
    blank[3]["values"][future] = np.nan
    with pytest.raises(DataError, match="Column `temp` of `x` has 6 missing values"):
        open_windows(blank, recipe).encode(recipe)


def test_new_rows_must_have_the_columns_of_training():
    columns = make_columns()
    recipe = learn(open_windows())
    with pytest.raises(DataError, match="`x` lacks the column `temp` that the model"):
        open_windows([column for column in columns if column["name"] != "temp"], recipe)
    with pytest.raises(DataError, match="must be a data frame of time series, as in training"):
        open_features({"kind": "array", "values": np.zeros((20, 4))}, "x").encode(recipe)
    plain = open_features({"kind": "columns", "columns": columns[2:]}, "x")
    other = plain.learn(Learning(np.ones(120, bool), DatasetSpec()))
    with pytest.raises(DataError, match="`x` must be a data frame, as in training, not"):
        open_windows(columns, other)


def test_options_of_windows_that_a_recipe_has_are_refused():
    recipe = learn(open_windows())
    with pytest.raises(SpecError, match="`window` is given beside a `recipe` of windows"):
        open_windows(recipe=recipe, window=4)
    with pytest.raises(SpecError, match="`y` is given beside"):
        open_windows(recipe=recipe, targets="load")


def test_a_window_needs_its_size():
    with pytest.raises(SpecError, match="`y` needs `window`: the rows of a window"):
        open_windows(window=None)
    with pytest.raises(SpecError, match="`time` must be the name of a column"):
        open_windows(time=None)
    assert open_windows(horizon=None).rule.horizon == 1
    with pytest.raises(SpecError, match='`na` = "drop" would tear gaps into the time series'):
        open_windows().check_policy("drop")
