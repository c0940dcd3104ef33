"""Reads queries of PostgreSQL by ADBC, with part of a row's numbers packed into one value.

    query --describe--> schema --plan_query()--> SELECT array_send(ARRAY[...]), text FROM (query)
    record batches of bytes --unpack_batch()--> record batches of the query's columns

ADBC's driver converts value by value, and works while the server does. Packing moves work from the
driver to the server, so part of the numbers is packed: then both end at about the same time.
Reading 2 million rows of 29 numbers, and making a dataset of them, on 2 quiet cores:

    packed   reading   driver's processor   dataset
    0          3.7 s                3.7 s
    6 (0.2)                                   4.4 s
    10         3.3 s                2.9 s     4.2 s
    20         4.0 s                2.2 s     4.3 s
    29         4.1 s                1.6 s     4.6 s

The bits are the same: both ways send numbers in PostgreSQL's binary format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.data.files.arrow import pa

PACKED: Mapping[str, np.dtype] = {  # PostgreSQL's types, and numbers of the same bits
    "float8": np.dtype(">f8"),
    "float4": np.dtype(">f4"),
    "int8": np.dtype(">i8"),
    "int4": np.dtype(">i4"),
    "int2": np.dtype(">i2"),
}
AS_FLOAT = ("numeric",)  # asked for as float8: ADBC's driver makes texts of them
LEAST = 3  # columns of a type in a pack: each pack costs the server an array
SHARE = 0.4  # of the columns of a type that are packed
TYPE = b"POSTGRESQL:type"  # metadata of a field, by ADBC's driver
HEADER = 20  # bytes of an array before its elements: dimensions, flags, type, length, lower bound
TILE_ROWS = 1024  # unpacked at once: a tile stays in the processor's cache
# A query that may stand in FROM: it starts as a question does, and nothing in it changes a table.
STARTS = re.compile(r"(select|values|table|with)\b", re.IGNORECASE)
CHANGES = re.compile(r"\b(insert|update|delete|merge|into)\b|;", re.IGNORECASE)


@dataclass(frozen=True)
class QueryPlan:
    """How a query is sent.

    Args:
        query: What is sent.
        items: The columns that each column of its result holds, one name unless they are packed.
        reason: Why.
    """

    query: str
    items: tuple[tuple[str, ...], ...]
    reason: str

    def __post_init__(self) -> None:
        """Checks that there are columns, each once."""
        names = [name for item in self.items for name in item]
        if not names or len(set(names)) < len(names):
            raise ValueError("a query gives columns, each once")


def plan_query(query: str, types: Mapping[str, str], names: Sequence[str]) -> QueryPlan:
    """Plans to send a query as a subquery, for the columns wanted, with numbers packed.

    PostgreSQL keeps the order of a subquery whose rows are only projected.

    Args:
        query: The user's query.
        types: PostgreSQL's type of each column of its result, in order, or "".
        names: The columns wanted.
    """
    if not is_question(query):
        return QueryPlan(query, tuple((name,) for name in types), "may change tables")
    read = {name: read_type(type) for name, type in types.items()}
    packs = [[name for name in names if read[name] == each] for each in PACKED]
    packs = [pack[: max(LEAST, round(SHARE * len(pack)))] for pack in packs if len(pack) >= LEAST]
    packed = {name for pack in packs for name in pack}
    if not packs and list(names) == list(types) and read == types:
        return QueryPlan(query, tuple((name,) for name in types), "all columns, few numbers")
    alone = [(name,) for name in names if name not in packed]
    shown = [_pack([_column(name, read[name]) for name in pack]) for pack in packs]
    for (name,) in alone:
        shown.append(_column(name, read[name] if read[name] != types[name] else ""))
    sent = f"SELECT {', '.join(shown)} FROM (\n{_bare(query)}\n) AS q"
    return QueryPlan(sent, (*map(tuple, packs), *alone), f"{len(packed)} columns of numbers packed")


def is_question(query: str) -> bool:
    """Whether a query may stand in FROM, because it surely changes no table."""
    bare = _bare(query)
    return STARTS.match(bare) is not None and CHANGES.search(bare) is None


def read_type(type: str) -> str:
    """Returns the type as which a column of a type is asked for."""
    return "float8" if type in AS_FLOAT else type


def _bare(query: str) -> str:
    return query.strip().rstrip(";").rstrip()


def _column(name: str, type: str) -> str:
    """Returns a column, cast unless the type is ""; this changes domains and `AS_FLOAT` alone."""
    escaped = name.replace('"', '""')
    return f'q."{escaped}"' + (f"::pg_catalog.{type}" if type else "")


def _pack(values: Sequence[str]) -> str:
    return f"pg_catalog.array_send(ARRAY[{', '.join(values)}])"


class PostgresQuery:
    """A query that waits to be run, with the columns of its result.

    Args:
        connection: A connection of ADBC to PostgreSQL.
        query: The query.
    """

    def __init__(self, connection: Any, query: str) -> None:
        """Asks the server for the columns; runs nothing."""
        self._cursor, self._query = connection.cursor(), query
        try:
            described = self._cursor.adbc_execute_schema(query)
        except BaseException:
            self._cursor.close()
            raise
        types = {each.name: (each.metadata or {}).get(TYPE, b"").decode() for each in described}
        floats = [name for name in types if is_question(query) and types[name] in AS_FLOAT]
        self._types = types
        self.schema = pa.schema(
            [(each.name, pa.float64() if each.name in floats else each.type) for each in described]
        )

    def read(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Runs the query, and yields the batches of some columns at least."""
        plan = plan_query(self._query, self._types, names)
        self._cursor.execute(plan.query)
        for batch in self._cursor.fetch_record_batch():
            yield unpack_batch(batch, plan.items, self._types)

    def close(self) -> None:
        """Releases the result."""
        self._cursor.close()


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


