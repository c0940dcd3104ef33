"""Objects that give record batches once: of Arrow, of DuckDB, of ADBC and by the Arrow C stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.data.files.arrow import pa
from gpukeras.data.files.postgresql import PostgresQuery, is_postgresql

QUERY_ROWS = 2**14  # rows that DuckDB puts into a batch
# Methods of a query that give a reader: of DuckDB, newest first, and of ADBC's cursors.
FETCH = ("to_arrow_reader", "fetch_record_batch")


@dataclass(frozen=True)
class BatchSource:
    """Rows that wait to be read.

    Args:
        schema: Schema of all columns.
        read: Yields the batches, with the columns named at least.
        close: Releases the rows, such as the result of a query.
    """

    schema: pa.Schema
    read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    close: Callable[[], Any] = lambda: None


def open_source(source: Any) -> BatchSource | None:
    """Returns the rows of an object, or None if it has none.

    Args:
        source: A `pyarrow.dataset.Dataset`, a relation of DuckDB, the result of a query, or an
            object with an Arrow C stream. Of the first two only the columns named are read.
    """
    if isinstance(source, pa.RecordBatchReader):
        return BatchSource(source.schema, lambda _: source)
    if callable(getattr(source, "scanner", None)):
        read = lambda names: source.scanner(columns=list(names)).to_reader()  # noqa: E731
        return BatchSource(source.schema, read)
    if _is_duckdb(source) and hasattr(source, "project"):
        with _fetch(source.limit(0)) as empty:  # plans the query, and runs none of it
            return BatchSource(empty.schema, lambda names: _fetch(_project(source, names)))
    reader = _fetch(source)
    if reader is None and hasattr(source, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(source)
    return None if reader is None else BatchSource(reader.schema, lambda _: reader)


def open_query(connection: Any, query: str) -> BatchSource | None:
    """Returns the rows of a query, or None if the query has none.

    Args:
        connection: A connection of DuckDB or ADBC.
        query: The query. PostgreSQL and DuckDB run it when its rows are read.
    """
    if hasattr(connection, "sql"):  # DuckDB
        return open_source(connection.sql(query))
    if is_postgresql(connection):
        asked = PostgresQuery(connection, query)
        return BatchSource(asked.schema, asked.read, asked.close)
    cursor = connection.cursor()
    try:
        cursor.execute(query)
        reader = _fetch(cursor)
    except BaseException:
        cursor.close()
        raise
    if reader is None:  # a connection of another kind
        cursor.close()
        return None
    return BatchSource(reader.schema, lambda _: reader, cursor.close)


def _is_duckdb(source: Any) -> bool:
    return "duckdb" in type(source).__module__


def _fetch(source: Any) -> Any:
    """Returns a reader of a query's result, or None if it is none."""
    for name in FETCH:  # before the C stream, which DuckDB collects first
        if hasattr(source, name):
            return getattr(source, name)(*([QUERY_ROWS] if _is_duckdb(source) else []))
    return None


def _project(relation: Any, names: Sequence[str]) -> Any:
    """Restricts a relation of DuckDB to some columns; it keeps the order of the rows."""
    if list(names) == list(relation.columns):
        return relation
    quoted = ('"' + name.replace('"', '""') + '"' for name in names)
    return relation.project(", ".join(quoted))


class ForeignStream:
    """An Arrow C stream in memory of another library, which keeps the memory itself.

    Args:
        address: The address of its `struct ArrowArrayStream`, in decimals.
    """

    def __init__(self, address: str) -> None:
        """Stores the address."""
        self._address = int(address)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Returns the stream as the protocol of PyCapsules asks."""
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(self._address, b"arrow_array_stream", None)
