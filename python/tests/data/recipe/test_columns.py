import numpy as np
import pytest
from frames import NAN, column, date, learn, learn_array, learn_columns, learning, transform
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_slots import slots

from gpukeras import DataError, SpecError
from gpukeras.core.options import DatasetSpec
from gpukeras.data import arrays
from gpukeras.data.dataset import map_dataset
from gpukeras.data.reader.table.columns import Encoder
from gpukeras.data.recipe import columns, encoding, serialization
from gpukeras.data.recipe.recipe import Recipe

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
    baked, missing = transform(rule, column(x)), np.isnan(x)
    back = baked[:, 0] * rule.scale + rule.center
    known = np.where(missing, rule.fill, x) if rule.scale else np.full(len(x), rule.center)
    np.testing.assert_allclose(back, known, atol=1e-2)
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
    np.testing.assert_array_equal(transform(rule, given_column)[:, :3], np.eye(3)[filled])


def test_the_indicator_follows_the_columns_own_features():
    assert learn(column([1.0, NAN])).features == ("size", "size=NA")
    factor = column([1, 0, 2], "factor", ["u", "v"], "cut")
    assert learn(factor).features == ("cut=u", "cut=v", "cut=NA")
    assert learn(factor, onehot=False).features == ("cut", "cut=NA")
    assert learn(column([1.0, 2.0])).features == ("size",)


def test_what_was_whole_in_training_is_imputed_without_indicator():
    rule = learn(column([1.0, 2.0, 9.0]), scale=False)
    np.testing.assert_array_equal(transform(rule, column([NAN, 5.0])), [[2.0], [5.0]])
    rule = learn(column([2, 2, 1], "factor", ["u", "v"]))
    np.testing.assert_array_equal(transform(rule, column([0], "factor", [])), [[0, 1]])


@pytest.mark.parametrize("kind", ["logical", "character"])
@pytest.mark.parametrize(
    "trained",
    [
        column([1, 2, 0], "factor", ["u", "v"]),
        column([1.0, 3.0, NAN]),
        date(1, 3, NAN),
        column([60.0, 90.0, NAN], "duration", units="mins"),
        column([0.0, 86400.0, NAN], "time", zone="UTC", offsets=np.zeros(3)),
    ],
    ids=lambda trained: trained["kind"],
)
def test_a_column_without_any_value_is_of_the_kind_of_training(trained, kind):
    rule = learn(trained)
    empty = column([0, 0] if kind == "character" else [NAN, NAN], kind, name=rule.name)
    expected = transform(rule, trained)[[2, 2]]
    np.testing.assert_array_equal(transform(rule, empty), expected)


def test_statistics_are_those_of_the_values_that_are_there():
    rule = learn(column([1.0, NAN, 3.0, 100.0]), keep=[True, True, True, False])
    assert (rule.center, rule.scale, rule.fill) == (2.0, 1.0, 2.0)


def test_logicals_become_their_mode_unscaled():
    rule = learn(column([1.0, NAN, 1.0, 0.0], "logical"))
    np.testing.assert_array_equal(
        transform(rule, column([1.0, NAN, 1.0, 0.0], "logical")), [[1, 0], [1, 1], [1, 0], [0, 0]]
    )


def test_a_fill_level_is_found_by_name_in_other_data():
    rule = learn(column([2, 2, 1], "factor", ["u", "v"]), onehot=False)
    np.testing.assert_array_equal(transform(rule, column([0, 1], "factor", ["v", "u"])), [[1], [1]])


def test_missing_values_are_refused_where_nothing_was_learned_to_impute():
    number, factor = column([1.0, 2.0]), column([1, 2], "factor", ["u", "v"], "cut")
    with pytest.raises(DataError, match="Column `size` of `newdata` has 1 missing value") as caught:
        transform(learn(number, impute=False), column([NAN, 1.0]))
    assert 'na = "drop"' in caught.value.hint
    with pytest.raises(DataError, match="Column `cut` of `newdata` has 2 missing values"):
        transform(learn(factor, impute=False), column([0, 0], "factor", ["u", "v"], "cut"))


def test_infinite_values_stay_an_error():
    with pytest.raises(DataError, match="1 infinite"):
        learn(column([1.0, NAN, np.inf]))


