"""What a model's output means in the labels' own terms."""

import numpy as np
import pytest
from rules import label_rule

from gpukeras.data.recipe.decoding import (
    HALF,
    HIGHEST,
    ZERO,
    decode,
    decode_outputs,
    refuse_classes,
)
from gpukeras.data.recipe.targets import learn_label

CLASSES = label_rule("class", units=3, levels=("a", "b", "c"))
TWO = label_rule("class", units=2, levels=("no", "yes"))
NUMBER = label_rule("number", maximum=2.0)
MASK = label_rule("matrix", units=2, shape=(2, 1), maximum=2.0)


def test_classes_of_a_factor_are_rs_codes_and_levels():
    record = decode(CLASSES, np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]), HIGHEST)
    np.testing.assert_array_equal(record["values"], [2, 1])
    assert record["levels"] == ["a", "b", "c"]
    np.testing.assert_array_equal(decode(TWO, np.array([[0.4], [0.6]]), HALF)["values"], [1, 2])
    np.testing.assert_array_equal(decode(TWO, np.array([[-0.4], [0.4]]), ZERO)["values"], [1, 2])


def test_probabilities_have_the_names_of_the_levels():
    assert decode(CLASSES, np.zeros((2, 3)))["names"] == ["a", "b", "c"]
    assert decode(TWO, np.array([[0.4]]))["values"].tolist() == [0.4]


def test_zero_one_and_logical_stay_apart():
    output = np.array([[0.2], [0.9]])
    logical = decode(label_rule("binary", logical=True), output, HALF)
    assert (logical["values"].tolist(), logical["logical"]) == ([0, 1], True)
    assert decode(label_rule("binary"), output, HALF)["logical"] is False


@pytest.mark.parametrize(
    ("rule", "row", "reading", "expected"),
    [
        (NUMBER, (3,), HIGHEST, ()),
        (label_rule("number", shape=(1,)), (3,), HIGHEST, ()),
        (None, (4, 5, 3), HIGHEST, (4, 5)),
        (MASK, (2, 3), HIGHEST, (2, 1)),
        (MASK, (4, 3), HIGHEST, (4,)),  # rows of another length than in training
        (label_rule("matrix", units=2), (2, 1), HALF, (2,)),
        (None, (1,), HALF, ()),
    ],
)
def test_whole_numbers_come_back_as_numbered_and_in_the_labels_shape(rule, row, reading, expected):
    output = np.random.default_rng(1).uniform(size=(6, *row))
    codes = output.argmax(-1) if reading == HIGHEST else output > 0.5
    record = decode(rule, output, reading)
    assert (record["levels"], record["values"].dtype) == ([], np.int32)
    np.testing.assert_array_equal(record["values"], codes.reshape(6, *expected))


def test_each_output_has_its_own_terms_and_order():
    rules = {"price": NUMBER, "cut": CLASSES}
    output = {"cut": np.eye(3)[[2, 0]], "other": np.ones((2, 1)), "price": np.array([[1.0], [2.0]])}
    price, cut, other = decode_outputs(rules, output, {"cut": HIGHEST})
    assert [price["name"], cut["name"], other["name"]] == ["price", "cut", "other"]
    np.testing.assert_array_equal(cut["values"], [3, 1])
    assert cut["levels"] == ["a", "b", "c"]
    np.testing.assert_array_equal(price["values"], [1, 2])


def test_batches_of_other_shapes_are_decoded_one_by_one():
    batches = [np.eye(3)[[[0, 1]]], np.eye(3)[[[2, 0, 1]]]]
    (record,) = decode_outputs({}, {"": batches}, {"": HIGHEST})
    assert [one["values"].tolist() for one in record["batches"]] == [[[0, 1]], [[2, 0, 1]]]


@pytest.mark.parametrize(
    ("rules", "found"),
    [([], "are unknown"), ([NUMBER], "held numbers."), ([MASK], "numbers of several columns")],
)
def test_a_regression_is_refused_by_what_its_labels_were(rules, found):
    assert found in refuse_classes(rules).message


def test_levels_in_order_stay_in_order():
    factor = {"kind": "factor", "values": np.array([1, 2, 2]), "levels": ["low", "high"]}
    for ordered in (True, False):
        rule = learn_label({**factor, "ordered": ordered}, np.ones(3, dtype=bool))
        assert rule.ordered is ordered
        assert decode(rule, np.array([[0.9]]), HALF).get("ordered", False) is ordered
