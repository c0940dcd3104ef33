import json

import numpy as np
import pytest

from gpukeras import (
    ClusterError,
    DataError,
    ModelError,
    OutOfMemoryError,
    SpecError,
)
from gpukeras.serving import answers


def record(values, **fields):
    return {"values": np.array(values), "levels": [], "names": [], "logical": False, **fields}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (record([1.5, np.nan, np.inf]), [1.5, None, None]),
        (record([2, 1], levels=["no", "yes"]), ["yes", "no"]),
        (record([0, 2], levels=["no", "yes"]), [None, "yes"]),
        (record([0, 1], logical=True), [False, True]),
        (record([[0.25, 0.75]], names=["no", "yes"]), [{"no": 0.25, "yes": 0.75}]),
        (record([[0.25, 0.75]]), [[0.25, 0.75]]),
        (record([[[1, 2]]], names=["a", "b"]), [[[1, 2]]]),
        (
            {"outputs": [{"name": "p", **record([1, 2])}, {"name": "q", **record([3, 4])}]},
            [{"p": 1, "q": 3}, {"p": 2, "q": 4}],
        ),
    ],
)
def test_predictions_are_a_value_a_row_that_json_knows(given, expected):
    assert answers.to_rows(given) == expected
    assert json.loads(json.dumps(answers.to_rows(given), allow_nan=False)) == expected


def test_rows_of_different_shapes_are_refused():
    with pytest.raises(ModelError, match="gives rows of different shapes"):
        answers.to_rows({"batches": []})


def test_intervals_have_the_names_of_r():
    given = {"values": np.array([2.0]), "lower": np.array([1.0]), "upper": np.array([np.inf])}
    assert answers.interval_rows(given) == [{".pred": 2.0, ".pred_lower": 1.0, ".pred_upper": None}]


def test_incomplete_rows_are_null():
    assert answers.spread([1, 2], np.array([True, False, True])) == [1, None, 2]
    assert answers.spread([1, 2], None) == [1, 2]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DataError("a"), 422),
        (SpecError("a"), 422),
        (ModelError("a"), 422),
        (OutOfMemoryError("a"), 503),
        (ClusterError("a"), 500),
        (answers.http_error(413, "a"), 413),
    ],
)
def test_errors_have_a_status(error, status):
    assert answers.status_of(error) == status


def test_an_error_names_the_column_and_nothing_else():
    error = DataError("It is wrong.", hint="Mend it.", column="b", arg="rows", levels=["secret"])
    assert answers.error_body(error) == {
        "error": {
            "code": "data",
            "message": "It is wrong.",
            "hint": "Mend it.",
            "arg": "rows",
            "column": "b",
        }
    }
