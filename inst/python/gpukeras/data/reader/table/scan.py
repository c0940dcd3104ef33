"""The first pass over files: stores their rows and computes statistics over all rows."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.core.prefetch import read_ahead
from gpukeras.data.arrays import check_some
from gpukeras.data.files.arrow import ipc, pa, row_bytes
from gpukeras.data.files.files import any_remote, read_stamp
from gpukeras.data.files.paths import compression_of
from gpukeras.data.reader.rows import Reader
from gpukeras.data.reader.storage import disk_full, make_scratch
from gpukeras.data.reader.table.columns import LevelUnion, WholeColumn
from gpukeras.data.reader.table.schema import to_column
from gpukeras.data.reader.table.stream import R_CHUNKS
from gpukeras.data.recipe.columns import Learning, NumberSummary, kind_of

# Batches that are kept ----------------------------------------------------------------------------

MEMORY_BYTES = 128 * 2**20  # of batches in memory; encoded rows take memory too
# The same where the size is not known before: the allocator does not return all memory, and what
# makes the batches, such as a database's driver, needs some of its own.
UNKNOWN_BYTES = 32 * 2**20


class Spool:
    """Stores record batches in order.

    Args:
        schema: Schema of all batches; dictionaries may differ.
        arg: Name of the user's argument, for error messages.
        anew: Function that reads the files again, or None to store the batches.
        expected: Estimated size of all batches in bytes, or None if it is unknown.
    """

    def __init__(
        self,
        schema: pa.Schema,
        arg: str,
        anew: Callable[[], Iterator[pa.RecordBatch]] | None = None,
        expected: int | None = 0,
    ) -> None:
        """Starts without batches."""
        self.rows = 0
        self._schema = schema
        self._arg = arg
        self._anew = anew
        self._kept: list[pa.RecordBatch] | None = []
        self._bytes = 0
        self._path: Path | None = None
        self._writer: Any = None
        self._sink: Any = None
        self._limit = UNKNOWN_BYTES if expected is None else MEMORY_BYTES
        if expected is not None and expected > self._limit:
            self._overflow()  # at once: the allocator does not return all memory

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends a batch."""
        self.rows += batch.num_rows
        if self._writer is not None:
            self._write_disk(batch)
        elif self._kept is not None:
            self._kept.append(batch)
            self._bytes += batch.nbytes
            if self._bytes > self._limit:
                self._overflow()

    def finish(self) -> None:
        """Ends writing."""
        if self._writer is not None:
            try:
                self._writer.close()
                self._sink.close()
            except OSError as error:
                assert self._path is not None  # there is a writer
                raise disk_full(self._path.parent, self._arg) from error
            self._writer = self._sink = None
        # What files and stores were read into: 100 MiB of objects of S3, of 300 in all.
        pa.default_memory_pool().release_unused()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all batches in order.

        Raises:
            DataError: if the files, or the scratch file, changed.
        """
        rows = 0
        for batch in self._read():
            rows += batch.num_rows
            yield batch
        if rows != self.rows:
            raise DataError(
                f"`{self._arg}` has {count_of(rows, 'row')} where it had {self.rows:,}: "
                f"its files changed "
                "while they were read.",
                hint="Make the dataset again.",
                arg=self._arg,
            )

    def close(self) -> None:
        """Drops the batches and removes the scratch file."""
        self.finish()
        self._kept = []
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        pa.default_memory_pool().release_unused()

    def _read(self) -> Iterator[pa.RecordBatch]:
        if self._kept is not None:
            return iter(self._kept)
        if self._path is not None:
            return read_ahead(self._read_disk())
        assert self._anew is not None  # else they were kept or written
        return read_ahead(self._anew())

    def _overflow(self) -> None:
        kept, self._kept = self._kept, None
        if self._anew is None:
            self._open_disk()
            for batch in kept or ():
                self._write_disk(batch)
        del kept
        pa.default_memory_pool().release_unused()

    def _open_disk(self) -> None:
        self._path = make_scratch(".arrows", self._bytes, self._arg)
        weakref.finalize(self, self._path.unlink, missing_ok=True)
        self._sink = pa.OSFile(str(self._path), "wb")
        # In Arrow's stream format dictionaries may change between batches, in its file format not.
        self._writer = ipc.new_stream(self._sink, self._schema)

    def _write_disk(self, batch: pa.RecordBatch) -> None:
        try:
            self._writer.write_batch(batch)
        except OSError as error:
            assert self._path is not None  # opened before
            folder = self._path.parent
            self._path.unlink(missing_ok=True)
            raise disk_full(folder, self._arg) from error

    def _read_disk(self) -> Iterator[pa.RecordBatch]:
        try:
            with pa.OSFile(str(self._path), "rb") as file, ipc.open_stream(file) as stream:
                yield from stream
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(
                f"The scratch file of `{self._arg}` is gone or damaged.",
                hint="Make the dataset again, and leave the temporary folder alone meanwhile.",
                arg=self._arg,
                path=str(self._path),
            ) from error


# The first pass -----------------------------------------------------------------------------------

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


def expected_bytes(reader: Reader) -> int | None:
    """Estimates the memory of all batches of a reader, in bytes; None for a stream."""
    if reader.known_rows is not None:
        return reader.known_rows * row_bytes(reader.schema)
    if not reader.files:
        return None
    # Text files are about as large as their columns in memory, compressed files a quarter of it.
    return sum(read_stamp(each)[0] * (4 if compression_of(each) else 1) for each in reader.files)


class Scan(Spool):
    """The rows of files, read once and stored for later passes.

    Args:
        reader: Reader of the rows, see `features.open_table()` and `stream`.
        arg: Name of the user's argument, for error messages.
        watch: Statistics to collect during the pass.
        again: Whether files that decode quickly may be read again instead of stored.
    """

    def __init__(self, reader: Reader, arg: str, watch: ColumnScan, again: bool) -> None:
        """Reads all rows.

        Raises:
            DataError: if there are no rows, or a file cannot be read.
        """
        # Objects of stores are read once.
        again = again and reader.format in DECODED_QUICKLY and not any_remote(reader.files)
        anew = reader.batches if again else None
        super().__init__(reader.schema, arg, anew, expected_bytes(reader))
        self.watch, self.open = watch, True
        try:
            batches = reader.batches()
            ahead = batches if reader.format == R_CHUNKS else read_ahead(batches)
            for batch in reader.counted(ahead):
                self.write(batch)
                watch.add(batch)
            self.finish()
        except BaseException:
            self.close()
            raise
        check_some(self.rows, arg)

    def close(self) -> None:
        """Releases the stored rows."""
        self.open = False
        super().close()
