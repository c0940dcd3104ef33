import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gpukeras import DataError, arrays


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_aligned_empty_is_aligned(shape):
    array = arrays.aligned_empty(shape)
    assert array.shape == tuple(shape)
    assert array.ctypes.data % arrays.ALIGNMENT == 0
    assert array.flags.c_contiguous


finite = st.floats(-1e30, 1e30, width=64)


@given(npst.arrays(np.float64, npst.array_shapes(min_dims=2, max_dims=4), elements=finite))
def test_stage_float32_is_the_cast_in_row_order(x):
    staged = arrays.stage_float32(np.asfortranarray(x))
    np.testing.assert_array_equal(staged, x.astype(np.float32))
    assert staged.flags.c_contiguous


def test_stage_float32_centres_in_double_precision():
    x = np.array([[1e9 + 1.0], [1e9 + 3.0]])
    staged = arrays.stage_float32(x, np.array([1e9 + 2.0]), np.array([1.0]))
    np.testing.assert_array_equal(staged, [[-1.0], [1.0]])


def test_staging_works_in_blocks(monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 64)
    x = np.arange(300.0).reshape(100, 3)
    np.testing.assert_array_equal(arrays.stage_float32(x), x)


@pytest.mark.parametrize(
    ("bad", "details"),
    [
        (np.nan, {"missing": 1}),
        (-np.inf, {"infinite": 1}),
        (1e39, {"large": 1}),
    ],
)
def test_stage_float32_names_the_column(bad, details):
    x = np.zeros((5, 3))
    x[4, 1] = bad
    with pytest.raises(DataError, match="`width`") as caught:
        arrays.stage_float32(x, names=["height", "width", "depth"])
    assert caught.value.details["column"] == "width"
    assert {key: caught.value.details[key] for key in details} == details
    assert str(bad) not in str(caught.value)


def test_a_column_without_name_is_numbered_from_one_as_in_r():
    with pytest.raises(DataError, match="Column `2`"):
        arrays.stage_float32(np.array([[0.0, np.nan]]))


def test_moments_of_what_staging_will_refuse_warn_nobody():
    na = np.array([0x7FF00000000007A2], dtype=np.uint64).view(np.float64)[0]  # R's, signalling
    arrays.moments(np.array([[na, np.inf, 1e300]] * 2), np.ones(2, bool))


def test_missing_values_are_filled_and_marked_after_their_columns():
    x = np.array([[np.nan, 1.0, np.nan], [2.0, np.nan, 3.0]])
    staged = arrays.stage_float32(x, fill=np.array([7.0, 8.0, 9.0]), marked=[0, 2])
    np.testing.assert_array_equal(staged, [[7, 1, 1, 9, 1], [2, 0, 8, 3, 0]])
    unmarked = arrays.stage_float32(x, fill=np.array([7.0, 8.0, 9.0]))
    np.testing.assert_array_equal(unmarked, [[7, 1, 9], [2, 8, 3]])


def test_only_complete_rows_are_staged_whatever_the_block(monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 64)
    x = np.arange(300.0).reshape(100, 3)
    complete = np.arange(100) % 3 > 0
    x[~complete, 1] = np.nan
    np.testing.assert_array_equal(arrays.stage_float32(x, complete=complete), x[complete])


def test_what_is_wrong_is_counted_in_the_rows_taken():
    x = np.array([[np.nan], [np.inf], [1.0]])
    with pytest.raises(DataError, match="cannot be trained on: 1 infinite"):
        arrays.stage_float32(x, complete=np.array([False, True, True]))
    with pytest.raises(DataError, match="cannot be trained on: 1 infinite"):
        arrays.stage_float32(x, fill=np.array([0.0]))


def test_only_missing_values_get_the_hint_on_their_policy():
    assert 'na = "impute"' in arrays.column_error("w", "x", missing=2).hint
    label = arrays.column_error("y", "y", missing=1)
    assert label.message == "`y` has 1 missing value."
    assert "impute" not in label.hint
    mixed = arrays.column_error("w", "x", missing=2, infinite=1)
    assert mixed.message.endswith("cannot be trained on: 2 missing and 1 infinite.")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((0, 3)), "no rows"),
        (np.zeros((3, 0)), "no columns"),
        (np.zeros((1,) * 6), "2 to 5 dimensions"),
        (np.array([["a"]]), "must be numeric"),
        ([1, 2], "must be numeric, not list"),
    ],
)
def test_check_features_refuses(x, message):
    with pytest.raises(DataError, match=message):
        arrays.check_features(x)


def test_check_features_takes_a_vector_as_one_column():
    assert arrays.check_features(np.arange(3)).shape == (3, 1)


def test_moments_use_only_the_rows_kept():
    x = np.array([[1.0, 5.0], [3.0, 5.0], [1000.0, 1000.0]])
    mean, deviation = arrays.moments(x, np.array([True, True, False]))
    np.testing.assert_allclose(mean, [2.0, 5.0])
    np.testing.assert_allclose(deviation, [1.0, 1.0])  # a constant column divides by 1


def test_moments_of_an_image_are_by_channel():
    x = np.random.default_rng(0).normal(3, 2, (50, 4, 4, 2))
    mean, deviation = arrays.moments(x, np.ones(50, bool))
    np.testing.assert_allclose(mean, x.mean((0, 1, 2)))
    np.testing.assert_allclose(deviation, x.std((0, 1, 2)))


@given(st.integers(2, 500), st.floats(0.0, 0.9), st.integers(0, 2**31 - 1))
def test_split_rows_parts_every_row_once(rows, validation, seed):
    try:
        train, held = arrays.split_rows(rows, validation, seed)
    except DataError:
        assert round(rows * validation) in (0, rows)
        return
    assert sorted([*train, *held]) == list(range(rows))
    assert len(held) == round(rows * validation)


@given(st.integers(1, 200), st.integers(0, 2**31 - 1), st.integers(0, 50))
def test_epoch_order_is_a_permutation_that_repeats(rows, seed, epoch):
    numbers = np.arange(rows, dtype=np.int32)
    order = arrays.epoch_order(numbers, True, seed, epoch)
    assert sorted(order) == list(range(rows))
    np.testing.assert_array_equal(order, arrays.epoch_order(numbers, True, seed, epoch))
    np.testing.assert_array_equal(arrays.epoch_order(numbers, False, seed, epoch), numbers)


def test_epochs_differ_in_order():
    numbers = np.arange(100)
    one, two = (arrays.epoch_order(numbers, True, 1, epoch) for epoch in (0, 1))
    assert not np.array_equal(one, two)


def test_check_lengths_names_the_argument():
    with pytest.raises(DataError, match="`y` has 3 rows where `x` has 4"):
        arrays.check_lengths(4, 3, "y")
