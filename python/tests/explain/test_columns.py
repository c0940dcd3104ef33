import numpy as np
import pytest
from explained_frames import encode_frame
from series import make_columns, windows

from gpukeras import DataError, SpecError
from gpukeras.data.dataset import map_dataset
from gpukeras.data.recipe.recipe import ArrayEncoding, ImageEncoding, Input, InputsEncoding, Recipe
from gpukeras.explain.columns import choose_groups, find_features
from gpukeras.explain.gradients import sum_columns


def places(recipe):
    return {name: one.places.tolist() for name, one in find_features(recipe).items()}


def test_a_factor_is_one_column_with_a_number_for_each_level():
    data = encode_frame()
    assert places(data.recipe) == {"a": [0], "kind": [1, 2, 3], "b": [4], "flag": [5]}


def test_values_are_encoded_as_rows_are():
    data = encode_frame()
    features = find_features(data.recipe)
    rows = data.arrays[0]
    for name in ("a", "b", "flag"):
        one = features[name]
        np.testing.assert_array_equal(
            one.encode(one.decode(rows[:, one.places[0]]))[:, 0], rows[:, one.places[0]]
        )
    assert features["kind"].encode().tolist() == np.eye(3).tolist()


def test_an_indicator_of_missing_values_goes_with_its_column():
    x = np.arange(12.0).reshape(4, 3)
    x[1, 1] = np.nan
    given = {"kind": "array", "values": x, "names": ["a", "b", "c"]}
    data = map_dataset.build_dataset(given, {"batch_size": 2, "na": "impute", "scale": True})
    assert places(data.recipe) == {"a": [0], "b": [1, 2], "c": [3]}
    features = find_features(data.recipe)
    encoded = features["b"].encode(np.array([x[0, 1]]))
    np.testing.assert_array_equal(encoded[0], data.arrays[0][0, 1:3])


def test_columns_of_one_name_are_all_there():
    recipe = Recipe(ArrayEncoding((5,), names=("u", "v", "u", "u.1", "u")))
    assert places(recipe) == {"u": [0], "v": [1], "u.1": [2], "u.1.1": [3], "u.2": [4]}
    values = np.arange(10.0, dtype=np.float32).reshape(2, 5)
    names, sums = sum_columns(recipe, values)
    assert names == ("u", "v", "u.1", "u.1.1", "u.2")
    np.testing.assert_array_equal(sums, values)


def test_columns_of_several_inputs_are_named_by_both():
    table = ArrayEncoding((2,), names=("u", "v"))
    series = ArrayEncoding((3, 2), names=("w", "z"))
    picture = ImageEncoding((1, 2, 1))
    parts = (Input("table", table), Input("series", series), Input("picture", picture))
    recipe = Recipe(InputsEncoding(parts))
    assert places(recipe) == {
        "table$u": [0],
        "table$v": [1],
        "series$w": [2, 4, 6],
        "series$z": [3, 5, 7],
        "picture": [8, 9],
    }


@pytest.mark.parametrize("known", [None, ["day"]])
def test_a_column_of_a_series_has_all_its_steps(known):
    data = map_dataset.build_dataset(
        windows(make_columns(), known=known), {"batch_size": 8, "shuffle": False}
    )
    features = find_features(data.recipe)
    rows = data.sources[0].gather(slice(3))
    taken = np.sort(np.concatenate([one.places for one in features.values()]))
    assert taken.tolist() == list(range(rows.shape[-1]))
    if known:  # 8 steps of the past and 3 ahead, with a number for each of two levels
        assert len(features["day"].places) == (8 + 3) * 2
        assert set(rows[:, features["day"].places].ravel()) == {0, 1}


def test_groups_take_their_columns_out_of_the_others():
    features = find_features(encode_frame().recipe)
    found = choose_groups(features, None, {"both": ["a", "flag"]})
    assert {name: group.tolist() for name, group in found.items()} == {
        "both": [0, 5],
        "kind": [1, 2, 3],
        "b": [4],
    }
    assert list(choose_groups(features, ["b"], {"size": "a"})) == ["size", "b"]
    with pytest.raises(SpecError, match="`groups` names `c`, which is no column that `model` was"):
        choose_groups(features, None, {"both": ["a", "c"]})
    with pytest.raises(SpecError, match="The group `b` of `groups` has the name of a column that"):
        choose_groups(features, None, {"b": ["a", "flag"]})
    with pytest.raises(SpecError, match="The group `both` of `groups` has no columns"):
        choose_groups(features, None, {"both": []})


def test_rows_without_columns_are_refused():
    with pytest.raises(DataError, match="Rows of images have no columns that can be replaced"):
        find_features(Recipe(ImageEncoding((8, 8, 3))))
    assert not find_features(Recipe(ArrayEncoding((4, 3))))["2"].numeric
