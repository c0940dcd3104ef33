import numpy as np
import pytest

from gpukeras import DataError
from gpukeras.data.dataset import map_dataset
from gpukeras.data.recipe.targets import are_numbers, explain_conversion

STYLES = [
    (["1.5", "-2", "3e4"], "as.numeric(price)."),
    (["1,234", "12,345,678", "9"], 'as.numeric(gsub(",", "", price)).'),
    (["1,5", "-0,25", "3"], 'as.numeric(sub(",", ".", price, fixed = TRUE)).'),
    (
        ["1.234,5", "-0,25", "3,1"],
        'as.numeric(sub(",", ".", gsub(".", "", price, fixed = TRUE), fixed = TRUE)).',
    ),
    (["12.5 %", "3%", "0 %"], 'as.numeric(sub("%", "", price, fixed = TRUE)).'),
    (["12.5 %", "$3", "0 %"], 'as.numeric(gsub("[$%]", "", price)).'),
    (["$1,200", "$3.5", "$7"], 'as.numeric(gsub(",", "", sub("$", "", price, fixed = TRUE))).'),
    (["1.5", "-", "2", "3", "n/a"], 'as.numeric(price). A text such as "-" becomes NA.'),
]


@pytest.mark.parametrize(("texts", "advice"), STYLES)
def test_r_makes_numbers_of_texts(texts, advice):
    assert are_numbers(texts)
    assert f"Make numbers of them: {advice}" in explain_conversion(texts, "price")
    assert "as.character(x)" in explain_conversion(texts, "a b", factor=True)


@pytest.mark.parametrize(
    "texts",
    [["a", "b", "c"], ["007", "012", "019"], ["1", "2"], ["1", "2", "b", "c"], ["-", "", "?"], []],
)
def test_other_texts_are_no_numbers(texts):
    assert not are_numbers(texts)


def column(texts, name="price", kind="character"):
    levels = sorted(set(texts))
    codes = [levels.index(text) + 1 for text in texts]
    return {"name": name, "kind": kind, "values": np.array(codes), "levels": levels}


def test_many_numbers_as_text_are_told_so_as_feature_and_as_label():
    texts = [f"{1000 + number:,}" for number in range(60)]
    frame = {"kind": "columns", "columns": [column(texts)]}
    with pytest.raises(DataError, match="60 different texts in 60 rows, most of which are") as told:
        map_dataset.build_dataset(frame, {})
    assert told.value.hint.startswith('Make numbers of them: as.numeric(gsub(",", "", price))')
    rows = {"kind": "array", "values": np.ones((60, 1))}
    label = {**column(texts, "y"), "arg": "y"}
    with pytest.raises(DataError, match="`y` has 60 different texts, most of which are") as told:
        map_dataset.build_dataset(rows, {}, label)
    assert 'as.numeric(gsub(",", "", y))' in told.value.hint
    few = {**column(["1", "2", "3"] * 20, "y"), "arg": "y"}
    assert "learned as 3 classes" in map_dataset.build_dataset(rows, {}, few).notes[0]
    for fine in ({**few, "kind": "factor"}, {**label, "kind": "factor"}):
        assert not any(
            "as text" in note for note in map_dataset.build_dataset(rows, {}, fine).notes
        )