# Hashed categories -------------------------------------------------------------------------------

ALL = np.ones(4, bool)
CITY = column([1, 2, 3, 1], "character", ["Köln", "東京", "Oslo"], "city")


def hashed(given, bins=8, impute=False):
    keep = np.ones(len(given["values"]), bool)
    return columns.learn_column(given, learning(keep, True, "hash", impute, hash_bins=bins))


def test_a_hashed_category_becomes_its_bins():
    rule = hashed(CITY)
    assert rule.features == tuple(f"city#{place}" for place in range(1, 9))
    assert (rule.bins, rule.levels, rule.kind) == (8, (), "category")
    bins = columns.choose_bins(["Köln", "東京", "Oslo", "Köln"], 8)
    np.testing.assert_array_equal(transform(rule, CITY), np.eye(8)[bins])


def test_no_level_is_unknown_to_a_hash_and_its_order_does_not_matter():
    rule = hashed(CITY)
    new = column([2, 1], "factor", ["Oslo", "Bergen"], "city")
    expected = np.eye(8)[columns.choose_bins(["Bergen", "Oslo"], 8)]
    np.testing.assert_array_equal(transform(rule, new), expected)


def test_identifiers_can_be_hashed_but_not_be_levels():
    ids = column(range(1, 2001), "character", [f"id {i}" for i in range(2000)], "id")
    assert transform(hashed(ids), ids).sum() == 2000
    with pytest.raises(DataError, match="2000 different texts") as caught:
        learn(ids, impute=False)
    assert 'encode = "hash"' in caught.value.hint
    with pytest.raises(DataError, match="too many for one-hot") as caught:
        learn({**ids, "kind": "factor"}, impute=False)
    assert 'encode = "hash"' in caught.value.hint


def test_a_missing_hashed_category_is_imputed_or_refused():
    holey = {**CITY, "values": np.array([1, 0, 3, 1])}
    with pytest.raises(DataError, match="Column `city` of `newdata` has 1 missing value"):
        transform(hashed(CITY), holey)
    rule = hashed(holey, impute=True)
    assert (rule.fill, rule.indicator, rule.features[-1]) == ("Köln", True, "city=NA")
    baked = transform(rule, holey)
    np.testing.assert_array_equal(baked[1, :8], baked[0, :8])
    np.testing.assert_array_equal(baked[:, 8], [0, 1, 0, 0])


def test_codes_without_a_level_are_refused_where_they_are_hashed():
    with pytest.raises(DataError, match="Column `city` of `newdata` has codes outside"):
        transform(hashed(CITY), {**CITY, "values": np.array([9])})


# Options by column -------------------------------------------------------------------------------

SIZE = column([1.0, 2.0, 3.0, 4.0])
CUT = column([1, 2, 1, 2], "factor", ["u", "v"], "cut")


def learn_all(*given, **options):
    options = {"encode": "onehot", **options}
    return learn_columns(given, ALL, True, arg="data", **options)


def test_each_category_can_have_its_own_encoding():
    recipe = learn_all(SIZE, CUT, CITY, encode={"cut": "codes", "city": "hash"}, hash_bins=2)
    assert recipe.feature_names == ("size", "cut", "city#1", "city#2")
    recipe = learn_all(SIZE, CUT, CITY, encode={"city": "codes"})
    assert recipe.feature_names == ("size", "cut=u", "cut=v", "city")
    assert learn_all(SIZE, encode={}).feature_names == ("size",)


@pytest.mark.parametrize(
    ("options", "arg", "name", "message"),
    [
        ({"encode": "bins"}, "encode", None, "`encode` must be one of"),
        ({"encode": {"color": "hash"}}, "encode", "color", "no feature column of `data`"),
        ({"encode": {"size": "hash"}}, "encode", "size", "is a number, not a factor or text"),
        ({"encode": {"cut": "bins"}}, "encode", "cut", 'one of onehot, codes, hash, not "bins"'),
        ({"text": {"max_tokens": 9}}, "text", None, "`text` names no column"),
        ({"text": {"columns": "note"}}, "text", "note", "no feature column of `data`"),
        ({"text": {"columns": ["size"]}}, "text", "size", "is a number, not a factor or text"),
        (
            {"text": {"columns": "city"}, "encode": {"city": "hash"}},
            "encode",
            "city",
            "is one of the columns of `text`",
        ),
    ],
)
def test_options_that_do_not_fit_the_columns_are_refused(options, arg, name, message):
    with pytest.raises(SpecError, match=message) as caught:
        learn_all(SIZE, CUT, CITY, **options)
    assert (caught.value.details["arg"], caught.value.details.get("column")) == (arg, name)


