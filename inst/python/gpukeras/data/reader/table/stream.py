"""Record batches that come once: Arrow streams, queries of databases, and chunks of R.

    query --describe--> schema --plan_query()--> SELECT columns FROM (query)

ADBC's driver makes texts of `numeric`. To read 400,000 rows of 10 such columns and to parse them
took 1.3 s; as doubles, which the server casts, 0.7 s.

    Arrow object | connection and query | address | R function --open_stream()--> StreamReader

All of them are a schema and record batches. Whoever needs the rows again stores them.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, GeneratorError, GpuKerasError, SpecError
from gpukeras.core.messages import find_reason, hide_credentials
from gpukeras.data.files.arrow import batch_rows, pa
from gpukeras.data.reader.rows import Reader
from gpukeras.data.reader.table.columnar import convert, note_rounded, validated
from gpukeras.data.reader.table.schema import check_different, check_types, unify

# PostgreSQL ---------------------------------------------------------------------------------------

NUMERIC = "numeric"
TYPE = b"POSTGRESQL:type"  # metadata of a field, by ADBC's driver
# A query that may stand in FROM: it starts as a question does, and nothing in it changes a table.
STARTS = re.compile(r"(select|values|table|with)\b", re.IGNORECASE)
CHANGES = re.compile(r"\b(insert|update|delete|merge|into)\b|;", re.IGNORECASE)


def plan_query(query: str, types: Mapping[str, str], names: Sequence[str]) -> str:
    """Returns what is sent for a query: itself, or a subquery for the columns wanted.

    PostgreSQL keeps the order of a subquery whose rows are only projected.

    Args:
        query: The user's query.
        types: PostgreSQL's type of each column of its result, in order, or "".
        names: The columns wanted.
    """
    whole = list(names) == list(types) and NUMERIC not in types.values()
    if whole or not is_question(query):
        return query
    shown = ", ".join(_column(name, types[name]) for name in names)
    return f"SELECT {shown} FROM (\n{_bare(query)}\n) AS q"


def is_question(query: str) -> bool:
    """Whether a query may stand in FROM, because it surely changes no table."""
    bare = _bare(query)
    return STARTS.match(bare) is not None and CHANGES.search(bare) is None


def _bare(query: str) -> str:
    return query.strip().rstrip(";").rstrip()


def _column(name: str, type: str) -> str:
    escaped = name.replace('"', '""')
    return f'q."{escaped}"' + ("::pg_catalog.float8" if type == NUMERIC else "")


def is_postgresql(connection: Any) -> bool:
    """Whether a connection of ADBC is one to PostgreSQL, and not to another of its protocol."""
    if not hasattr(connection, "adbc_get_info"):
        return False
    if connection.adbc_get_info().get("vendor_name") != "PostgreSQL":
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_catalog.version()")
        (version,) = cursor.fetchone()
    return version.startswith("PostgreSQL ") and ", compiled by " in version


# Chunks of an R function --------------------------------------------------------------------------

Column = Mapping[str, Any]
PEEKED = 8  # chunks at most that are read until each column shows a type
NA_INTEGER64 = np.iinfo(np.int64).min  # of R's package bit64


class ChunkReader:
    """Chunks of rows with the same columns.

    A database without types for columns, such as SQLite, shows a column's type by its first value.
    So chunks are read ahead until each column has shown one.

    Args:
        call: R function of the names of the columns wanted, or None for all. Returns
            `{columns: [{name, kind, values, ...}]}`, None at the end, `{failed: reason}` or
            `{interrupted: True}`. Kinds are those of `schema`, and "integer64" and "other",
            which has no values.
        arg: Name of the user's argument, for error messages.
    """

    def __init__(
        self, call: Callable[[list[str] | None], Mapping[str, Any] | None], arg: str
    ) -> None:
        """Reads the first chunks."""
        self._call = call
        self._arg = arg
        self._rows = 0  # of the chunks so far
        self._ended = False
        self._peeked: list[list[pa.Array]] = []
        self._names: list[str] = []
        types: list[pa.DataType] = []
        while len(self._peeked) < PEEKED and (not types or pa.null() in types):
            columns = self._next(None)
            if columns is None:
                break
            self._names = [column["name"] for column in columns]
            read_types = [column_type(column) for column in columns]
            types = [
                unify(*pair) or pair[0]
                for pair in zip(types or read_types, read_types, strict=True)
            ]
            self._peeked.append([to_array(*pair) for pair in zip(columns, read_types, strict=True)])
        if not self._names:
            raise DataError(f"`{arg}` has no columns.", arg=arg)
        self.schema = pa.schema(list(zip(self._names, types, strict=True)))

    def batches(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the given columns of all chunks, each chunk as a batch.

        Raises:
            DataError: if the function failed, or a column changes its type.
            GeneratorError: if the user interrupted it.
        """
        fields, start = [self.schema.field(name) for name in names], 0
        schema = pa.schema(fields)
        peeked, self._peeked = self._peeked, []
        places = [self._names.index(name) for name in names]
        while peeked:
            chunk = peeked.pop(0)
            yield self._batch([chunk[place] for place in places], schema, start)
            start += len(chunk[0])
        while (columns := self._next(list(names))) is not None:
            by_name = {column["name"]: column for column in columns}
            chosen = [by_name[name] for name in names]
            arrays = [to_array(column, column_type(column)) for column in chosen]
            yield self._batch(arrays, schema, start)
            start += len(arrays[0])

    def _next(self, names: list[str] | None) -> list[Column] | None:
        made = None if self._ended else self._call(names)
        if made is None:
            self._ended = True
            return None
        if made.get("interrupted"):
            raise GeneratorError("Interrupted.")
        if made.get("failed"):
            raise broken_off(self._arg, self._rows, RuntimeError(made["failed"]))
        columns: list[Column] = made["columns"]
        self._rows += int(made["rows"])
        return columns

    def _batch(self, arrays: list[pa.Array], schema: pa.Schema, start: int) -> pa.RecordBatch:
        made = []
        for values, field in zip(arrays, schema, strict=True):
            try:
                same = unify(field.type, values.type) is not None and field.type != pa.null()
                made.append(convert(values, field.type) if same or not len(values) else None)
            except pa.ArrowInvalid:
                made.append(None)
            if made[-1] is None:
                if values.null_count == len(values):
                    made[-1] = pa.nulls(len(values), field.type)
                    continue
                raise self._changed(field, values, start)
        return pa.RecordBatch.from_arrays(made, schema=schema)

    def _changed(self, field: pa.Field, values: pa.Array, start: int) -> DataError:
        before = "no value" if field.type == pa.null() else f"the type {field.type}"
        return DataError(
            f"Column `{field.name}` of `{self._arg}` has values of the type {values.type} behind "
            f"row {start:,}, and {before} in the rows before.",
            hint="Give it one type in the query, by CAST.",
            arg=self._arg,
            column=field.name,
            row=start,
        )


