"""Rows that come once: of Arrow objects, queries and addresses."""

import ctypes
import sqlite3
from contextlib import closing
from datetime import date, datetime, timezone

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from postgres import PASSWORD, explain_missing, serve

from gpukeras import DataError, SpecError
from gpukeras.data.reader.table.schema import to_column
from gpukeras.data.reader.table.stream import (
    R_CHUNKS,
    STREAM,
    broken_off,
    open_query,
    open_source,
    open_stream,
)


def small(rows=1000):
    return pa.table({"a": np.arange(float(rows)), "s": ["x", None] * (rows // 2)})


def read(reader):
    return pa.Table.from_batches(list(reader.batches()), reader.schema)


class Capsule:
    """An object of another library: it has a C stream, and nothing else."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__()


@pytest.mark.parametrize("make", [lambda t: t, pa.Table.to_reader, pads.dataset, Capsule])
def test_an_object_of_arrow_gives_its_rows(make):
    reader = open_stream(make(small()), "x")
    assert (reader.names, reader.known_rows, reader.files) == (("a", "s"), None, ())
    assert reader.format == STREAM
    assert read(reader) == small()


def test_an_address_is_moved():
    memory = ctypes.create_string_buffer(64)  # more than a struct ArrowArrayStream
    small().to_reader()._export_to_c(ctypes.addressof(memory))
    reader = open_stream({"address": str(ctypes.addressof(memory))}, "x")
    assert reader.format == R_CHUNKS  # what is behind an address may need this thread
    assert read(reader) == small()


def test_rows_of_an_object_are_read_here_where_asked():
    assert open_stream({"source": small(), "here": True}, "x").format == R_CHUNKS


def test_a_column_that_cannot_be_read_is_an_error_where_it_is_chosen():
    reader = open_stream(pa.table({"a": [1.0], "b": [b"z"]}), "x")
    with pytest.raises(DataError, match="`x` has a column `b` of type binary") as found:
        reader.select(["a", "b"])
    assert found.value.details == {"arg": "x", "column": "b"}


def test_rows_come_once():
    reader = open_stream(small(), "x")
    read(reader)
    with pytest.raises(DataError, match="came once, and are gone"):
        read(reader)


def test_a_stream_that_breaks_off_names_the_row_and_hides_what_is_secret():
    batch = small().to_batches()[0]

    def failing():
        yield batch
        raise ConnectionError("lost postgres://me:geheim@host/db at value '17'\nmore")

    reader = open_stream(pa.RecordBatchReader.from_batches(batch.schema, failing()), "x")
    with pytest.raises(DataError) as found:
        read(reader)
    assert found.value.details["row"] == 1000
    assert "broke off behind row 1,000" in found.value.message
    for hidden in ("geheim", "17", "more"):
        assert hidden not in str(found.value)
    assert found.value.__cause__ is None
    assert found.value.__suppress_context__


def test_what_the_driver_says_is_cut_after_secrets_are_hidden():
    error = broken_off("x", 0, ValueError("x" * 180 + " password='open sesame and much more'"))
    assert "sesame" not in str(error)


def test_damaged_strings_are_an_error():
    raw = pa.py_buffer(b"\xff\xfe")
    offsets = pa.py_buffer(np.array([0, 2], np.int32).tobytes())
    text = pa.StringArray.from_buffers(1, offsets, raw)
    with pytest.raises(DataError, match="cannot be read"):
        read(open_stream(pa.table({"s": text}), "x"))


@pytest.mark.parametrize("given", [12, object(), {"source": "flights"}])
def test_what_has_no_stream_is_refused(given):
    with pytest.raises(SpecError, match="gives no Arrow stream"):
        open_stream(given, "x")


# Databases -------------------------------------------------------------------------------------

QUERY = """
SELECT * FROM (VALUES
  (1::BIGINT, 9007199254740993::BIGINT, 0.5::DOUBLE, TRUE, 'a', DATE '2024-02-29',
   TIMESTAMPTZ '2024-03-31 01:30:00+00', 1.25::DECIMAL(9, 2)),
  (2, NULL, 'NaN', NULL, NULL, NULL, NULL, NULL)
) AS t(i, big, x, l, s, d, z, n)
"""


@pytest.fixture
def duck():
    with closing(pytest.importorskip("duckdb").connect()) as connection:
        yield connection


def add_watched(connection):
    """Adds `watched()`, which returns its number, to a query; gives the numbers of its calls."""
    seen = []

    def watched(value: int) -> int:
        seen.append(value)
        return value

    connection.create_function("watched", watched, ["BIGINT"], "BIGINT")
    return seen


@pytest.fixture
def sqlite():
    dbapi = pytest.importorskip("adbc_driver_sqlite.dbapi")
    connection = dbapi.connect()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a, b)")
        cursor.execute("INSERT INTO t VALUES (1, 2.5), (2, NULL)")
    yield connection
    connection.close()


def test_every_type_of_duckdb_arrives(duck):
    table = read(open_stream({"connection": duck, "query": QUERY}, "x"))
    columns = {name: to_column(name, table[name]) for name in table.column_names}
    kinds = [column["kind"] for column in columns.values()]
    assert kinds == [
        *("integer", "integer", "numeric", "logical"),
        *("character", "date", "time", "numeric"),
    ]
    assert table["big"].to_pylist() == [2**53 + 1, None]
    assert np.isnan(table["x"][1].as_py())  # NaN is no NULL
    assert table["x"].null_count == 0
    assert table["d"].to_pylist() == [date(2024, 2, 29), None]
    assert table["z"][0].as_py() == datetime(2024, 3, 31, 1, 30, tzinfo=timezone.utc)
    assert columns["n"]["values"][0] == 1.25


def test_a_relation_of_duckdb_gives_its_rows(duck):
    assert read(open_stream(duck.sql("SELECT range AS a FROM range(5)"), "x")).num_rows == 5


def test_adbc_gives_its_rows_and_releases_its_cursor(sqlite):
    table = read(open_stream({"connection": sqlite, "query": "SELECT * FROM t"}, "x"))
    assert table.to_pydict() == {"a": [1, 2], "b": [2.5, None]}
    with sqlite.cursor() as cursor:
        cursor.execute("DROP TABLE t")  # it is locked while a result is open


def test_a_query_with_two_columns_of_a_name_releases_its_cursor(sqlite):
    query = "SELECT a, b AS a FROM t"
    with pytest.raises(DataError, match="several columns named `a`"):
        open_stream({"connection": sqlite, "query": query}, "x")
    with sqlite.cursor() as cursor:
        cursor.execute("DROP TABLE t")  # it is locked while a result is open


@pytest.mark.parametrize("name", ["duck", "sqlite"])
def test_a_query_that_is_refused_is_an_error(name, request):
    connection = request.getfixturevalue(name)
    for query in ("SELEC 1", "SELECT * FROM missing"):
        with pytest.raises(DataError, match="`x` cannot be read") as found:
            open_stream({"connection": connection, "query": query}, "x")
        assert found.value.details == {"arg": "x", "row": 0}


@pytest.mark.parametrize("name", ["duck", "sqlite"])
def test_a_closed_connection_is_an_error(name, request):
    connection = request.getfixturevalue(name)
    connection.close()
    with pytest.raises(DataError, match="`x` cannot be read"):
        open_stream({"connection": connection, "query": "SELECT 1 AS a"}, "x")


def test_a_query_runs_once_on_a_thread_of_the_reader(duck):
    seen = add_watched(duck)
    query = "SELECT watched(range) AS a FROM range(10)"
    assert read(open_stream({"connection": duck, "query": query}, "x")).num_rows == 10
    assert len(seen) == 10


# Record batches of objects ----------------------------------------------------------------------


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


# PostgreSQL ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres():
    pytest.importorskip("adbc_driver_postgresql.dbapi")
    if explain_missing():
        pytest.skip(explain_missing())
    with serve() as server:
        yield server


def connect(server):
    from adbc_driver_postgresql import dbapi

    return dbapi.connect(server.url)


def test_every_type_of_postgresql_arrives(postgres):
    query = """
        SELECT g AS i, (2::int8 ^ 62)::int8 + 1 AS big, g / 2.0::float8 AS x, g = 1 AS l,
            CASE WHEN g = 1 THEN 'é' END AS s, DATE '2024-02-28' + g AS d,
            TIMESTAMPTZ '2024-03-31 00:30+00' AS z, TIMESTAMP '2024-03-31 02:30' AS t,
            'NaN'::float8 AS n, NULL::int8 AS m, '\\x00'::bytea AS b
        FROM generate_series(1, 2) AS g
    """
    with connect(postgres) as connection:
        reader = open_stream({"connection": connection, "query": query}, "x")
        table = read(reader.select([name for name in reader.names if name != "b"]))
    kinds = {name: to_column(name, table[name])["kind"] for name in table.column_names}
    assert kinds == {
        **{"i": "integer", "big": "integer", "x": "numeric", "l": "logical", "s": "character"},
        **{"d": "date", "z": "time", "t": "time", "n": "numeric", "m": "integer"},
    }
    assert table["big"].to_pylist() == [2**62 + 1] * 2
    assert table["s"].to_pylist() == ["é", None]
    assert table["n"].null_count == 0
    assert table["m"].null_count == 2
    assert table["z"].type.tz == "UTC"


@pytest.mark.varies
@pytest.mark.parametrize("names", ["ay", "abcy"])  # few numbers, and packed ones
def test_a_server_that_dies_midway_is_an_error_with_the_row(names, tmp_path, monkeypatch, postgres):
    monkeypatch.setenv("R_SESSION_TMPDIR", str(tmp_path))  # where scratch files go
    with serve() as server, connect(server) as connection:
        rows = "generate_series(1, 10000000)"
        columns = ", ".join(f"g::float8 AS {name}" for name in names)
        query = f"SELECT {columns} FROM {rows} AS g"
        stream = open_stream({"connection": connection, "query": query}, "x")
        batches = stream.batches()
        first = next(batches).num_rows
        server.stop()
        with pytest.raises(DataError, match="broke off behind row") as found:
            for _ in batches:
                pass
    assert found.value.details["row"] >= first
    for secret in (PASSWORD, "tester"):
        assert secret not in str(found.value)
    assert list(tmp_path.iterdir()) == []


def test_a_query_that_fails_midway_names_the_row_and_no_value(postgres):
    query = """
        SELECT 1 / (g - 700000) AS a, repeat('b', 100) AS b FROM generate_series(1, 1000000) AS g
    """
    with connect(postgres) as connection:
        reader = open_stream({"connection": connection, "query": query}, "x")
        with pytest.raises(DataError, match="division by zero") as found:
            read(reader)
    assert 0 < found.value.details["row"] < 700_000
