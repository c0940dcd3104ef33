import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gpukeras import DataError
from gpukeras.core import memory
from gpukeras.data import arrays
from gpukeras.data.recipe.encoding import stage_float32
from gpukeras.data.recipe.recipe import ArrayEncoding


@given(st.lists(st.integers(1, 7), min_size=1, max_size=4))
def test_aligned_empty_is_aligned(shape):
    array = memory.aligned_empty(shape)
    assert array.shape == tuple(shape)
    assert array.ctypes.data % memory.ALIGNMENT == 0
    assert array.flags.c_contiguous


finite = st.floats(-1e30, 1e30, width=64)


def stage(x, center=None, scale=None, names=(), arg="x", **how):
    """Stages an array by numbers for its columns, and the rows and notes in `how`."""
    numbers = {"center": center, "scale": scale, "fill": how.pop("fill", None)}
    learned = {name: None if part is None else tuple(part) for name, part in numbers.items()}
    marked = tuple(how.pop("marked", ()))
    rule = ArrayEncoding(x.shape[1:], **learned, marked=marked, names=tuple(names))
    return stage_float32(x, rule, arg, arrays.EncodeOptions(**how))


@given(npst.arrays(np.float64, npst.array_shapes(min_dims=2, max_dims=4), elements=finite))
def test_stage_float32_is_the_cast_in_row_order(x):
    staged = stage(np.asfortranarray(x))
    np.testing.assert_array_equal(staged, x.astype(np.float32))
    assert staged.flags.c_contiguous


def test_stage_float32_centres_in_double_precision():
    x = np.array([[1e9 + 1.0], [1e9 + 3.0]])
    staged = stage(x, np.array([1e9 + 2.0]), np.array([1.0]))
    np.testing.assert_array_equal(staged, [[-1.0], [1.0]])


def test_staging_works_in_blocks(monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 64)
    x = np.arange(300.0).reshape(100, 3)
    np.testing.assert_array_equal(stage(x), x)


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
        stage(x, names=["height", "width", "depth"])
    assert caught.value.details["column"] == "width"
    assert {key: caught.value.details[key] for key in details} == details
    assert str(bad) not in str(caught.value)


def test_a_column_without_name_is_numbered_from_one_as_in_r():
    with pytest.raises(DataError, match="Column `2`"):
        stage(np.array([[0.0, np.nan]]))


def test_moments_of_what_staging_will_refuse_warn_nobody():
    na = np.array([0x7FF00000000007A2], dtype=np.uint64).view(np.float64)[0]  # R's, signalling
    arrays.moments(np.array([[na, np.inf, 1e300]] * 2), np.ones(2, bool))


def test_missing_values_are_filled_and_marked_after_their_columns():
    x = np.array([[np.nan, 1.0, np.nan], [2.0, np.nan, 3.0]])
    staged = stage(x, fill=np.array([7.0, 8.0, 9.0]), marked=[0, 2])
    np.testing.assert_array_equal(staged, [[7, 1, 1, 9, 1], [2, 0, 8, 3, 0]])
    unmarked = stage(x, fill=np.array([7.0, 8.0, 9.0]))
    np.testing.assert_array_equal(unmarked, [[7, 1, 9], [2, 8, 3]])


def test_only_complete_rows_are_staged_whatever_the_block(monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 64)
    x = np.arange(300.0).reshape(100, 3)
    complete = np.arange(100) % 3 > 0
    x[~complete, 1] = np.nan
    np.testing.assert_array_equal(stage(x, complete=complete), x[complete])


def test_what_is_wrong_is_counted_in_the_rows_taken():
    x = np.array([[np.nan], [np.inf], [1.0]])
    with pytest.raises(DataError, match="cannot be trained on: 1 infinite"):
        stage(x, complete=np.array([False, True, True]))
    with pytest.raises(DataError, match="cannot be trained on: 1 infinite"):
        stage(x, fill=np.array([0.0]))


def test_what_only_scaling_makes_too_large_is_refused():
    with pytest.raises(DataError, match="`x` is not finite after scaling"):
        stage(np.array([[1e30]]), scale=np.array([1e-20]))


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
        (np.zeros((3, 0)), "no columns"),
        (np.zeros((1,) * 6), "2 to 5 dimensions"),
        (np.array([["a"]]), "must be numeric"),
        ([1, 2], "must be numeric, not list"),
    ],
)
def test_check_features_refuses(x, message):
    with pytest.raises(DataError, match=message):
        arrays.check_features(x)


