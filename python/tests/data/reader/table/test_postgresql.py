"""Queries of PostgreSQL: what is sent, and what is read."""

import numpy as np
import pyarrow as pa
import pytest
from postgres import explain_missing, serve

from gpukeras import DataError
from gpukeras.data.reader.table.stream import open_stream, plan_query

TYPES = {"a": "float8", "b": "numeric", "s": "text"}


# What is sent ------------------------------------------------------------------------------------


def test_numbers_of_any_precision_are_cast_by_the_server():
    assert plan_query("SELECT * FROM t;", TYPES, ["a", "b", "s"]) == (
        'SELECT q."a", q."b"::pg_catalog.float8, q."s" FROM (\nSELECT * FROM t\n) AS q'
    )


def test_a_query_is_sent_as_it_is_if_all_columns_are_wanted():
    types = {"a": "float8", "s": "text"}
    assert plan_query("SELECT * FROM t", types, ["a", "s"]) == "SELECT * FROM t"


def test_only_the_columns_wanted_are_asked_for():
    plan = plan_query("SELECT * FROM t", TYPES, ["s", "a"])
    assert plan == 'SELECT q."s", q."a" FROM (\nSELECT * FROM t\n) AS q'


def test_names_are_quoted():
    plan = plan_query("SELECT 1", {'a"b': "int4", "c": "text"}, ['a"b'])
    assert 'q."a""b"' in plan


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO t VALUES (1) RETURNING *",
        "WITH gone AS (DELETE FROM t RETURNING *) SELECT * FROM gone",
        "SELECT * FROM t FOR UPDATE",
        "SELECT 1; SELECT 2",
        "SHOW search_path",
        "-- a comment\nSELECT 1",
    ],
)
def test_a_query_that_may_change_tables_is_sent_as_it_is(query):
    assert plan_query(query, TYPES, ["a"]) == query


@pytest.mark.parametrize("query", ["TABLE t", "values (1)", "with q AS (SELECT 1) SELECT * FROM q"])
def test_other_questions_are_subqueries(query):
    assert f"(\n{query}\n)" in plan_query(f" {query} ; ", TYPES, ["a"])


# A server ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def connection():
    dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")
    if explain_missing():
        pytest.skip(explain_missing())
    with serve() as server, dbapi.connect(server.url) as opened:
        yield opened


NUMBERS = """
    SELECT g, g / 7.0::float8 AS a, CASE WHEN g % 5 > 0 THEN 'NaN'::float8 END AS b,
        '-Infinity'::float8 AS "c ""d", (g / 3.0)::float4 AS f, 1e-30::float4 AS h,
        NULL::float4 AS k, g % 100 AS i, -g AS j, NULLIF(g, 17) AS l, g::int8 << 40 AS m,
        -g::int8 AS n, NULL::int8 AS o, (g % 9)::int2 AS p, (-g % 9)::int2 AS r, 0::int2 AS s,
        g::text AS t, g::oid AS u, g % 2 = 0 AS v, g::numeric / 3 AS w, DATE '2024-01-01' + g AS d,
        1.5::money AS x
    FROM generate_series(1, 3000) AS g ORDER BY g % 11, g
"""


def read(connection, query, names=None):
    reader = open_stream({"connection": connection, "query": query}, "x")
    reader.select(names or reader.names)
    return pa.Table.from_batches(list(reader.batches()), reader.schema)


def test_rows_are_those_that_the_driver_reads(connection):
    with connection.cursor() as cursor:
        cursor.execute(NUMBERS)
        expected = cursor.fetch_arrow_table()
    found = read(connection, NUMBERS)
    assert found.column_names == expected.column_names
    assert found["w"].to_pylist() == [float(each) for each in expected["w"].to_pylist()]
    for name in set(expected.column_names) - {"w"}:
        there, here = found[name].combine_chunks(), expected[name].combine_chunks()
        assert there.type == here.type
        assert there.is_valid().equals(here.is_valid())
        same = there.drop_null(), here.drop_null()
        if pa.types.is_floating(there.type):
            same = tuple(
                pa.array(each.to_numpy().view(f"i{each.nbytes // len(each)}"))
                if len(each)
                else each
                for each in same
            )
        assert same[0].equals(same[1])


@pytest.mark.parametrize("more", ["", ", 2::numeric AS b, 'NaN'::numeric(9, 2) AS c"])
def test_numbers_of_any_precision_are_read_as_doubles(connection, more):
    query = f"SELECT NULL::numeric AS n, 0.1 AS a{more}, 'text' AS s"
    found = read(connection, query)
    assert found.schema.field("n").type == pa.float64()
    assert found["n"].null_count == 1
    assert found["a"].to_pylist() == [0.1]
    assert found["s"].to_pylist() == ["text"]
    if more:
        assert np.isnan(found["c"][0].as_py())


def test_domains_are_numbers(connection):
    with connection.cursor() as cursor:
        cursor.execute("CREATE DOMAIN positive AS float8 CHECK (value > 0)")
    query = "SELECT 1::positive AS a, 2::positive AS b, 3::float8 AS c, 'd' AS s"
    assert read(connection, query).to_pylist() == [{"a": 1.0, "b": 2.0, "c": 3.0, "s": "d"}]


def test_columns_left_out_are_not_computed(connection):
    query = "SELECT g AS a, 1 / (g - 2) AS b FROM generate_series(1, 3) AS g"
    assert read(connection, query, ["a"])["a"].to_pylist() == [1, 2, 3]
    with pytest.raises(DataError, match="division by zero"):
        read(connection, query)
    connection.rollback()


def test_a_query_that_changes_a_table_runs_once(connection):
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE t (a float8, b float8, c float8, d float8)")
    query = "INSERT INTO t VALUES (1, 2, 3, 4), (5, 6, 7, 8) RETURNING *"
    assert read(connection, query, ["d", "a"]).to_pydict() == {"d": [4.0, 8.0], "a": [1.0, 5.0]}
    assert read(connection, "SELECT count(*) AS n FROM t")["n"].to_pylist() == [2]


def test_a_query_ends_with_a_comment(connection):
    assert read(connection, "SELECT 1 AS a, 2 AS b -- three", ["b"])["b"].to_pylist() == [2]
