import dataclasses
import tracemalloc

import numpy as np
import pytest

from gpukeras import DataError, ModelError
from gpukeras.data.recipe.columns import CategoryRule, DateRule, DurationRule, NumberRule, TimeRule
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    ImageEncoding,
    Input,
    InputsEncoding,
    Recipe,
    SeriesEncoding,
    TableEncoding,
    TextEncoding,
)
from gpukeras.data.recipe.windows import WindowRule
from gpukeras.serving import rows
from gpukeras.serving.rows import read_rows

RULES = (NumberRule("a"), CategoryRule("b", levels=("x", "y")))
FRAME = Recipe(TableEncoding(RULES))
MATRIX = Recipe(ArrayEncoding((2,)))
TWO = [{"a": 1, "b": "y", "other": []}, {"b": "x", "a": 2}]


def test_a_frame_by_rows_and_by_columns_is_the_same():
    one = read_rows(FRAME, {"rows": TWO})
    other = read_rows(FRAME, {"columns": {"b": ["y", "x"], "a": [1, 2]}})
    assert (one.count, one.complete) == (2, None)
    for left, right in zip(one.features["columns"], other.features["columns"], strict=True):
        np.testing.assert_array_equal(left["values"], right["values"])
    assert one.features["columns"][1]["values"].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "A request must have `rows` or `columns`, but it has none of them"),
        ({"rows": [], "columns": {}}, "but it has `rows` and `columns`"),
        ({"x": [[1, 2]]}, "but it has `x`"),
        ({"rows": {}}, "`rows` must be an array of objects, one for each row"),
        ({"rows": [1]}, "`rows` must be an array of objects"),
        ({"rows": [{"a": 1}]}, "`rows` lacks the column `b` that the model was trained on"),
        ({"rows": [*TWO, {"a": 1}]}, "`rows` lacks the column `b`"),
        ({"columns": []}, "`columns` must be an object with an array for each column"),
        ({"columns": {"a": [1]}}, "`columns` lacks the column `b`"),
        ({"columns": {"a": [1, 2], "b": ["x"]}}, "Column `b` of `columns` must be an array with"),
        ({"columns": {"a": 1, "b": ["x"]}}, "Column `a` of `columns` must be an array"),
        ({"rows": [{"a": None, "b": "x"}]}, "Column `a` of `rows` has 1 missing value"),
        ({"rows": [{"a": 1, "b": None}]}, "Column `b` of `rows` has 1 missing value"),
    ],
)
def test_frames_of_another_form_are_refused(body, words):
    with pytest.raises(DataError, match=words):
        read_rows(FRAME, body)


def test_rows_that_training_would_leave_out_are_marked():
    recipe = dataclasses.replace(FRAME, na="drop")
    given = read_rows(recipe, {"rows": [TWO[0], {"a": None, "b": "x"}, TWO[1]]})
    assert (given.count, given.size, given.complete.tolist()) == (3, 2, [True, False, True])
    assert given.features["columns"][0]["values"].tolist() == [1, 2]


def test_missing_values_that_are_imputed_stay():
    recipe = dataclasses.replace(FRAME, na="impute")
    given = read_rows(recipe, {"rows": [{"a": None, "b": None}]})
    assert given.complete is None
    assert np.isnan(given.features["columns"][0]["values"]).all()
    counts = TableEncoding((NumberRule("a", offset=True),))
    offset = dataclasses.replace(recipe, features=counts)
    with pytest.raises(DataError, match="1 missing value"):
        read_rows(offset, {"rows": [{"a": None}]})


@pytest.mark.parametrize(
    ("x", "words"),
    [
        ([[1, 2], [3]], "`x` must be an array of rows of numbers, all of the same length"),
        ([["1", "2"]], "`x` must be an array of rows of numbers"),
        ([[1, None, "a"]], "`x` must be an array of rows of numbers"),
        ([[{}]], "`x` must be an array of rows of numbers"),
        ("text", "`x` must be an array of rows of numbers"),
        (3, "`x` must be an array of rows of numbers"),
        ([[10**400, 1]], "`x` must be an array of rows of numbers"),
        ([[[[[[1]]]]]], "`x` must be an array of rows of numbers"),
        ([[1, 2, 3]], r"Each row of `x` must have shape \(2,\), not \(3,\)"),
        ([[1, None]], "`x` has 1 missing value"),
        ([[1, float("inf")]], "`x` holds 1 infinite number"),
    ],
)
def test_arrays_of_another_form_are_refused(x, words):
    with pytest.raises(DataError, match=words):
        read_rows(MATRIX, {"x": x})