def test_no_rows_are_nothing_to_learn_from_and_a_shape_all_the_same():
    assert arrays.check_features(np.zeros((0, 3))).shape == (0, 3)
    with pytest.raises(DataError, match="`x` has no rows"):
        arrays.check_some(0)


def test_check_features_takes_a_vector_as_one_column():
    assert arrays.check_features(np.arange(3)).shape == (3, 1)


def test_moments_use_only_the_rows_kept():
    x = np.array([[1.0, 5.0], [3.0, 5.0], [1000.0, 1000.0]])
    mean, deviation = arrays.moments(x, np.array([True, True, False]))
    np.testing.assert_allclose(mean, [2.0, 5.0])
    np.testing.assert_allclose(deviation, [1.0, 0.0])


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


# Whole numbers that lose digits ------------------------------------------------------------------


def exactly(value, to):
    """Whether Python's own integers, which are exact, survive the cast."""
    return int(to(value)) == value


edges = [2**24, 2**31, 2**53, 2**62, 2**63, 2**64]
whole = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.tuples(st.sampled_from(edges), st.integers(-5, 5), st.sampled_from([1, -1])).map(
        lambda parts: parts[2] * (parts[0] + parts[1])
    ),
)


@given(whole, st.sampled_from(["int32", "int64", "uint32", "uint64"]), st.booleans())
def test_integers_that_lose_digits_are_found(value, dtype, scaled):
    limits = np.iinfo(dtype)
    if not limits.min <= value <= limits.max:
        return
    found = arrays.find_inexact(np.array([value, 1], dtype), scaled)
    lost = not exactly(value, np.float64 if scaled else np.float32)
    assert lost == (found is not None and bool(found[0]))
    assert found is None or not found[1]


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_floats_that_are_whole_and_lose_digits_are_found(value):
    found = arrays.find_inexact(np.array([value]), False)
    with np.errstate(over="ignore"):
        lost = np.isfinite(value) and float(np.float32(value)) != value
    lost = lost and abs(value) > 2**24 and value == np.floor(value)
    assert lost == (found is not None and bool(found[0]))
    assert arrays.find_inexact(np.array([value]), True) is None


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float32"])
def test_narrow_types_lose_nothing(dtype):
    assert arrays.find_inexact(np.array([1, 0], dtype), False) is None


def test_notes_count_by_column_over_blocks(monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 64)
    x = np.zeros((100, 3))
    x[:, 1], x[7, 2], x[8, 2] = 2**24 + np.arange(100), 2**40 + 1, 0.5 + 2**30
    notes = arrays.Notes()
    stage(np.asfortranarray(x), names=["a", "id"], arg="data", notes=notes)
    assert notes.sentences == (
        "Column `id` of `data` has 50 whole numbers beyond 2^24 that float32 cannot hold exactly.",
        "Column `3` of `data` has 1 whole number beyond 2^24 that float32 cannot hold exactly.",
    )


def test_scaled_values_are_exact_up_to_those_of_float64():
    x = np.array([[2**53 + 1, 2**24 + 1], [2**53 + 3, 2**24 + 3]])
    notes = arrays.Notes()
    staged = stage(x, center=np.array([0.0, 2**24 + 2.0]), notes=notes)
    np.testing.assert_array_equal(staged[:, 1], [-1, 1])
    assert notes.sentences == (
        "Column `1` of `x` has 2 whole numbers beyond 2^53 that float64 cannot hold exactly.",
    )


def test_imputed_values_are_looked_at_as_they_are_given():
    notes = arrays.Notes()
    x = np.array([[2.0**24 + 1], [np.nan]])
    stage(x, fill=np.array([3.0]), marked=[0], notes=notes)
    assert len(notes.sentences) == 1


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_of_64_bits_are_staged(dtype):
    x = np.array([[2**40, 3], [2**62, 4]], dtype)
    notes = arrays.Notes()
    np.testing.assert_array_equal(stage(x, notes=notes), x.astype(np.float64))
    assert notes.sentences == ()