# Digits ------------------------------------------------------------------------------------------


def noted(rule, given):
    notes = arrays.Notes()
    out = np.empty((len(given["values"]), len(rule.features)), np.float32)
    columns.transform_column(rule, given, out, "data", notes)
    return notes.sentences


@pytest.mark.parametrize(
    ("given_column", "scale", "sentences"),
    [
        (column([2.0**24 + 1, 3.0]), False, ["Column `size` of `data` has 1 whole number beyond"]),
        (column([2.0**24 + 1, 3.0]), True, []),
        (column([2.0**24 + 0.5, NAN]), False, []),
        (column([2.0**24 + 1, NAN]), False, ["Column `size` of `data` has 1 whole number beyond"]),
        (column([2**24 + 1, 2**25 + 1], "integer"), False, ["Column `size` of `data` has 2"]),
        (column([2**53 + 1, 2**60 + 1, 7], "integer"), True, ["Column `size` of `data` has 2"]),
        (column([2**53, 2**60, 7], "integer"), True, []),
        (column([2.0**24 + 1, 3.0], "duration", units="secs"), False, ["Column `size`"]),
        (column([19000.0, 2e4], "date"), False, []),
        (column([1, 2], "factor", ["u", "v"]), False, []),
    ],
)
def test_whole_numbers_that_lose_digits_are_noted(given_column, scale, sentences):
    found = noted(learn(given_column, scale=scale), given_column)
    assert len(found) == len(sentences)
    assert all(note.startswith(start) for note, start in zip(found, sentences, strict=True))


def test_integers_of_64_bits_are_scaled_in_double_precision():
    given_column = column(np.array([2**40, 2**40 + 2]), "integer")
    np.testing.assert_array_equal(transform(learn(given_column), given_column), [[-1], [1]])


# Values that training rows did not have ----------------------------------------------------------


def test_other_values_of_a_number_that_never_varied_are_0_and_noted():
    rule = learn(column([0.1, 0.1, 0.1, 7.0]), [True, True, True, False])
    other = column([0.1, 7.0, -3.0])
    assert (rule.center, rule.scale) == (0.1, 0.0)
    np.testing.assert_array_equal(transform(rule, other), np.zeros((3, 1)))
    by_block = np.empty((3, 1), np.float32)
    notes = arrays.Notes()
    Encoder([rule], "data", notes).encode({"size": other}, by_block)
    np.testing.assert_array_equal(by_block, np.zeros((3, 1)))
    said = (
        "Column `size` of `data` was the same in all training rows: its other values do not count."
    )
    assert noted(rule, other) == notes.sentences == (said,)
    assert noted(rule, column([0.1, 0.1])) == ()


def test_a_number_that_is_not_scaled_keeps_its_other_values_and_is_noted():
    rule = learn(column([2.0, 2.0]), scale=False, impute=False)
    np.testing.assert_array_equal(transform(rule, column([2.0, 5.0]))[:, 0], [2, 5])
    said = "the model has not learned what its other values do."
    assert noted(rule, column([2.0, 5.0]))[0].endswith(said)
    assert noted(rule, column([2.0, 2.0])) == ()


def test_a_level_without_a_training_row_is_noted():
    given_column = column([1, 1, 3], "factor", ["u", "v", "w"])
    rule = learn(given_column, [True, True, False])
    assert noted(rule, given_column)[0] == (
        "Column `size` of `data` has levels without a training row: "
        "the model has not learned what they do."
    )
    assert noted(rule, column([1, 1], "factor", ["u"])) == ()


def test_numbers_of_which_later_rows_may_vary_are_learned():
    rule = columns.learn_column(
        column([2.0, 2.0]),
        columns.Learning(np.ones(2, bool), DatasetSpec(scale=True), whole=False),
    )
    np.testing.assert_array_equal(transform(rule, column([2.0, 5.0]))[:, 0], [0, 3])