def unpack_batch(
    batch: pa.RecordBatch, items: Sequence[Sequence[str]], types: Mapping[str, str]
) -> pa.RecordBatch:
    """Returns the columns of a batch, those packed and the others.

    Args:
        batch: A batch of a planned query's result.
        items: The names that each of its columns holds.
        types: PostgreSQL's type of each name.
    """
    arrays: dict[str, pa.Array] = {}
    for names, column in zip(items, batch.columns, strict=True):
        if len(names) == 1:
            arrays[names[0]] = column
        else:
            unpacked = unpack(column, len(names), PACKED[read_type(types[names[0]])])
            arrays |= zip(names, unpacked, strict=True)
    return pa.RecordBatch.from_arrays([*arrays.values()], names=[*arrays])


def unpack(packed: pa.BinaryArray, count: int, dtype: np.dtype) -> list[pa.Array]:
    """Returns the elements of arrays of numbers in PostgreSQL's binary format, NULL as missing.

    Args:
        packed: An array of `count` numbers in each value.
        count: Number of columns.
        dtype: The numbers, big-endian.

    Raises:
        DataError: if a value is no such array.
    """
    rows = len(packed)
    if rows == 0:
        return [pa.array([], pa.from_numpy_dtype(dtype.newbyteorder("=")))] * count
    offsets, data = packed.buffers()[1:]
    starts = np.frombuffer(offsets, np.int32)[packed.offset : packed.offset + rows + 1]
    content = np.frombuffer(data, np.uint8)
    out = np.empty((count, rows), dtype.newbyteorder("="))
    absent: np.ndarray | None = None
    whole = HEADER + count * (4 + dtype.itemsize)  # bytes without NULL
    for first in range(0, rows, TILE_ROWS):
        tile = starts[first : first + TILE_ROWS + 1]
        part = out[:, first : first + len(tile) - 1]
        if (np.diff(tile) == whole).all():
            place = (part.shape[1], count), out.dtype, content, tile[0] + HEADER + 4
            part[...] = np.ndarray(*place, (whole, 4 + dtype.itemsize)).T
            part.byteswap(inplace=True)  # apart from the copy: together it takes 3 times as long
        else:
            absent = np.zeros(out.shape, bool) if absent is None else absent
            _walk(content, tile, dtype, part, absent[:, first : first + len(tile) - 1])
    return [
        pa.array(values, mask=None if absent is None else absent[place])
        for place, values in enumerate(out)
    ]


def _walk(
    content: np.ndarray, tile: np.ndarray, dtype: np.dtype, out: np.ndarray, absent: np.ndarray
) -> None:
    """Unpacks rows with NULL, element by element of all rows: its length is -1, without a value."""
    width = dtype.itemsize
    lengths, values = (np.lib.stride_tricks.sliding_window_view(content, n) for n in (4, width))
    at = tile[:-1].astype(np.int64) + HEADER
    for place in range(len(out)):
        there = lengths[at].view(">i4")[:, 0] == width
        found = values[np.minimum(at + 4, len(values) - 1)]
        out[place] = np.where(there, found.view(dtype)[:, 0], 0)
        absent[place] = ~there
        at += np.where(there, 4 + width, 4)
    if not np.array_equal(at, tile[1:]):
        raise DataError("PostgreSQL sent an array of another length than asked for.")
