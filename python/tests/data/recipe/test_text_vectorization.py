import pickle
import tracemalloc

import numpy as np
import pytest
from frames import learn_columns
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import DataError, SpecError
from gpukeras.data import arrays
from gpukeras.data.arrays import EncodeOptions
from gpukeras.data.recipe import encoding, text_vectorization
from gpukeras.data.recipe.text_vectorization import TextSpec

LINES = ["A dog.", "a cat, a dog", "A dog.", "", "Vögel & bird"]


def column(lines, name="line", kind="character"):
    levels = sorted({line for line in lines if line is not None})
    codes = [0 if line is None else levels.index(line) + 1 for line in lines]
    return {"name": name, "kind": kind, "values": np.array(codes, np.int32), "levels": levels}


def learn(given_column, keep=None, impute=False, complete=None, **options):
    rows = len(given_column["values"]) if complete is None else complete.sum()
    keep = np.ones(rows, bool) if keep is None else np.array(keep)
    spec = TextSpec(columns=given_column["name"], **options)
    return learn_columns(
        [given_column], keep, False, "onehot", impute=impute, complete=complete, text=spec
    )


def transform(recipe, given_column, **more):
    return encoding.transform(recipe, {"kind": "columns", "columns": [given_column]}, **more)


# Options -----------------------------------------------------------------------------------------


