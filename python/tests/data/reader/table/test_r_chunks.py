"""Chunks of columns, as R passes the rows of a DBI result."""

import numpy as np
import pyarrow as pa
import pytest

from gpukeras import DataError
from gpukeras.core.errors import GeneratorError
from gpukeras.data.reader.table.stream import open_stream


def column(kind, values, **more):
    return {"name": "a", "kind": kind, "values": np.asarray(values), **more}


def chunks(*given):
    """A function like R's, which gives one chunk after another."""
    left = list(given)

    def call(names):
        if not left:
            return None
        made = left.pop(0)
        if isinstance(made, dict):
            return made
        chosen = [one for one in made if names is None or one["name"] in names]
        first = made[0]
        return {"columns": chosen, "rows": first.get("rows", len(first.get("values", ())))}

    return {"call": call}


def read(*given, names=None):
    reader = open_stream(chunks(*given), "x")
    reader.select(names or reader.names)
    return pa.Table.from_batches(list(reader.batches()), reader.schema)


BITS = np.array([2**62 + 1, np.iinfo(np.int64).min], np.int64).view(np.float64)  # 2nd is bit64's NA


@pytest.mark.parametrize(
    ("given", "type", "values"),
    [
        (column("integer", np.array([1, 2], np.int32)), pa.int64(), [1, 2]),
        (column("integer", [1.0, np.nan]), pa.int64(), [1, None]),
        (column("integer64", BITS), pa.int64(), [2**62 + 1, None]),
        (column("numeric", [0.5, -1.0]), pa.float64(), [0.5, -1.0]),
        (column("logical", [True, False]), pa.bool_(), [True, False]),
        (column("logical", [1.0, np.nan]), pa.bool_(), [True, None]),
        (column("character", [2, 0, 1], levels=["é", "b"]), pa.string(), ["b", None, "é"]),
        (
            column("factor", [2, 0], levels=["z", "b"]),
            pa.dictionary(pa.int32(), pa.string()),
            ["b", None],
        ),
        (column("date", [0.0, np.nan, -1.5]), pa.date32(), [0, None, -2]),
        (
            column("time", [0.25, np.nan], zone="Europe/Paris"),
            pa.timestamp("us", "Europe/Paris"),
            [250_000, None],
        ),
        (column("duration", [1.5, np.nan]), pa.duration("us"), [1_500_000, None]),
        (column("logical", [np.nan, np.nan]), pa.null(), [None, None]),
    ],
    ids=str,
)
def test_every_kind_of_column_becomes_one_of_arrow(given, type, values):
    found = read([given])["a"]
    assert found.type == type
    if pa.types.is_temporal(type):
        found = found.cast(pa.int32() if type == pa.date32() else pa.int64())
    assert found.to_pylist() == values


def test_the_memory_of_r_is_copied():
    values = np.array([1.0, 2.0])
    reader = open_stream(chunks([column("numeric", values)]), "x")
    values[:] = 0
    assert next(reader.batches())["a"].to_pylist() == [1.0, 2.0]


def test_a_column_that_no_feature_can_be_has_no_values():
    both = [column("numeric", [1.0]), {"name": "b", "kind": "other", "rows": 1}]
    assert read(both, both, names=["a"]).to_pydict() == {"a": [1.0, 1.0]}
    with pytest.raises(DataError, match="column `b` of type binary"):
        read(both)


def test_a_column_without_values_waits_for_its_type():
    empty = [column("logical", [np.nan])]
    assert read(empty, empty, [column("numeric", [2.5])]).to_pydict() == {"a": [None, None, 2.5]}
    later = [column("integer", [1.0])]
    assert read(later, empty, later).to_pydict() == {"a": [1, None, 1]}


@pytest.mark.parametrize(
    ("first", "later", "row"),
    [
        (column("integer", [1.0]), column("character", [1], levels=["b"]), 1),
        (column("integer", [1.0]), column("numeric", [2.5]), 1),
        (column("date", [1.0]), column("numeric", [2.5]), 1),
    ],
)
def test_a_column_that_changes_its_type_is_an_error(first, later, row):
    with pytest.raises(DataError, match="Column `a` of `x` has values of the type") as found:
        read([first], [later])
    assert found.value.details["row"] == row
    assert "2.5" not in str(found.value)


def test_whole_numbers_may_come_as_doubles():
    assert read([column("integer", [1.0])], [column("numeric", [2.0])]).to_pydict() == {"a": [1, 2]}


def test_a_function_that_fails_is_an_error_with_its_row():
    one = [column("numeric", [1.0, 2.0])]
    with pytest.raises(DataError, match="behind row 4: the server is gone") as found:
        read(one, one, {"failed": "the server is gone"})
    assert found.value.details["row"] == 4
    with pytest.raises(DataError, match="`x` cannot be read: no such table"):
        open_stream(chunks({"failed": "no such table"}), "x")


def test_an_interrupt_is_passed_on():
    with pytest.raises(GeneratorError):
        read([column("numeric", [1.0])], {"interrupted": True})


def test_a_result_without_rows_has_columns():
    assert read([column("numeric", [])]).num_rows == 0


def test_a_result_without_columns_is_refused():
    with pytest.raises(DataError, match="`x` has no columns"):
        open_stream(chunks({"columns": [], "rows": 0}), "x")
