import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules import label_rule

from gpukeras import DataError, SpecError
from gpukeras.data import arrays
from gpukeras.data.dataset import map_dataset
from gpukeras.data.recipe import decoding, targets

ALL = np.ones(4, dtype=bool)


def label(kind, values, levels=(), **more):
    return {"kind": kind, "values": np.array(values), "levels": list(levels), **more}


@pytest.mark.parametrize(
    ("y", "kind", "units"),
    [
        (label("factor", [1, 2, 1, 2], ["no", "yes"]), "class", 2),
        (label("character", [1, 2, 3, 1], ["a", "b", "c"]), "class", 3),
        (label("factor", [1, 1, 2, 2], ["a", "b", "unused"]), "class", 3),
        (label("logical", [True, True, True, True]), "binary", 1),
        (label("numeric", [0.0, 1.0, 1.0, 0.0]), "binary", 1),
        (label("integer", [0, 0, 0, 0]), "number", 1),
        (label("integer", [0, 1, 2, 1]), "number", 1),
        (label("matrix", [[1.0, 2.0]] * 4), "matrix", 2),
    ],
)
def test_learn_label_tells_kinds_apart(y, kind, units):
    rule = targets.learn_label(y, ALL)
    assert (rule.kind, rule.units) == (kind, units)


def test_numbers_keep_the_training_rows_statistics_and_the_range_of_all():
    y = label("numeric", [1.0, 3.0, 100.5, -5.0])
    rule = targets.learn_label(y, np.array([True, True, False, False]))
    assert (rule.center, rule.scale) == (2.0, 1.0)
    measured = targets.measure_range(rule, targets.encode_label(rule, y))
    assert (measured.minimum, measured.maximum, measured.whole) == (-5.0, 100.5, False)


def test_a_named_column_of_a_label_matrix_is_named():
    y = label("matrix", [[1.0, np.nan], [2.0, 3.0]], names=["width", "depth"])
    with pytest.raises(DataError, match="Column `depth` of `y`"):
        targets.learn_label(y, np.ones(2, bool))


def test_classes_become_codes_from_zero_by_level_name():
    rule = targets.learn_label(label("factor", [1, 2, 1, 2], ["no", "yes"]), ALL)
    codes = targets.encode_label(rule, label("factor", [1, 2, 2, 2], ["yes", "no"]))
    np.testing.assert_array_equal(codes, [1, 0, 0, 0])
    assert codes.dtype == np.int32


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (label("factor", [1, 1, 1, 1], ["only"]), "at least two levels"),
        (label("numeric", [1.0, np.nan, 2.0, 3.0]), "1 missing"),
        (label("matrix", [[1.0, np.inf]] * 4), "4 infinite"),
    ],
)
def test_learn_label_refuses(y, message):
    with pytest.raises(DataError, match=message):
        targets.learn_label(y, ALL)


def test_encode_label_refuses_another_kind_and_new_levels():
    rule = targets.learn_label(label("factor", [1, 2, 1, 2], ["no", "yes"]), ALL)
    with pytest.raises(DataError, match="`y` holds numbers where training had"):
        targets.encode_label(rule, label("numeric", [1.0]))
    with pytest.raises(DataError, match="perhaps"):
        targets.encode_label(rule, label("factor", [3], ["no", "yes", "perhaps"]))


def test_encode_label_refuses_a_matrix_of_another_width():
    rule = targets.learn_label(label("matrix", [[1.0, 2.0]] * 4), ALL)
    with pytest.raises(DataError, match="2 columns"):
        targets.encode_label(rule, label("matrix", [[1.0, 2.0, 3.0]]))


def test_a_vector_and_a_matrix_of_one_column_are_the_same_labels():
    vector, matrix = label("numeric", [1.0, 2.5]), label("matrix", [[1.0], [2.5]])
    for known, new in [(vector, matrix), (matrix, vector)]:
        rule = targets.learn_label(known, ALL[:2])
        found = targets.encode_label(rule, new)
        np.testing.assert_array_equal(found, targets.encode_label(rule, known))


# Levels come back --------------------------------------------------------------------------------

UTF8 = ["größer", "日本", "naïve café", "🙂", "plain", "with space", ""]


@given(
    st.lists(st.text(max_size=5), min_size=2, max_size=8, unique=True),
    st.sampled_from(["factor", "character"]),
    st.data(),
)
def test_levels_come_back_from_their_codes(levels, kind, data):
    codes = data.draw(st.lists(st.integers(1, len(levels)), min_size=1, max_size=20))
    y = label(kind, codes, levels)
    rule = targets.learn_label(y, np.ones(len(codes), bool))
    encoded = targets.encode_label(rule, y)
    back = decoding.decode(rule, np.eye(len(levels))[encoded], decoding.HIGHEST)
    assert back["values"].tolist() == codes
    assert back["levels"] == levels


