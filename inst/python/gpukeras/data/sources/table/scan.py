"""The first pass over files: stores their rows and computes statistics over all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.core.prefetch import read_ahead
from gpukeras.data.arrays import check_some
from gpukeras.data.files.arrow import pa, row_bytes
from gpukeras.data.files.arrow_columns import to_column
from gpukeras.data.files.errors import read_stamp
from gpukeras.data.files.paths import compression_of
from gpukeras.data.files.remote_file import any_remote
from gpukeras.data.files.stream import R_CHUNKS
from gpukeras.data.preprocessing.columns import Learning, kind_of
from gpukeras.data.sources.table.spool import Spool
from gpukeras.data.sources.table.summaries import LevelUnion, NumberSummary

DECODED_QUICKLY = ("parquet", "feather")  # read again rather than copied to a scratch file


def read_column(batch: pa.RecordBatch, name: str) -> Mapping[str, Any]:
    """Returns a column of a batch, in the format of `columns`."""
    return to_column(name, batch.column(batch.schema.get_field_index(name)))


def empty_column(schema: pa.Schema, name: str) -> Mapping[str, Any]:
    """Returns a column without rows: its kind, zone and units."""
    return to_column(name, pa.array([], schema.field(name).type))


@dataclass
class ColumnScan:
    """Statistics collected during the first pass over the rows.

    Args:
        unions: Category columns by name.
        numbers: Numeric columns by name whose statistics cover all rows.
        beside: Columns that are stored whole: the label and the weights.
    """

    unions: dict[str, LevelUnion] = field(default_factory=dict)
    numbers: dict[str, NumberSummary] = field(default_factory=dict)
    beside: dict[str, WholeColumn] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds a batch of rows."""
        for union in self.unions.values():
            union.add(read_column(batch, union.name))
        for summary in self.numbers.values():
            summary.add(read_column(batch, summary.name), None)
        for column in self.beside.values():
            column.add(read_column(batch, column.name))


def choose_watch(
    columns: Sequence[Mapping[str, Any]],
    beside: Sequence[Mapping[str, Any]],
    how: Learning,
    whole: bool,
) -> ColumnScan:
    """Chooses the statistics to collect.

    Args:
        columns: Feature columns that need rules, without rows.
        beside: The label and the weights, without rows.
        how: Options for learning the features; its masks of rows are unused.
        whole: Whether all rows are training rows.
    """
    watch = ColumnScan(beside={column["name"]: WholeColumn(column) for column in beside})
    for column in columns:
        if kind_of(column) == "category":
            watch.unions[column["name"]] = choose_union(column, how)
        elif whole and NumberSummary(column, how).needed:
            watch.numbers[column["name"]] = NumberSummary(column, how)
    return watch


def choose_union(column: Mapping[str, Any], how: Learning) -> LevelUnion:
    """Chooses whether to keep a category's levels and its rows' codes."""
    name = column["name"]
    is_text = how.text is not None and name in how.text.columns
    codes, encoding = how.impute or is_text, how.encoding(name)
    levels = codes or encoding != "hash"
    onehot = encoding == "onehot" and not is_text
    return LevelUnion(column, how.arg, codes=codes, levels=levels, onehot=onehot)


class WholeColumn:
    """A column that is stored whole while rows are read block by block.

    Args:
        column: The column, without rows.
    """

    def __init__(self, column: Mapping[str, Any]) -> None:
        """Starts without rows."""
        self.name = column["name"]
        self._empty = column
        self._union = LevelUnion(column, "y", codes=True) if kind_of(column) == "category" else None
        self._values: list[np.ndarray] = []

    def add(self, column: Mapping[str, Any]) -> None:
        """Adds a block of rows."""
        if self._union is not None:
            self._union.add(column)
        else:
            # Copies, so that the file's other columns can leave memory.
            self._values.append(np.array(column["values"]))

    def take(self) -> dict[str, Any]:
        """Returns the whole column and drops it from this object."""
        if self._union is not None:
            return self._union.column()
        parts, self._values = self._values, []
        types = [np.asarray(self._empty["values"]).dtype, *(part.dtype for part in parts)]
        values, start = np.empty(sum(map(len, parts)), np.result_type(*types)), 0
        while parts:  # frees each part's memory after its copy
            part = parts.pop(0)
            values[start : start + len(part)] = part
            start += len(part)
        return {**self._empty, "values": values}


def expected_bytes(reader: Any) -> int | None:
    """Estimates the memory of all batches of a reader, in bytes; None for a stream."""
    if reader.known_rows is not None:
        return reader.known_rows * row_bytes(reader.schema)
    if not reader.files:
        return None
    # Text files are about as large as their columns in memory, compressed files a quarter of it.
    return sum(read_stamp(each)[0] * (4 if compression_of(each) else 1) for each in reader.files)


class Scan:
    """The rows of files, read once and stored for later passes.

    Args:
        reader: Reader of the rows, see `files.table.open_table()` and `files.stream`.
        arg: Name of the user's argument, for error messages.
        watch: Statistics to collect during the pass.
        again: Whether files that decode quickly may be read again instead of stored.
    """

    def __init__(self, reader: Any, arg: str, watch: ColumnScan, again: bool) -> None:
        """Reads all rows.

        Raises:
            DataError: if there are no rows, or a file cannot be read.
        """
        # Objects of stores are read once.
        again = again and reader.format in DECODED_QUICKLY and not any_remote(reader.files)
        self.watch, self.open = watch, True
        anew = reader.batches if again else None
        self.spool = Spool(reader.schema, arg, anew, expected_bytes(reader))
        try:
            batches = reader.batches()
            for batch in batches if reader.format == R_CHUNKS else read_ahead(batches):
                self.spool.write(batch)
                watch.add(batch)
            self.spool.finish()
        except BaseException:
            self.spool.close()
            raise
        check_some(self.spool.rows, arg)

    def close(self) -> None:
        """Releases the stored rows."""
        self.open = False
        self.spool.close()
