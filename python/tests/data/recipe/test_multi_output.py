"""Labels of several outputs in one matrix, and apart again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import label_rule

from gpukeras import DataError
from gpukeras.data.recipe.imputation import check_labels, miss_labels
from gpukeras.data.recipe.multi_output import (
    check_counts,
    encode_labels,
    learn_labels,
    measure_ranges,
    note_empty_classes,
    split_labels,
    take_labels,
    widen_labels,
)
from gpukeras.data.recipe.targets import SEVERAL, Output, OutputsLabel

NUMBERS = {"kind": "numeric", "values": np.array([1.5, 2.5, np.nan, 4.0]), "levels": []}
CLASSES = {"kind": "factor", "values": np.array([1, 2, 3, 1]), "levels": ["a", "b", "c"]}
MATRIX = {"kind": "matrix", "values": np.arange(8.0).reshape(4, 2), "names": ["u", "v"]}
ALL = np.ones(4, dtype=bool)


def several(**parts):
    outputs = [{"name": name, "labels": labels} for name, labels in parts.items()]
    return {"kind": SEVERAL, "outputs": outputs}


def plain(labels=NUMBERS):
    return {**labels, "values": np.nan_to_num(labels["values"])}


def test_outputs_lie_side_by_side_whatever_order_they_come_in():
    rule = learn_labels(several(price=plain(), cut=CLASSES, both=MATRIX), ALL)
    assert [output.name for output in rule.outputs] == ["price", "cut", "both"]
    assert rule.units == 4
    encoded = encode_labels(rule, several(both=MATRIX, price=plain(), cut=CLASSES))
    assert encoded.dtype == np.float32
    np.testing.assert_array_equal(
        encoded, [[1.5, 0, 0, 1], [2.5, 1, 2, 3], [0, 2, 4, 5], [4, 0, 6, 7]]
    )
    shapes = [part.shape for _, part in split_labels(rule, encoded)]
    assert shapes == [(4,), (4,), (4, 2)]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(1, 6))
def test_what_is_joined_comes_apart(widths, rows):
    rules = [
        label_rule("matrix", units=width) if width else label_rule("number") for width in widths
    ]
    parts = {
        f"o{place}": (
            {"kind": "matrix", "values": np.random.default_rng(place).normal(size=(rows, width))}
            if width
            else {"kind": "numeric", "values": np.arange(rows) + 0.5 * place}
        )
        for place, width in enumerate(widths)
    }
    rule = OutputsLabel(tuple(map(Output, parts, rules)))
    apart = split_labels(rule, encode_labels(rule, several(**parts)))
    for (_, found), given_ in zip(apart, parts.values(), strict=True):
        np.testing.assert_array_equal(found, given_["values"].astype(np.float32))


def test_ranges_are_those_of_each_output():
    rule = learn_labels(several(price=plain(), cut=CLASSES), ALL)
    rule = measure_ranges(rule, encode_labels(rule, several(price=plain(), cut=CLASSES)))
    price, cut = (output.rule for output in rule.outputs)
    assert (price.minimum, price.maximum, price.whole) == (0, 4, False)
    assert cut == label_rule("class", units=3, levels=("a", "b", "c"))
    wider = widen_labels(rule, np.array([[9.0, 0.0]], np.float32))
    assert wider.outputs[0].rule.maximum == 9
    assert widen_labels(wider, np.array([[1.0, 0.0]], np.float32)) == wider


def test_rows_that_lack_a_label_are_found_and_left_out():
    labels = several(price=NUMBERS, cut={**CLASSES, "values": np.array([0, 2, 3, 1])})
    lacking = miss_labels(labels)
    np.testing.assert_array_equal(lacking, [True, False, True, False])
    taken = take_labels(labels, ~lacking)
    assert [len(output["labels"]["values"]) for output in taken["outputs"]] == [2, 2]
    with pytest.raises(DataError, match=r"`y\$price` is missing in 1 of 4 rows"):
        check_labels(labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (several(price=NUMBERS, cut=CLASSES), r"`y\$price` has 1 missing value"),
        (several(price=plain(), cut={**CLASSES, "levels": ["a"]}), r"`y\$cut` needs at least two"),
        ({"kind": SEVERAL, "outputs": []}, "it is empty"),
        (several(**{"": plain()}), "one has none"),
        (
            {"kind": SEVERAL, "outputs": [{"name": "a", "labels": plain()}] * 2},
            "`a` is there twice",
        ),
    ],
)
def test_labels_that_cannot_be_learned_are_named(labels, message):
    with pytest.raises(DataError, match=message):
        encode_labels(learn_labels(labels, ALL), labels)


def test_other_outputs_than_in_training_are_refused():
    rule = learn_labels(several(price=plain(), cut=CLASSES), ALL)
    with pytest.raises(DataError, match="must have labels for price, cut, as in training, not cut"):
        encode_labels(rule, several(cut=CLASSES))
    with pytest.raises(DataError, match="must have labels for price, cut, as in training"):
        encode_labels(rule, plain())
    with pytest.raises(DataError, match="must have labels for a single output"):
        encode_labels(label_rule("number"), several(a=plain()))
    with pytest.raises(DataError, match=r"`y\$cut` holds numbers where training had a factor of"):
        encode_labels(rule, several(price=plain(), cut=plain()))
    with pytest.raises(DataError, match=r"`y\$price` has 4 rows where `x` has 5"):
        check_counts(5, several(price=plain(), cut=CLASSES), None, "x")


def test_classes_without_a_training_row_are_named_as_by_multinom():
    cut = {**CLASSES, "levels": ["a", "b", "c", "d", "e"]}
    rows = several(price=plain(), cut=cut, sold={"kind": "logical", "values": np.ones(4)})
    rule, keep = learn_labels(rows, ALL), np.array([True, True, False, True])
    codes = encode_labels(rule, rows)
    assert note_empty_classes(rule, codes, keep, "list(cut) ~ .") == (
        'The classes "c", "d", "e" of `cut` have no training row.',
        'The class "FALSE" of `sold` has no training row.',
    )
    rule, codes = learn_labels(CLASSES, ALL), encode_labels(learn_labels(CLASSES, ALL), CLASSES)
    assert note_empty_classes(rule, codes, keep, "Species ~ .") == (
        'The class "c" of `Species` has no training row.',
    )
    assert note_empty_classes(rule, codes, ALL, "") == ()