def test_levels_in_utf8_unused_and_ordered_keep_names_and_order():
    y = label("factor", [2, 1, 4, 7], UTF8)  # an ordered factor is a factor: its order is kept
    rule = targets.learn_label(y, ALL)
    assert (rule.units, rule.levels) == (7, tuple(UTF8))
    np.testing.assert_array_equal(targets.encode_label(rule, y), [1, 0, 3, 6])
    assert decoding.decode(rule, np.zeros((2, 7)))["names"] == UTF8
    fewer = label("factor", [1, 2], ["🙂", "größer"])
    np.testing.assert_array_equal(targets.encode_label(rule, fewer), [3, 0])


def test_names_of_a_label_matrix_come_back():
    y = label("matrix", [[1.0, 2.0]] * 4, names=["Länge", "幅"])
    rule = targets.learn_label(y, ALL)
    assert decoding.decode(rule, np.zeros((1, 2)))["names"] == ["Länge", "幅"]


# Many labels -------------------------------------------------------------------------------------

MANY = 10**6


def many(kind):
    rng = np.random.default_rng(1)
    if kind == "matrix":
        return label("matrix", np.asfortranarray(rng.normal(size=(MANY // 2, 2))))
    if kind == "factor":
        return {
            "kind": kind,
            "values": rng.integers(1, 11, MANY, np.int32),
            "levels": list("abcdefghij"),
        }
    values = rng.integers(0, 2 if kind == "binary" else 50, MANY)
    return label("numeric", values.astype(np.int64 if kind == "integer" else np.float64))


def peak_of(work):
    tracemalloc.start()
    try:
        result = work()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["numeric", "integer", "binary", "matrix", "factor"])
def test_labels_need_little_memory_beside_their_encoding(kind, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 2**16)
    y, blocks = many(kind), 10 * 2**16
    keep = np.ones(len(y["values"]), bool)
    rule, peak = peak_of(lambda: targets.learn_label(y, keep))
    assert peak < blocks
    encoded, peak = peak_of(lambda: targets.encode_label(rule, y, arrays.Notes()))
    assert peak < encoded.nbytes + blocks
    measured, peak = peak_of(lambda: targets.measure_range(rule, encoded))
    assert peak < blocks
    if kind in ("numeric", "integer"):
        assert (measured.minimum, measured.maximum, measured.whole) == (0.0, 49.0, True)
        np.testing.assert_allclose([rule.center, rule.scale], [24.5, 14.43], rtol=1e-2)
    assert rule.kind == {"factor": "class", "integer": "number", "numeric": "number"}.get(
        kind, kind
    )


@given(st.lists(st.sampled_from([0.0, 1.0, -0.0, 2.0]), min_size=1, max_size=12), st.integers(1, 5))
def test_binary_is_zero_and_one_and_both(values, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "BLOCK_BYTES", 8 * block)
        rule = targets.learn_label(label("numeric", values), np.ones(len(values), bool))
    assert (rule.kind == "binary") == (set(values) == {0.0, 1.0})


def test_what_is_wrong_is_counted_over_all_blocks(monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 32)
    y = label("matrix", [[1.0, 2.0], [np.nan, np.inf]] * 5)
    with pytest.raises(DataError, match="Column `1` of `y` has 5 missing values"):
        targets.learn_label(y, np.ones(10, bool))
    rule = label_rule("class", 2, ("a", "b"))
    with pytest.raises(DataError, match="`y` has 6 missing values"):
        targets.encode_label(rule, label("factor", [1, 0, 0, 0, 2] * 2, ["a", "b"]))
    with pytest.raises(DataError, match="did not see: c, d[.]"):
        targets.encode_label(rule, label("factor", [1, 4, 2, 2, 2, 3] * 2, list("abcd")))


@pytest.mark.parametrize("code", [-1, 3])
def test_codes_without_a_level_are_refused(code):
    with pytest.raises(DataError, match="codes outside its 2 levels"):
        targets.encode_label(label_rule("class", 2, ("a", "b")), label("factor", [code], "ab"))


# Digits ------------------------------------------------------------------------------------------


def test_labels_too_large_for_float32_are_refused():
    y = label("matrix", [[1.0, 1e300], [2.0, -1e39]], names=["a", "b"])
    rule = targets.learn_label(y, np.ones(2, bool))
    with pytest.raises(DataError, match="Column `b` of `y` has .*2 too large for float32"):
        targets.encode_label(rule, y)


@pytest.mark.parametrize(
    ("y", "sentences"),
    [
        (label("integer", [2**24 + 1, 2**24 + 2, 5]), ["`y` has 1 whole number beyond 2^24"]),
        (label("numeric", [2.0**30 + 1, 2.0**31 + 1, 0.5]), ["`y` has 2 whole numbers beyond"]),
        (
            label("matrix", [[1.0, 2.0**24 + 1], [1.0, 1.0]], names=["a", "b"]),
            ["Column `b` of `y` has 1 whole number"],
        ),
        (label("numeric", [2.0**24, 2.0**25, 0.1]), []),
        (label("logical", [True, False, True]), []),
    ],
)
def test_labels_that_lose_digits_are_noted(y, sentences):
    notes = arrays.Notes()
    rule = targets.learn_label(y, np.ones(len(y["values"]), bool))
    encoded = targets.encode_label(rule, y, notes)
    assert len(notes.sentences) == len(sentences)
    assert all(
        note.startswith(start) for note, start in zip(notes.sentences, sentences, strict=True)
    )
    np.testing.assert_array_equal(encoded, y["values"].astype(np.float32))


@pytest.mark.parametrize(
    ("values", "classes"),
    [([0, 1, 2, 2], True), ([0.5, 1, 2, 2], False), ([-1, 1, 2, 2], False), ([0, 20_000], False)],
)
def test_whole_numbers_from_0_may_be_classes(values, classes):
    y = {"kind": "integer", "values": np.array(values, np.float64)}
    features = {"kind": "array", "values": np.ones((len(values), 1))}
    rule = map_dataset.build_dataset(features, {}, y).recipe.label
    assert rule.counts == classes
    if not classes:
        with pytest.raises(SpecError, match="needs labels that are classes, not numbers"):
            map_dataset.build_dataset(features, {}, y, None, class_weight={"0": 1.0})
        return
    some = {"1": 2.0, "2": 0.5}  # as in Keras, others weigh 1
    weighted = map_dataset.build_dataset(features, {}, y, None, class_weight=some)
    assert weighted.arrays[2].tolist() == [1.0, 2.0, 0.5, 0.5]
    balanced = map_dataset.build_dataset(features, {}, y, None, class_weight="balanced").arrays[2]
    np.testing.assert_allclose(balanced, [4 / 3, 4 / 3, 2 / 3, 2 / 3], rtol=1e-6)
    with pytest.raises(SpecError, match="numbers named after classes"):
        map_dataset.build_dataset(features, {}, y, None, class_weight={"no": 1.0})
    with pytest.raises(SpecError, match="names the class 7, but there are the classes 0 to 2"):
        map_dataset.build_dataset(features, {}, y, None, class_weight={"1": 2.0, "7": 9.0})


def test_class_weights_of_all_rows_are_those_of_the_dataset_and_count_beside_its_weights():
    features = {"kind": "array", "values": np.ones((4, 1))}
    y = {"kind": "integer", "values": np.array([0.0, 1, 2, 2])}
    weights = np.array([1.0, 2.0, 3.0, 4.0])
    data = map_dataset.build_dataset(features, {}, y, weights, class_weight="balanced")
    weighed = map_dataset.weigh_classes(data, np.arange(4))
    np.testing.assert_allclose(data.arrays[2], [4 / 3, 8 / 3, 6 / 3, 8 / 3], rtol=1e-6)
    np.testing.assert_array_equal(weighed[2].gather(slice(None)), data.arrays[2])


def test_outputs_without_names_are_in_the_models_order():
    one, two = (label_rule(kind) for kind in ("number", "binary"))
    outputs = (targets.Output("output_1", one), targets.Output("output_2", two))
    rule = targets.OutputsLabel(outputs)
    assert list(targets.outputs_by_name(rule, ["cut", "price"])) == ["output_1", "output_2"]
    listed = targets.outputs_by_name(replace(rule, listed=True), ["cut", "price"])
    assert (listed["cut"].rule, listed["price"].rule) == (one, two)
    assert targets.outputs_by_name(None, ["cut"]) == {}


def test_pairs_of_columns_have_their_own_ranges_but_not_windows_of_a_series():
    rule = label_rule("matrix", units=2, shape=(2,))
    pairs = np.array([[1.0, 0.0], [5.0, 0.5]], np.float32)
    ranges = targets.measure_range(rule, pairs).ranges
    assert [(one.minimum, one.maximum, one.whole) for one in ranges] == [
        (1, 5, True),
        (0, 0.5, False),
    ]
    assert targets.measure_range(rule, pairs[:, 0]).ranges == ()  # windows with a horizon of 2
