import pickle

import numpy as np
import pytest
from frames import NAN, frame, learn_array, learn_columns

from gpukeras import DataError
from gpukeras.data.recipe import encoding, serialization
from gpukeras.data.recipe.recipe import Recipe

ALL = np.ones(4, dtype=bool)


def number(name="size", values=(1.0, 2.0, 3.0, 4.0), kind="numeric"):
    return {"name": name, "kind": kind, "values": np.array(values), "levels": []}


def category(name="cut", codes=(1, 2, 1, 3), levels=("low", "mid", "top"), kind="factor"):
    values = np.array(codes, dtype=np.int32)
    return {"name": name, "kind": kind, "values": values, "levels": list(levels)}


def test_a_data_frame_becomes_standardised_numbers_and_onehot_columns():
    recipe = learn_columns([number(), category()], ALL, True, "onehot")
    assert recipe.feature_names == ("size", "cut=low", "cut=mid", "cut=top")
    baked = encoding.transform(recipe, frame(number(), category()))
    deviation = np.std([1, 2, 3, 4])
    np.testing.assert_allclose(baked[:, 0], (np.arange(1, 5) - 2.5) / deviation, rtol=1e-6)
    np.testing.assert_array_equal(baked[:, 1:], np.eye(3)[[0, 1, 0, 2]])


def test_statistics_come_from_the_training_rows_only():
    keep = np.array([True, True, False, False])
    recipe = learn_columns([number()], keep, True, "onehot")
    assert recipe.columns[0].center == 1.5


def test_codes_count_from_zero():
    recipe = learn_columns([category()], ALL, True, "codes")
    np.testing.assert_array_equal(
        encoding.transform(recipe, frame(category())), [[0], [1], [0], [2]]
    )


def test_logical_columns_stay_zero_and_one():
    column = number(values=(True, False, True, True), kind="logical")
    recipe = learn_columns([column], ALL, True, "onehot")
    np.testing.assert_array_equal(encoding.transform(recipe, frame(column))[:, 0], [1, 0, 1, 1])


def test_column_order_and_more_columns_do_not_matter():
    recipe = learn_columns([number(), category()], ALL, True, "onehot")
    one = encoding.transform(recipe, frame(number(), category()))
    two = encoding.transform(recipe, frame(number("other"), category(), number()))
    np.testing.assert_array_equal(one, two)


def test_levels_are_matched_by_name_not_by_code():
    recipe = learn_columns([category()], ALL, True, "codes")
    same = category(codes=(3, 2, 3, 1), levels=("top", "mid", "low"))
    np.testing.assert_array_equal(encoding.transform(recipe, frame(same)), [[0], [1], [0], [2]])


def test_unused_new_levels_are_no_error_used_ones_are_named():
    recipe = learn_columns([category()], ALL, True, "onehot")
    levels = ("low", "mid", "top", "huge")
    encoding.transform(recipe, frame(category(levels=levels)))
    with pytest.raises(DataError, match="`cut`.*huge") as caught:
        encoding.transform(recipe, frame(category(codes=(1, 2, 4, 4), levels=levels)))
    assert caught.value.details["levels"] == ["huge"]


@pytest.mark.parametrize(
    ("encode", "expected"),
    [("codes", [[0], [1], [3], [3]]), ("onehot", [[1, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]])],
)
def test_new_levels_may_be_their_own(encode, expected):
    recipe = learn_columns([number(), category()], ALL, True, encode, new_levels="own")
    assert [rule.new_levels for rule in recipe.columns] == [False, True]
    levels = ("low", "mid", "huge", "tiny")
    found = encoding.transform(recipe, frame(number(), category(codes=(1, 2, 3, 4), levels=levels)))
    np.testing.assert_array_equal(found[:, 1:], expected)
    with pytest.raises(DataError, match="missing"):  # which is no level
        encoding.transform(recipe, frame(number(), category(codes=(0, 2, 3, 4), levels=levels)))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([category()], "lacks the column `size`"),
        ([number(), number("cut")], "`cut` of `x` is a number where training had a category"),
        ([number(values=(1.0, np.nan, np.inf, 2.0)), category()], "1 missing and 1 infinite"),
        ([number(values=(1.0, 1e300, 0.0, 2.0)), category()], "too large"),
    ],
)
def test_bake_refuses(columns, message):
    recipe = learn_columns([number(), category()], ALL, True, "onehot")
    with pytest.raises(DataError, match=message):
        encoding.transform(recipe, frame(*columns))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([], "no feature columns"),
        ([number(), number()], "more than one column `size`"),
        ([category(levels=())], "no levels"),
        (
            [category("id", range(1, 101), [f"t{i}" for i in range(100)], "character")],
            "100 different texts in 100 rows",
        ),
    ],
)
def test_learn_columns_refuses(columns, message):
    keep = np.ones(len(columns[0]["values"]) if columns else 0, dtype=bool)
    with pytest.raises(DataError, match=message):
        learn_columns(columns, keep, True, "onehot")