def test_texts_in_an_array_take_no_memory():
    x = ["a" * 20_000, *["b"] * 2_000]  # NumPy's array of these has 160 MB
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="`x` must be an array of rows of numbers"):
            read_rows(None, {"x": x})
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_rows_of_another_shape_than_the_models_are_refused():
    shape = (None, 2)
    assert read_rows(None, {"x": [[[1, 2], [3, 4]]]}, shape).count == 1
    assert read_rows(None, {"x": []}, shape).count == 0
    for x in ([[1, 2]], [[[1]]], [[], []]):
        with pytest.raises(DataError, match=r"Each row of `x` must have shape \(None, 2\), not"):
            read_rows(None, {"x": x}, shape)


def test_arrays_with_and_without_a_recipe():
    assert read_rows(MATRIX, {"x": [[1, True], [2, 2.5]]}).features["values"].tolist() == [
        [1, 1],
        [2, 2.5],
    ]
    assert read_rows(None, {"x": [1, 2]}).form == ("array", (1,))
    assert read_rows(None, {"x": [[[1], [2]]]}).form == ("array", (2, 1))
    dropping = dataclasses.replace(MATRIX, na="drop")
    assert read_rows(dropping, {"x": [[1, None], [1, 2]]}).complete.tolist() == [False, True]
    with pytest.raises(DataError, match="A request must have `x`, but it has `rows`"):
        read_rows(None, {"rows": []})


@pytest.mark.parametrize(
    ("recipe", "found"),
    [
        (Recipe(ImageEncoding((8, 8, 3))), "images"),
        (Recipe(TextEncoding((1,))), "texts"),
        (
            Recipe(SeriesEncoding(RULES[:1], windows=WindowRule(window=3, time="t"))),
            "windows of time series",
        ),
        (Recipe(InputsEncoding((Input("one", MATRIX.features),))), "several inputs"),
        (dataclasses.replace(MATRIX, mapped=True), "rows after a function of yours"),
        (
            dataclasses.replace(FRAME, formula=f"recipe {'0' * 32}: normalize, pca"),
            "rows after the steps of a recipe in R",
        ),
    ],
)
def test_models_of_other_rows_are_refused(recipe, found):
    words = f"`model` takes {found}, but gpu_serve\\(\\) serves models of a data frame or a matrix"
    with pytest.raises(ModelError, match=words):
        rows.check_servable(recipe)


def test_frames_matrices_and_no_recipe_are_served():
    stepless = dataclasses.replace(FRAME, formula=f"recipe {'0' * 32}: ")
    for recipe in (None, FRAME, MATRIX, stepless):
        rows.check_servable(recipe)
    unknown = Recipe(TableEncoding((TimeRule("t", zone="Mars/Olympus"),)))
    with pytest.raises(DataError, match="Column `t` has the unknown time zone"):
        rows.check_servable(unknown)


def test_rows_of_several_requests_stay_in_order():
    texts = Recipe(TableEncoding((RULES[0], CategoryRule("t", bins=8))))
    bodies = [["u", "v"], ["w", None], ["v", "u"]]
    parts = [
        read_rows(
            dataclasses.replace(texts, na="impute"), {"columns": {"a": [k, k + 0.5], "t": body}}
        ).features
        for k, body in enumerate(bodies)
    ]
    joined = rows.join(parts)["columns"]
    assert joined[0]["values"].tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
    named = [joined[1]["levels"][code - 1] if code else None for code in joined[1]["values"]]
    assert named == ["u", "v", "w", None, "v", "u"]
    arrays = [read_rows(MATRIX, {"x": [[k, k]]}).features for k in range(3)]
    assert rows.join(arrays)["values"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert rows.join(arrays[:1]) is arrays[0]


def test_padding_repeats_the_last_row():
    features = read_rows(FRAME, {"rows": TWO}).features
    padded = rows.pad(features, 2, 4)["columns"]
    assert padded[0]["values"].tolist() == [1, 2, 2, 2]
    assert rows.pad(features, 2, 2) is features


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, [1]), (4, [1, 4]), (100, [1, 4, 16, 64, 100]), (256, [1, 4, 16, 64, 256])],
)
def test_batches_have_few_sizes(most, sizes):
    assert rows.list_sizes(most) == sizes
    for count in range(1, most + 1):
        assert count <= rows.choose_size(count, most) in sizes


def test_blank_rows_fit_the_recipe():
    rules = (
        NumberRule("number"),
        CategoryRule("category", levels=("x",)),
        DateRule("date"),
        TimeRule("time"),
        DurationRule("duration", units="hours"),
    )
    blank = rows.blank_rows(Recipe(TableEncoding(rules)), None)
    assert blank.count == 1
    assert rows.blank_rows(MATRIX, None).features["values"].shape == (1, 2)
    assert rows.blank_rows(None, (3, 2)).features["values"].shape == (1, 3, 2)
    assert rows.blank_rows(None, (None, 2)) is None
    assert rows.blank_rows(None, None) is None
