"""Objects that give record batches: only the columns wanted are read, in the order of the rows."""

import sqlite3
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from duck import add_watched, open_duck

from gpukeras.data.reader.table.stream import open_query, open_source


@pytest.fixture
def duck():
    with open_duck() as connection:
        yield connection


def test_a_dataset_of_arrow_reads_only_the_columns_wanted(tmp_path):
    table = pa.table({"a": [1.0, 2.0], "b": ["x", "y"]})
    pq.write_table(table, tmp_path / "a.parquet")
    found = open_source(pads.dataset(tmp_path))
    assert found.schema.names == ["a", "b"]
    assert pa.Table.from_batches(found.read(["b"])) == table.select(["b"])


def test_columns_of_duckdb_that_are_left_out_are_not_computed(duck):
    seen = add_watched(duck)
    query = 'SELECT range AS a, watched(range) AS "b""c" FROM range(10)'
    found = open_query(duck, query)
    assert found.schema.names == ["a", 'b"c']
    assert seen == []
    assert pa.Table.from_batches(found.read(["a"]))["a"].to_pylist() == [*range(10)]
    assert seen == []
    both = pa.Table.from_batches(open_query(duck, query).read(['b"c']))
    assert both.column_names == ['b"c']
    assert len(seen) == 10


@pytest.mark.parametrize("names", [["a", "k"], ["a"]])
def test_columns_of_duckdb_come_in_the_order_of_the_query(duck, names):
    query = "SELECT range AS a, hash(range) AS k FROM range(300000) ORDER BY k"
    expected = duck.sql(query).to_arrow_table().select(names)
    assert pa.Table.from_batches(open_query(duck, query).read(names)) == expected


def test_a_query_of_duckdb_without_rows_has_columns(duck):
    found = open_query(duck, "SELECT 1 AS a WHERE FALSE")
    assert found.schema == pa.schema({"a": pa.int32()})
    assert sum(map(len, found.read(["a"]))) == 0


def test_a_connection_without_arrow_gives_nothing():
    with closing(sqlite3.connect(":memory:")) as connection:
        assert open_query(connection, "SELECT 1") is None


def test_an_object_without_rows_gives_nothing():
    assert open_source(np.zeros(2)) is None