def test_too_many_levels_for_onehot_ask_for_codes():
    column = category(codes=[1, 2, 3, 4], levels=[str(i) for i in range(1001)])
    with pytest.raises(DataError, match='encode = "codes"'):
        learn_columns([column], ALL, True, "onehot")
    learn_columns([column], ALL, True, "codes")


def test_an_array_is_taken_as_it_is_or_standardised():
    x = np.array([[1.0, 10.0], [3.0, 30.0], [5.0, 20.0], [7.0, 40.0]])
    plain = learn_array(x, ALL, False, [])
    np.testing.assert_array_equal(encoding.transform(plain, {"kind": "array", "values": x}), x)
    scaled = learn_array(x, ALL, True, [])
    baked = encoding.transform(scaled, {"kind": "array", "values": x})
    np.testing.assert_allclose(baked.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(baked.std(axis=0), 1, rtol=1e-6)


HOLES = np.array([[1.0, NAN], [NAN, 10.0], [3.0, 20.0], [100.0, 60.0]])


def test_an_array_is_imputed_by_the_medians_of_its_training_rows():
    keep = np.array([True, True, True, False])
    recipe = learn_array(HOLES, keep, False, ["a", "b"], impute=True)
    assert (recipe.fill, recipe.marked, recipe.indicators) == ((2.0, 15.0), (0, 1), ("a", "b"))
    assert (recipe.shape, recipe.row_shape) == ((4,), (2,))
    baked = encoding.transform(recipe, {"kind": "array", "values": HOLES})
    expected = [[1, 0, 15, 1], [2, 1, 10, 0], [3, 0, 20, 0], [100, 0, 60, 0]]
    np.testing.assert_array_equal(baked, expected)


def test_a_column_whole_in_training_is_imputed_in_new_rows_without_indicator():
    recipe = learn_array(HOLES[2:], ALL[:2], False, [], impute=True)
    assert recipe.marked == ()
    baked = encoding.transform(recipe, {"kind": "array", "values": HOLES})
    np.testing.assert_array_equal(baked[:2], [[1, 40], [51.5, 10]])


def test_an_array_is_standardised_by_the_values_that_are_there():
    recipe = learn_array(HOLES, ALL, True, [], impute=True)
    np.testing.assert_allclose(recipe.center, [np.nanmean(HOLES[:, 0]), 30.0])
    np.testing.assert_allclose(recipe.scale, np.nanstd(HOLES, axis=0))
    baked = encoding.transform(recipe, {"kind": "array", "values": HOLES})
    np.testing.assert_allclose(baked[0, 2], (20 - 30) / recipe.scale[1], rtol=1e-6)


def test_an_array_of_images_gets_a_channel_where_one_lacks_values():
    x = np.zeros((4, 3, 3, 2))
    x[..., 1] = 5.0
    x[1, 2, 0, 1] = NAN
    recipe = learn_array(x, ALL, False, [], impute=True)
    assert (recipe.shape, recipe.row_shape) == ((3, 3, 3), (3, 3, 2))
    baked = encoding.transform(recipe, {"kind": "array", "values": x})
    assert baked[1, 2, 0].tolist() == [0.0, 5.0, 1.0]
    assert baked.sum() == 4 * 9 * 5 + 1


def test_an_array_of_logicals_without_missing_values_can_be_learned_from():
    recipe = learn_array(np.array([[True], [False], [True]]), ALL[:3], False, [], impute=True)
    assert recipe.fill == (1.0,)


def test_a_column_of_an_array_without_values_is_named():
    x = np.array([[1.0, NAN], [2.0, NAN]])
    with pytest.raises(DataError, match="Column `2` of `x` is missing in all training rows"):
        learn_array(x, ALL[:2], False, [], impute=True)


def test_an_array_of_another_shape_or_a_data_frame_is_refused():
    recipe = learn_array(np.zeros((4, 2)), ALL, False, [])
    with pytest.raises(DataError, match=r"shape \(2,\), not \(3,\)"):
        encoding.transform(recipe, {"kind": "array", "values": np.zeros((4, 3))})
    with pytest.raises(DataError, match="must be a matrix or array"):
        encoding.transform(recipe, frame(number()))


def test_a_recipe_is_plain_data_that_another_session_can_apply():
    recipe = learn_columns(
        [number(values=(1.0, NAN, 3.0, 4.0)), category(codes=(1, 0, 1, 3))],
        ALL,
        True,
        "onehot",
        impute=True,
    )
    again = pickle.loads(pickle.dumps(recipe))
    assert again == recipe
    new = frame(number(values=(NAN,) * 4), category(codes=(0,) * 4))
    np.testing.assert_array_equal(encoding.transform(again, new), encoding.transform(recipe, new))


def test_same_encoding_ignores_the_labels_statistics_and_names():
    x = np.zeros((4, 2))
    one = learn_array(x, ALL, False, ["a", "b"])
    unnamed = learn_array(x, ALL, False, [])
    scaled = learn_array(x, ALL, True, [])
    assert serialization.same_encoding(Recipe(one), Recipe(unnamed))
    assert not serialization.same_encoding(Recipe(one), Recipe(scaled))
