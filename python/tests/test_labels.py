import numpy as np
import pytest

from gpukeras import DataError, labels

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
    rule = labels.learn_label(y, ALL)
    assert (rule.kind, rule.units) == (kind, units)


def test_numbers_keep_the_training_rows_statistics_and_the_range_of_all():
    y = label("numeric", [1.0, 3.0, 100.5, -5.0])
    rule = labels.learn_label(y, np.array([True, True, False, False]))
    assert (rule.center, rule.scale) == (2.0, 1.0)
    measured = labels.measure_range(rule, labels.encode_label(rule, y))
    assert (measured.minimum, measured.maximum, measured.whole) == (-5.0, 100.5, False)


def test_a_named_column_of_a_label_matrix_is_named():
    y = label("matrix", [[1.0, np.nan], [2.0, 3.0]], names=["width", "depth"])
    with pytest.raises(DataError, match="Column `depth` of `y`"):
        labels.learn_label(y, np.ones(2, bool))


def test_classes_become_codes_from_zero_by_level_name():
    rule = labels.learn_label(label("factor", [1, 2, 1, 2], ["no", "yes"]), ALL)
    codes = labels.encode_label(rule, label("factor", [1, 2, 2, 2], ["yes", "no"]))
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
        labels.learn_label(y, ALL)


def test_encode_label_refuses_another_kind_and_new_levels():
    rule = labels.learn_label(label("factor", [1, 2, 1, 2], ["no", "yes"]), ALL)
    with pytest.raises(DataError, match="numeric where training had class"):
        labels.encode_label(rule, label("numeric", [1.0]))
    with pytest.raises(DataError, match="perhaps"):
        labels.encode_label(rule, label("factor", [3], ["no", "yes", "perhaps"]))


def test_encode_label_refuses_a_matrix_of_another_width():
    rule = labels.learn_label(label("matrix", [[1.0, 2.0]] * 4), ALL)
    with pytest.raises(DataError, match="2 columns"):
        labels.encode_label(rule, label("matrix", [[1.0, 2.0, 3.0]]))


CLASSES = labels.LabelRule("class", units=3, levels=("a", "b", "c"))
TWO = labels.LabelRule("class", units=2, levels=("no", "yes"))


def test_decode_gives_r_codes_of_the_most_probable_class():
    record = labels.decode(CLASSES, np.array([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]), True)
    np.testing.assert_array_equal(record["values"], [2, 1])
    assert record["levels"] == ["a", "b", "c"]
    single = labels.decode(TWO, np.array([[0.4], [0.6]]), True)
    np.testing.assert_array_equal(single["values"], [1, 2])


def test_decode_names_the_columns_of_probabilities():
    record = labels.decode(CLASSES, np.zeros((2, 3)), False)
    assert record["names"] == ["a", "b", "c"]
    assert labels.decode(TWO, np.array([[0.4]]), False)["values"].tolist() == [0.4]


def test_decode_keeps_zero_one_and_logical_apart():
    output = np.array([[0.2], [0.9]])
    logical = labels.decode(labels.LabelRule("binary", logical=True), output, True)
    assert (logical["values"].tolist(), logical["logical"]) == ([0, 1], True)
    assert labels.decode(labels.LabelRule("binary"), output, True)["logical"] is False


def test_decode_refuses_classes_of_numbers():
    with pytest.raises(DataError, match="trained on classes"):
        labels.decode(labels.LabelRule("number"), np.zeros((1, 1)), True)
    with pytest.raises(DataError, match="trained on classes"):
        labels.decode(None, np.zeros((1, 3)), True)
