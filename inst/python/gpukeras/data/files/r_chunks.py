"""Record batches of the chunks that an R function makes, such as the rows of a DBI result.

R's columns become Arrow's, the inverse of `arrow_columns`. The function runs on R's main thread
only, so the batches are made on the thread that asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, GeneratorError
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.columnar import convert
from gpukeras.data.files.schema import unify

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
            `{interrupted: True}`. Kinds are those of `arrow_columns`, and "integer64" and "other",
            which has no values.
        arg: Name of the user's argument, for error messages.
        fail: Makes the error of an argument, a number of rows and what the database says.
    """

    def __init__(
        self,
        call: Callable[[list[str] | None], Mapping[str, Any] | None],
        arg: str,
        fail: Callable[[str, int, Exception], DataError],
    ) -> None:
        """Reads the first chunks."""
        self._call, self._arg, self._fail = call, arg, fail
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
            found = [column_type(column) for column in columns]
            types = [unify(*pair) or pair[0] for pair in zip(types or found, found, strict=True)]
            self._peeked.append([to_array(*pair) for pair in zip(columns, found, strict=True)])
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
            raise self._fail(self._arg, self._rows, RuntimeError(made["failed"]))
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
