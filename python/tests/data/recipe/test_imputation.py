import numpy as np
import pytest
from frames import NAN, column, frame

from gpukeras import DataError, SpecError
from gpukeras.data import arrays
from gpukeras.data.dataset import map_dataset
from gpukeras.data.recipe import imputation, targets


def array(x, names=()):
    return {"kind": "array", "values": np.array(x), "names": list(names)}


@pytest.mark.parametrize(
    ("asked", "learned", "policy"),
    [
        ("error", None, "error"),
        ("impute", None, "impute"),
        ("error", "drop", "drop"),
        ("error", "impute", "impute"),
        ("impute", "impute", "impute"),
        ("drop", "error", "drop"),
        ("drop", "impute", "drop"),
    ],
)
def test_choose_policy(asked, learned, policy):
    assert map_dataset.choose_policy(asked, learned) == policy


@pytest.mark.parametrize("learned", ["error", "drop"])
def test_imputing_needs_a_recipe_that_learned_it(learned):
    with pytest.raises(SpecError, match="`recipe` that was learned so"):
        map_dataset.choose_policy("impute", learned)


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1.0, NAN], "numeric"), ([1, 0], "factor"), ([2, 0], "character"), ([0.0, NAN], "logical")],
)
def test_is_missing(values, kind):
    np.testing.assert_array_equal(imputation.is_missing(column(values, kind)), [False, True])


def test_integers_and_logicals_without_a_mask_miss_nothing():
    for values in ([0, 1], [False, True]):
        assert not imputation.is_missing(column(values, "integer")).any()


def complete(features, labels, rows, known=None):
    return imputation.choose_complete(
        *imputation.count_missing(features, rows, known, "x"), labels, "x"
    )


def test_complete_rows_looks_at_features_and_labels():
    features = frame(column([1.0, NAN, 3.0, 4.0]), column([1, 1, 0, 1], "factor", "u", name="f"))
    label = {"kind": "numeric", "values": np.array([NAN, 1.0, 1.0, 1.0])}
    rows = complete(features, label, 4)
    np.testing.assert_array_equal(rows, [False, False, False, True])
    known = complete(features, None, 4, {"f"})
    np.testing.assert_array_equal(known, [True, True, False, True])


def test_complete_rows_of_an_array_of_any_rank():
    x = np.zeros((3, 2, 2))
    x[1, 0, 1] = NAN
    labels = {"kind": "matrix", "values": np.array([[1.0, 2.0], [1.0, 2.0], [NAN, 2.0]])}
    rows = complete(array(x), labels, 3)
    np.testing.assert_array_equal(rows, [True, False, False])
    np.testing.assert_array_equal(complete(array(x), None, 3), [True, False, True])


def test_that_no_row_is_left_names_the_column_that_lacks_most():
    features = frame(column([NAN, 1.0, 2.0]), column([1.0, NAN, NAN], name="other"))
    with pytest.raises(DataError, match="leaves no row: each of 3") as caught:
        complete(features, None, 3)
    assert caught.value.hint == "Column `other` of `x` lacks the most: 2."
    label = {"kind": "numeric", "values": np.full(3, NAN)}
    with pytest.raises(DataError, match="`y` lacks the most: 3"):
        complete(frame(column([1.0, 2.0, 3.0])), label, 3)


def test_new_rows_may_all_be_incomplete():
    features = frame(column([NAN, NAN]))
    assert not imputation.count_missing(features, 2, {"size"}, "newdata")[0].any()


@pytest.mark.parametrize(
    ("labels", "count"),
    [
        ({"kind": "factor", "values": np.array([1, 0, 0])}, 2),
        ({"kind": "matrix", "values": np.array([[1.0, NAN], [NAN, NAN], [1.0, 2.0]])}, 2),
    ],
)
def test_missing_labels_are_counted(labels, count):
    with pytest.raises(DataError, match=f"missing in {count} of 3 rows: labels are never imputed"):
        imputation.check_labels(labels)


@pytest.mark.parametrize(
    ("values", "kind", "fill"),
    [
        ([1.0, 2.0, 10.0], "numeric", 2.0),
        ([1.0, 2.0], "integer", 1.5),
        ([1.0, 1.0, 0.0], "logical", 1.0),
        ([1.0, 0.0], "logical", 0.0),
    ],
)
def test_learn_fill(values, kind, fill):
    assert imputation.learn_fill({"kind": kind}, np.array(values)) == fill


@pytest.mark.parametrize(
    ("codes", "level"), [([2, 2, 1, 0, 0, 0], "b"), ([2, 1, 0], "a"), ([3, 3, 1], "c")]
)
def test_learn_fill_level_takes_the_first_of_equals(codes, level):
    keep = np.ones(len(codes), dtype=bool)
    assert imputation.learn_fill_level(column(codes, "factor", "abc"), keep, "x") == level


def test_levels_without_a_training_row_are_found():
    keep = np.array([True, True, True, False])
    found = targets.find_absent(column([3, 0, 1, 2], "factor", "abcd"), keep)
    assert found == ("b", "d")
    assert targets.find_absent(column([0, 0, 0, 0], "factor", "ab"), keep) == ()
    unknown = {**column([1, 1, 1, 1], "factor", "ab"), "coded": False}
    assert targets.find_absent(unknown, keep) == ()


def test_a_column_without_values_in_the_training_rows_is_named():
    keep = np.array([True, False])
    with pytest.raises(DataError, match="Column `w` of `x` is missing in all training rows"):
        imputation.observed(np.array([NAN, 1.0]), keep, "w", "x")
    with pytest.raises(DataError, match="Column `size` of `x` is missing in all training rows"):
        imputation.learn_fill_level(column([0, 1], "factor", "a"), keep, "x")


def test_levels_are_counted_over_blocks_of_training_rows(monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK_BYTES", 16)
    codes = [1, 1, 3, 3, 3, 3, 3, 1, 2, 2, 2, 2]  # more than the 8 bytes of one
    keep = np.array([code != 3 for code in codes])
    assert imputation.learn_fill_level(column(codes, "factor", "abc"), keep, "x") == "b"