@pytest.mark.parametrize("kind", ["array", "sparse", "npy"])
def test_columns_of_a_matrix_that_never_varied_are_0_and_named_together(kind, tmp_path):
    known = np.array([[1.0, 0.0, 0.0], [2.0, 0.0, 0.0]])
    new = np.array([[1.0, 4.0, 0.0], [2.0, 0.0, 5.0]])

    def given_rows(x):
        if kind == "npy":
            path = tmp_path / f"{x.sum()}.npy"
            np.save(path, x)
            return {"kind": "npy", "path": str(path)}
        return slots(x) if kind == "sparse" else {"kind": "array", "values": x}

    train = map_dataset.build_dataset(given_rows(known), {"scale": True})
    data = map_dataset.build_dataset(given_rows(new), {}, recipe=train.recipe)
    encoded = data.sources[0].gather(np.arange(2))
    np.testing.assert_array_equal(encoded, train.sources[0].gather(np.arange(2)))
    said = (
        "Columns `2`, `3` of `x` were the same in all training rows: "
        "their other values do not count."
    )
    assert data.notes == (said,)
    assert train.notes == ()


# Whole data frames -------------------------------------------------------------------------------


def test_dropping_and_imputing_differ_only_where_values_are_missing():
    given_columns = [column([1.0, NAN, 3.0]), date(1, 2, 9)]
    complete = np.array([True, False, True])
    dropped = learn_columns(given_columns, np.ones(2, bool), True, "onehot", complete=complete)
    features = {"kind": "columns", "columns": given_columns}
    baked = encoding.transform(dropped, features, how=arrays.EncodeOptions(complete))
    assert baked.shape == (2, 6)
    np.testing.assert_allclose(baked[:, :2], [[-1, -1], [1, 1]], rtol=1e-6)
    assert dropped.indicators == ()
    imputed = learn_columns(given_columns, np.ones(3, bool), True, "onehot", impute=True)
    assert imputed.indicators == ("size",)
    assert not serialization.same_encoding(Recipe(dropped), Recipe(imputed))


def test_notes_name_columns_and_arrays_through_a_recipe():
    notes, ids = arrays.Notes(), column([2.0**24 + 1, 2.0, 3.0, 4.0], name="id")
    recipe = learn_columns([SIZE, ids], ALL, False, "onehot")
    features = {"kind": "columns", "columns": [SIZE, ids]}
    encoding.transform(recipe, features, "data", arrays.EncodeOptions(notes=notes))
    x = np.array([[2.0**25 + 1]])
    recipe = learn_array(x, ALL[:1], False, ["key"])
    encoding.transform(
        recipe, {"kind": "array", "values": x}, how=arrays.EncodeOptions(notes=notes)
    )
    assert [note.split(" has ")[0] for note in notes.sentences] == [
        "Column `id` of `data`",
        "Column `key` of `x`",
    ]


@pytest.mark.parametrize(
    ("levels", "noted"),
    [
        (["1", "2.5", "-3e4"], True),
        ([*map(str, range(20)), "?"], True),  # all but a few: what spoils the column is not theirs
        (["1,234", "12,345", " 7 "], True),
        (["1", "2"], False),  # two classes may well be called so
        (["007", "010", "011"], False),  # codes
        (["1", "2", "3", "unknown"], False),
        (["a", "b", "c"], False),
    ],
)
def test_numbers_as_text_are_noted(levels, noted):
    rule = columns.CategoryRule("hp", tuple(levels))
    (*found,) = columns.note_numbers([rule], ["hp"], "data")
    assert bool(found) == noted
    assert not noted or found[0].startswith(
        f"Column `hp` of `data` holds numbers as text: it became {len(levels)} columns"
    )
    assert not columns.note_numbers([rule], [], "data")  # a factor