def column_type(column: Column) -> pa.DataType:
    """Returns the Arrow type of a column as R passes it."""
    kind = column["kind"]
    if kind == "logical" and np.isnan(np.asarray(column["values"], np.float64)).all():
        return pa.null()  # R's type of a column that has no value
    return pa.timestamp("us", column["zone"]) if kind == "time" else _TYPES[kind]


def to_array(column: Column, type: pa.DataType) -> pa.Array:
    """Converts one column; copies its values, whose memory R may reuse.

    Args:
        column: `{name, kind, values}`, with `levels` for categories, `zone` for times; durations
            are in seconds. Missing values are NaN, code 0 in categories, and bit64's NA.
        type: Its `column_type()`.
    """
    kind = column["kind"]
    if kind == "other":
        return pa.nulls(int(column["rows"]), type)
    values = np.array(column["values"]).reshape(-1)
    if type == pa.null():
        return pa.nulls(len(values))
    if kind in ("factor", "character"):
        levels = pa.array(list(column["levels"]), pa.string())
        codes = pa.array(values.astype(np.int32) - 1, mask=values == 0)
        coded = pa.DictionaryArray.from_arrays(codes, levels)
        return coded if kind == "factor" else coded.cast(type)
    if kind == "integer64":
        values = values.view(np.int64)
        return pa.array(values, mask=values == NA_INTEGER64)
    if kind == "numeric":
        return pa.array(values, type)
    absent = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    whole = np.where(absent, 0, values) * _UNITS.get(kind, 1)
    rounded = np.floor(whole) if kind == "date" else np.rint(whole)
    numbers = pa.array(rounded.astype(np.int64), mask=absent)
    return numbers.cast(pa.int32()).cast(type) if kind == "date" else numbers.cast(type)


_UNITS = {"time": 1_000_000, "duration": 1_000_000}
_TYPES = {
    "numeric": pa.float64(),
    "integer": pa.int64(),
    "integer64": pa.int64(),
    "logical": pa.bool_(),
    "factor": pa.dictionary(pa.int32(), pa.string()),
    "character": pa.string(),
    "date": pa.date32(),
    "duration": pa.duration("us"),
    "other": pa.binary(),
}


# Objects with Arrow streams -----------------------------------------------------------------------

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
        return _open_postgresql(connection, query)
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