def test_options_are_normalised():
    spec = TextSpec(columns="a", max_tokens=10.0, output="int", sequence_length=4.0, ngrams=2.0)
    assert (spec.columns, spec.max_tokens, spec.sequence_length) == (("a",), 10, 4)
    assert spec.ngrams == (1, 2)
    spec = TextSpec.from_dict({"columns": ["a", "b"], "ngrams": [1.0, 3.0], "standardize": None})
    assert (spec.columns, spec.ngrams, spec.standardize) == (("a", "b"), (1, 3), None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": None}, r"`columns` must be names of columns"),
        ({"columns": [1.0]}, r"`columns` must be names of columns"),
        ({"output": "tfidf"}, r"`output` must be one of"),
        ({"split": "words"}, r"`split` must be one of"),
        ({"standardize": "none"}, r"`standardize` must be one of"),
        ({"max_tokens": 1}, r"`max_tokens` must be a whole number from 2"),
        ({"max_tokens": 2, "output": "int"}, r"`max_tokens` must be .* from 3"),
        ({"max_tokens": 2.0**25}, r"`max_tokens` must be a whole number from 2 to 16777216"),
        ({"sequence_length": 5}, r"`sequence_length` needs `output = \"int\"`"),
        ({"sequence_length": 0, "output": "int"}, r"`sequence_length` must be a whole"),
        ({"ngrams": 0}, r"`ngrams` must be a whole number from 1 to 100"),
        ({"ngrams": [1.0, 1e9]}, r"`ngrams` must be a whole number from 1 to 100"),
        ({"tokens": 3}, "Unknown option `tokens`"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        TextSpec.from_dict({"columns": "a", **options})


# Learning and applying ---------------------------------------------------------------------------


@pytest.mark.tf
@pytest.mark.parametrize(
    ("options", "names", "first", "second"),
    [
        ({"output": "count"}, ["[UNK]", "a", "dog"], [0, 1, 1], [1, 2, 1]),
        ({"output": "multi_hot"}, ["[UNK]", "a", "dog"], [0, 1, 1], [1, 1, 1]),
        ({"output": "int", "max_tokens": 4}, [1, 2, 3, 4], [2, 3, 0, 0], [2, 1, 2, 3]),
        (
            {"output": "int", "max_tokens": 4, "sequence_length": 2},
            [1, 2],
            [2, 3],
            [2, 1],
        ),
        (
            {"output": "count", "ngrams": [2]},
            ["[UNK]", "a dog", "vögel bird"],
            [0, 1, 0],
            [2, 1, 0],
        ),
        (
            {"output": "count", "split": "character", "standardize": "lower"},
            ["[UNK]", " ", "a"],
            [4, 1, 1],
            [6, 3, 3],
        ),
    ],
)
def test_texts_become_features(options, names, first, second):
    given_column = column(LINES)
    recipe = learn(given_column, **{"max_tokens": 3, **options})
    wrap = "line[{}]" if options["output"] == "int" else "line:{}"
    assert recipe.feature_names == tuple(wrap.format(name) for name in names)
    baked = transform(recipe, given_column)
    np.testing.assert_array_equal(baked[:2], [first, second])
    np.testing.assert_array_equal(baked[2], baked[0])


@pytest.mark.tf
def test_weights_are_those_that_keras_learns():
    import keras

    given_column = column(LINES)
    baked = transform(learn(given_column, max_tokens=4), given_column)
    layer = keras.layers.TextVectorization(4, output_mode="tf_idf")
    layer.adapt(np.array(LINES, dtype=object))
    np.testing.assert_allclose(baked, layer(LINES).numpy(), rtol=1e-6)


@pytest.mark.tf
def test_the_vocabulary_is_that_of_the_training_rows():
    given_column = column(["one", "one", "two", "three three"])
    recipe = learn(given_column, keep=[True, True, True, False], output="count")
    assert recipe.columns[0].text.tokens == ("one", "two")
    np.testing.assert_array_equal(transform(recipe, given_column)[3], [2, 0, 0])
    new = column(["two two", "four", ""])
    np.testing.assert_array_equal(transform(recipe, new), [[0, 0, 2], [1, 0, 0], [0, 0, 0]])


@pytest.mark.tf
def test_a_factor_is_text_too_and_other_columns_stay_what_they_are():
    factor, cut = column(LINES, kind="factor"), column(["u", "v"] * 2 + ["u"], "cut", "factor")
    recipe = learn_columns(
        [cut, factor], np.ones(5, bool), True, "codes", text={"columns": "line", "output": "count"}
    )
    baked = encoding.transform(recipe, {"kind": "columns", "columns": [factor, cut]})
    np.testing.assert_array_equal(baked[:, 0], [0, 1, 0, 1, 0])
    np.testing.assert_array_equal(baked[:, 1:], transform(learn(factor, output="count"), factor))


@pytest.mark.tf
@settings(deadline=None, max_examples=10)
@given(
    st.lists(st.text("ab é.", max_size=8), min_size=1, max_size=12),
    st.sampled_from(text_vectorization.OUTPUTS),
    st.sampled_from([16, 200, 2**22]),
)
def test_blocks_change_nothing(lines, output, block):
    given_column = column([*lines, "a b"])
    whole = transform(learn(given_column, output=output), given_column)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "BLOCK_BYTES", block)
        recipe = learn(given_column, output=output)
        np.testing.assert_array_equal(transform(recipe, given_column), whole)
    again = pickle.loads(pickle.dumps(recipe))
    text_vectorization.build_layer.cache_clear()  # as in another session
    np.testing.assert_array_equal(transform(again, given_column), whole)


@pytest.mark.tf
def test_texts_need_little_memory_beside_their_features(monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 2**16)
    words = [f"w{i}" for i in range(200)]
    given_column = column([" ".join(words[i % 190 : i % 190 + 9]) for i in range(20_000)])
    recipe = learn(given_column, output="count")
    tracemalloc.start()
    baked = transform(recipe, given_column)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < baked.nbytes + 100 * len(baked)
    assert baked.sum() == 9 * len(baked)


# Missing texts -----------------------------------------------------------------------------------


@pytest.mark.tf
def test_missing_texts_are_refused_dropped_or_empty():
    holey = column(["a dog", None, "a", "dog dog"])
    recipe = learn(holey, output="count")
    with pytest.raises(DataError, match="Column `line` of `x` has 1 missing value"):
        transform(recipe, holey)
    complete = np.array([True, False, True, True])
    dropped = learn(holey, complete=complete, output="count")
    assert transform(dropped, holey, how=EncodeOptions(complete)).shape == (3, 3)
    imputed = learn(holey, impute=True, output="count")
    assert imputed.feature_names == ("line:[UNK]", "line:dog", "line:a", "line=NA")
    np.testing.assert_array_equal(transform(imputed, holey)[1], [0, 0, 0, 1])
    assert imputed.indicators == ("line",)


def test_a_column_without_a_text_in_its_training_rows_is_refused():
    with pytest.raises(DataError, match="Column `line` of `x` is missing in all training rows"):
        learn(column([None, "a"]), keep=[True, False], impute=True)


@pytest.mark.tf
@pytest.mark.parametrize("lines", [["", "..."], ["[UNK]"]])
def test_a_column_without_a_token_is_refused(lines):
    standardize = None if lines == ["[UNK]"] else "strip_punctuation"
    with pytest.raises(DataError, match="no token in its training rows") as caught:
        learn(column(lines), standardize=standardize)
    assert caught.value.details["column"] == "line"


@pytest.mark.tf
def test_numbers_where_training_had_texts_are_refused():
    recipe = learn(column(["a", "b"]), output="count")
    numbers = {"name": "line", "kind": "numeric", "values": np.array([1.0]), "levels": []}
    with pytest.raises(DataError, match="is a number where training had a text"):
        transform(recipe, numbers)


@pytest.mark.tf
def test_texts_are_vectorised_whatever_the_precision_of_keras():
    import keras

    before = keras.config.floatx()
    given_column = column(LINES)
    wanted = transform(learn(given_column), given_column)
    keras.config.set_floatx("float16")
    try:
        text_vectorization.build_layer.cache_clear()
        np.testing.assert_array_equal(transform(learn(given_column), given_column), wanted)
    finally:
        keras.config.set_floatx(before)