def test_a_dataset_tells_of_numbers_as_text(tmp_path):
    text = column([1, 2, 3, 4], "character", ["1.5", "2", "3", "40"], name="hp")
    frame = {"kind": "columns", "columns": [text]}
    inputs = [{"name": "engine", "features": frame, "scale": True}]
    path = tmp_path / "cars.csv"
    path.write_text('hp,y\n"1.5",1\n"2",2\n"3",3\n"-",4\n' + '"4",5\n"5",6\n"6",7\n"7",8\n' * 9)
    table = {"kind": "table", "paths": [str(path)], "label": "y"}
    several = {"kind": "inputs", "inputs": inputs}
    for features, where in ((frame, "x"), (several, "x$engine")):
        notes = map_dataset.build_dataset(features, {}).notes
        assert [note[: note.index(" holds")] for note in notes] == [f"Column `hp` of `{where}`"]
    (note,) = map_dataset.build_dataset(table, {}).notes
    assert "became 8 columns" in note
    for chosen in ({"hp": "onehot"}, "hash", "codes"):
        assert not map_dataset.build_dataset(frame, {"encode": chosen}).notes
    learned = map_dataset.build_dataset(frame, {}).recipe
    assert not map_dataset.build_dataset(frame, {}, recipe=learned).notes  # it was said once


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("impute", [True, False])
def test_an_offset_is_taken_as_it_is(scale, impute):
    given_column = {**column([1.0, 5.0, 6.0]), "offset": True}
    how = learning(np.ones(3, dtype=bool), scale, impute=impute)
    rule = columns.learn_column(given_column, how)
    assert rule.offset
    np.testing.assert_array_equal(transform(rule, column([1.0, 5.0, 7.5]))[:, 0], [1.0, 5.0, 7.5])
    missing = r'`newdata` has 1 missing value. Remove those rows, or use `na = "drop"`'
    with pytest.raises(DataError, match=missing):
        transform(rule, column([1.0, NAN]))
    with pytest.raises(DataError, match="`size` of `newdata` has values .* 1 infinite"):
        transform(rule, column([-np.inf, 1.0]))


def test_an_offset_that_lacks_a_value_is_refused_where_others_are_imputed():
    features = {"kind": "columns", "columns": [column([1.0, NAN], name="a")]}
    offset = {**column([1.0, NAN], name="e"), "offset": True}
    groups = [{"name": "features", "columns": ["a"]}, {"name": "offset", "columns": ["e"]}]
    given_features = {**features, "columns": [*features["columns"], offset], "groups": groups}
    options = {"validation": 0, "seed": 1, "na": "impute", "scale": True}
    with pytest.raises(DataError, match="`e` of `x` has 1 missing value"):
        map_dataset.build_dataset(given_features, options)
    data = map_dataset.build_dataset(given_features, {**options, "na": "drop"})
    assert [group.name for group in data.recipe.features.groups] == ["features", "offset"]
    np.testing.assert_array_equal(data.arrays[0][:, -1], [1.0])


@pytest.mark.parametrize("kind", ["numeric", "integer"])
def test_logicals_are_no_numbers_unless_they_are_all_missing(kind):
    rule = learn(column(np.array([3, 5, 4]), kind, name="count"))
    given = column(np.array([True, False, True]), "logical", name="count")
    with pytest.raises(DataError, match="`count` of `newdata` holds TRUE and FALSE") as caught:
        transform(rule, given)
    assert "as.integer()" in caught.value.hint
    with pytest.raises(DataError, match="`count` of `newdata` holds TRUE and FALSE"):
        Encoder([rule], "newdata").encode({"count": given}, np.empty((3, 1), np.float32))
    empty = column([NAN, NAN], "logical", name="count")
    out = np.empty((2, 1), np.float32)
    Encoder([rule], "newdata").encode({"count": empty}, out)
    np.testing.assert_array_equal(out, transform(rule, empty))


@pytest.mark.parametrize("kind", ["numeric", "integer"])
def test_numbers_are_logicals_only_if_they_are_0_and_1(kind):
    flags = column(np.array([True, False, True]), "logical", name="flag")
    rule = learn(flags, impute=False)
    given = column(np.array([1, 0, 1]), kind, name="flag")
    np.testing.assert_array_equal(transform(rule, given), transform(rule, flags))
    for odd in ([1, 0, 7], [-1, 0, 0]):
        given = column(np.array(odd), kind, name="flag")
        expected = "Column `flag` of `newdata` has 1 number other than 0 and 1"
        with pytest.raises(DataError, match=expected):
            transform(rule, given)
        with pytest.raises(DataError, match=expected):
            Encoder([rule], "newdata").encode({"flag": given}, np.empty((3, 1), np.float32))