def _open_postgresql(connection: Any, query: str) -> BatchSource:
    """Asks the server for the columns of a query, which runs when its rows are read."""
    cursor = connection.cursor()
    try:
        described = cursor.adbc_execute_schema(query)
    except BaseException:
        cursor.close()
        raise
    types = {each.name: (each.metadata or {}).get(TYPE, b"").decode() for each in described}
    floats = [name for name in types if is_question(query) and types[name] == NUMERIC]
    schema = pa.schema(
        [(each.name, pa.float64() if each.name in floats else each.type) for each in described]
    )

    def read(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        cursor.execute(plan_query(query, types, names))
        yield from cursor.fetch_record_batch()

    return BatchSource(schema, read, cursor.close)


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


# Readers ------------------------------------------------------------------------------------------

STREAM, R_CHUNKS = "stream", "r chunks"  # formats; an R function runs on the calling thread only
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


class StreamReader(Reader):
    """Rows that come once, in sequence.

    Args:
        source: The rows.
        arg: Name of the user's argument, for error messages.
        format: `STREAM` or `R_CHUNKS`.
    """

    def __init__(self, source: BatchSource, arg: str, format: str = STREAM) -> None:
        """Checks the names of the columns; reads no rows."""
        schema = source.schema.remove_metadata()
        check_different(schema.names, arg, None)
        super().__init__(format, schema, arg)
        self._source: Callable[[Sequence[str]], Iterator[pa.RecordBatch]] | None = source.read
        self._close = source.close

    def select(self, names: Sequence[str]) -> StreamReader:
        """Restricts the reader to some columns, in that order, and returns it.

        Raises:
            DataError: if one of them has a type that cannot be read.
        """
        schema = pa.schema([self.schema.field(name) for name in names])
        check_types(schema, self.arg, None)
        self.schema = schema
        return self

    def batches(self) -> Generator[pa.RecordBatch, None, None]:
        """Yields all rows in batches of a few MiB. Can be called once.

        Raises:
            DataError: if the rows break off, with the number of the last row (`row`), or if they
                were read before.
        """
        source, self._source = self._source, None
        if source is None:
            raise DataError(
                f"The rows of `{self.arg}` came once, and are gone.",
                hint="Make the dataset again.",
                arg=self.arg,
            )
        rows = 0
        try:
            for batch in source(self.names):
                chosen = validated(batch.select(list(self.names)))
                note_rounded(self, chosen)
                step = batch_rows(chosen.schema)
                for start in range(0, chosen.num_rows, step):
                    yield chosen.slice(start, step)
                rows += chosen.num_rows
        except GpuKerasError:
            raise
        except Exception as error:
            raise broken_off(self.arg, rows, error) from None
        finally:
            self.close()

    def close(self) -> None:
        """Releases the source."""
        close, self._close = self._close, lambda: None
        with suppress(Exception):  # a lost connection cannot be closed
            close()


def broken_off(arg: str, rows: int, error: Exception) -> DataError:
    """Returns the error for rows that end in a failure, without credentials.

    The driver's own exception is left out of the chain: it may show them. Behind the first row a
    text in quotes may be a value, and is left out too.

    Args:
        arg: Name of the user's argument, for error messages.
        rows: Number of rows before the failure.
        error: What the driver says.
    """
    told = find_reason(RuntimeError(hide_credentials(str(error))))  # whole, before it is cut
    if rows == 0:
        return DataError(f"`{arg}` cannot be read: {told}.", arg=arg, row=0)
    told = QUOTED.sub("...", told)
    return DataError(
        f"`{arg}` broke off behind row {rows:,}: {told}.",
        hint="No row of it was kept. Make the dataset again.",
        arg=arg,
        row=rows,
    )


def open_stream(asked: Any, arg: str) -> StreamReader:
    """Opens rows that come once.

    Args:
        asked: An object with an Arrow C stream or a reader of record batches (a table of pyarrow or
            polars, a `pyarrow.dataset.Dataset`, a relation of DuckDB); `{connection, query}` with a
            connection of ADBC or DuckDB; `{address}` of an Arrow C stream as text, which is moved;
            or `{call}` with an R function, see `ChunkReader`. `{source, here}` reads the rows
            of an object on the calling thread if `here` is true.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if the source cannot be opened.
        SpecError: if it is none of these.
    """
    parts = dict(asked) if isinstance(asked, Mapping) else {"source": asked}
    if "call" in parts:
        chunks = ChunkReader(parts["call"], arg)
        return StreamReader(BatchSource(chunks.schema, chunks.batches), arg, R_CHUNKS)
    here = bool(parts.get("here", "address" in parts))
    source = parts.get("connection", parts.get("source"))
    try:
        if "connection" in parts:
            opened = open_query(source, parts["query"])
        else:
            opened = open_source(ForeignStream(parts["address"]) if "address" in parts else source)
    except Exception as error:
        raise broken_off(arg, 0, error) from None
    if opened is None:
        raise SpecError(
            f"`{arg}` gives no Arrow stream: it is a {type(source).__name__}.",
            hint="Give an Arrow table or reader, or a connection of ADBC or DuckDB with a query.",
            arg=arg,
        )
    try:
        return StreamReader(opened, arg, R_CHUNKS if here else STREAM)
    except BaseException:
        opened.close()
        raise
