"""Tables in files, and files of typed columns.

A format is a module with `NAME`, `read_facts(path)`, which returns a file's schema, its number of
rows, None if only reading tells it, and a footer to read by, or None, and
`read_batches(path, names)`, which yields these columns of a file in batches of `arrow.batch_rows()`
rows. What such a module raises of a damaged file is in `arrow.DAMAGED`; of what a user can mend it
raises FileFaultError.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.core.prefetch import map_ahead, read_ahead, shutdown_without_join
from gpukeras.core.progress import count_pass
from gpukeras.data.files.arrow import DAMAGED, pa
from gpukeras.data.files.files import (
    AGAIN,
    AnyFile,
    FileFaultError,
    RemoteFile,
    Skipped,
    Stamp,
    any_remote,
    check_unchanged,
    file_error,
    opening_error,
    store_reason,
)
from gpukeras.data.files.paths import check_file
from gpukeras.data.reader.rows import Reader
from gpukeras.data.reader.table import feather, hdf5, parquet
from gpukeras.data.reader.table.schema import EXACT, Opening, check_types, reaches, unify_schema

# Shares of workers --------------------------------------------------------------------------------


def split_units(weights: Sequence[int], count: int) -> list[range]:
    """Splits units into consecutive runs of about equal weight, none of them empty.

    Args:
        weights: The weight of each unit; at least `count` units.
        count: Number of runs.
    """
    ends, sums = [0], [*accumulate(weights)]
    for number in range(1, count):
        goal = sums[-1] * number / count
        least, most = ends[-1] + 1, len(weights) - (count - number)
        near = min(range(least, most + 1), key=lambda end: abs(sums[end - 1] - goal))
        ends.append(near)
    return [range(*pair) for pair in zip(ends, [*ends[1:], len(weights)], strict=True)]


def _name_run(noun: str, run: range, units: int) -> str:
    which = (
        f"{noun} {run.stop:,}" if len(run) == 1 else f"{noun}s {run.start + 1:,} to {run.stop:,}"
    )
    return f"{which} of {units:,}"


# Files --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """One file of a table.

    Args:
        path: Path of the file.
        stamp: Size, and modification time or version, when the file was opened.
        facts: Format-specific data for reading the file.
        groups: The row groups to read, of Parquet files, or None for all.
        footer: A remote file's footer, or None to read it again.
    """

    path: AnyFile
    stamp: Stamp
    facts: Any
    groups: tuple[int, ...] | None = None
    footer: Any = None


def _join_groups(parts: Sequence[Part]) -> Part:
    """Joins row groups of one file; a whole file stands alone."""
    first = parts[0]
    if first.groups is None:
        return first
    groups = tuple(group for part in parts for group in part.groups or ())
    return replace(first, facts=sum(part.facts for part in parts), groups=groups)


class TableReader(Reader):
    """A table in files of one format.

    Args:
        parts: The files.
        format: Format of the files.
        schema: Schema of the batches.
        opening: How they were opened, and what that left out.
        notes: Sentences for the user.

    Attributes:
        skipped: Rows and files that the latest pass has left out so far.
        bytes_read: Bytes of the files that the latest pass has read so far, where only reading
            reveals the number of rows.
    """

    bytes_read = 0

    def __init__(
        self,
        parts: Sequence[Part],
        format: str,
        schema: pa.Schema,
        opening: Opening,
        notes: Iterable[str] = (),
    ) -> None:
        """Stores the arguments; reads no data."""
        super().__init__(format, schema, opening.arg, notes)
        self.files = tuple(part.path for part in parts)
        self.skips = opening.skipped is not None
        self._parts = tuple(parts)
        self._opened = opening.skipped or Skipped()
        self.skipped = replace(self._opened)

    def take_shard(self, index: int, count: int) -> str:
        """Restricts the reader to a worker's part of the files; returns a phrase for it.

        Args:
            index: Number of the worker, from 0.
            count: Number of workers.

        Raises:
            DataError: if there are fewer files, or row groups, than workers.
        """
        noun, units = self._list_units()
        if len(units) < count:
            raise DataError(
                f"`{self.arg}` has {count_of(len(units), noun)} for {count} workers.",
                hint="Write more files, or Parquet files with more row groups, or use fewer "
                "workers.",
                arg=self.arg,
            )
        run = split_units([weight for weight, _ in units], count)[index]
        taken: dict[AnyFile, list[Part]] = {}
        for _, part in units[run.start : run.stop]:
            taken.setdefault(part.path, []).append(part)
        files = len(self._parts)
        self._parts = tuple(map(_join_groups, taken.values()))
        self.files = tuple(taken)
        inside = noun != "file" and files > 1
        where = f", in {len(taken):,} of {count_of(files, 'file')}" if inside else ""
        return _name_run(noun, run, len(units)) + where

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the batches of a pass, and tells the call's listener how far it has come."""
        if self.known_rows is not None:
            return super().counted(batches)
        told, size = 0, sum(part.stamp[0] for part in self._parts)

        def count(batch: pa.RecordBatch) -> int:
            nonlocal told
            before, told = told, self.bytes_read
            return told - before

        return count_pass(batches, "reading", size, count, "bytes")

    def _list_units(self) -> tuple[str, list[tuple[int, Part]]]:
        """Returns what a unit that one worker reads is called, and the units with their weights."""
        return "file", [(part.stamp[0], part) for part in self._parts]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all rows in file order, in batches of a few MiB; each call reads the files again.

        Raises:
            DataError: if a file is gone, has changed or is broken; names file, row and column. With
                `on_error = "skip"` the rest of the file is left out and counted.
        """
        self.skipped = replace(self._opened)
        for part, batches in self._each():
            rows = 0
            try:
                for batch in batches:
                    yield batch
                    rows += batch.num_rows
            except DataError as error:
                if not self.skips:
                    raise
                self.skipped.add(error.message, rows=self._lost(part, rows), files=1)
            self.file_rows[part.path] = rows

    def _each(self) -> Iterator[tuple[Part, Iterator[pa.RecordBatch]]]:
        """Yields the files, each with its batches."""
        for part in self._parts:
            yield part, self._checked(part)

    def _checked(self, part: Part) -> Iterator[pa.RecordBatch]:
        if not isinstance(part.path, RemoteFile):  # the end tells the same, with one request less
            check_unchanged(part.path, self.arg, part.stamp)
        yield from self._read(part)
        check_unchanged(part.path, self.arg, part.stamp)

    @abstractmethod
    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yields the batches of one file."""

    def _lost(self, part: Part, rows: int) -> int:
        """Returns the rows lost in a file that broke off after `rows` rows, 0 if unknown."""
        return 0


# Files of typed columns ---------------------------------------------------------------------------

Item = TypeVar("Item")
OPENED_AT_ONCE = 8  # of a store: most of the time is the network's
FOOTER_BYTES = 8 * 2**20  # as stored, of all footers that are kept; in memory they are larger
LONG = (pa.int64(), pa.uint64())
FORMATS = {"parquet": parquet, "feather": feather, "hdf5": hdf5}


class ColumnarReader(TableReader):
    """Files with the same columns; `Part.facts` is a file's number of rows, or None."""

    @property
    def known_rows(self) -> int | None:
        """Number of rows in all files, or None for Arrow streams."""
        rows = [part.facts for part in self._parts]
        return None if None in rows else sum(rows)

    def _each(self) -> Iterator[tuple[Part, Iterator[pa.RecordBatch]]]:
        """Yields the files; the next one of a store is begun while one is read."""
        if not any_remote(self.files):
            yield from super()._each()
            return
        with shutdown_without_join(
            ThreadPoolExecutor(1, thread_name_prefix="gpukeras-reader")
        ) as pool:
            begun = ((part, _begin(pool, self._checked(part))) for part in self._parts)
            yield from _one_ahead(begun)

    def _list_units(self) -> tuple[str, list[tuple[int, Part]]]:
        """Returns the row groups of Parquet files, weighed by their rows, or files."""
        if self.format != "parquet":
            return super()._list_units()
        return "row group", [
            (rows, replace(part, facts=rows, groups=(group,)))
            for part in self._parts
            for group, rows in enumerate(parquet.read_groups(part.path))
        ]

    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        rows = 0
        known = {"groups": part.groups, "footer": part.footer}
        how = known if self.format == "parquet" else {}
        batches = FORMATS[self.format].read_batches(part.path, self.names, **how)
        try:
            with closing(read_ahead(map(validated, batches))) as ahead:
                for batch in ahead:
                    rows += batch.num_rows
                    yield self._cast(batch, part)
        except FileFaultError as fault:
            raise file_error(part.path, self.arg, fault.problem, fault.hint) from fault
        except DAMAGED as error:
            check_unchanged(part.path, self.arg, part.stamp)
            problem = f"is damaged behind row {rows:,}: it cannot be read to its end."
            hint = "Write or copy it again."
            if reason := store_reason(error):
                problem, hint = f"cannot be read behind row {rows:,}: {reason}.", AGAIN
            raise file_error(part.path, self.arg, problem, hint, row=rows + 1) from error

    def _cast(self, batch: pa.RecordBatch, part: Part) -> pa.RecordBatch:
        note_rounded(self, batch)
        if batch.schema.equals(self.schema):
            return batch
        arrays = [self._convert(batch.column(field.name), field, part) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _convert(self, values: pa.Array, field: pa.Field, part: Part) -> pa.Array:
        try:
            return convert(values, field.type)
        except pa.ArrowInvalid as error:
            problem = f"has values in the column `{field.name}` that {field.type} does not hold."
            hint = "Write the files with the same types."
            raise file_error(part.path, self.arg, problem, hint, column=field.name) from error

    def _lost(self, part: Part, rows: int) -> int:
        return max(0, (part.facts or 0) - rows)


def _begin(pool: ThreadPoolExecutor, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Reads the first batch in a thread, and returns an iterator over all."""
    first = pool.submit(next, batches, None)

    def each() -> Iterator[pa.RecordBatch]:
        batch = first.result()
        if batch is not None:
            yield batch
            yield from batches

    return each()


def _one_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yields the items; takes the next one before each."""
    before = next(items, None)
    while before is not None:
        after = next(items, None)
        yield before
        before = after


def validated(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Validates a batch and returns it: offsets lie inside, and strings are UTF-8.

    Raises:
        pa.ArrowInvalid: if the batch is damaged; the readers of both formats miss some damage.
    """
    batch.validate(full=True)
    return batch


def note_rounded(reader: Reader, batch: pa.RecordBatch) -> None:
    """Notes the columns whose integers float64 does not hold."""
    for name in reader.names:
        values = batch.column(name)
        if values.type in LONG and is_rounded(values):
            reader.note_rounded(name)


def is_rounded(values: pa.Array) -> bool:
    """Whether float64 changes any of the integers."""
    if not reaches(values, EXACT):
        return False
    return not values.cast(pa.float64(), safe=False).cast(values.type, safe=False).equals(values)


def convert(values: pa.Array, type: pa.DataType) -> pa.Array:
    """Casts values to the type shared by all files; only digits beyond float64's are lost."""
    if values.type.equals(type):
        return values
    if pa.types.is_dictionary(type) and pa.types.is_dictionary(values.type):
        indices, levels = values.indices.cast(type.index_type), values.dictionary.cast(pa.string())
        return pa.DictionaryArray.from_arrays(indices, levels)
    return values.cast(type, safe=not pa.types.is_floating(type))


def open_columnar(paths: Sequence[AnyFile], format: str, opening: Opening) -> ColumnarReader:
    """Opens Parquet or Arrow files as a table; reads only their metadata.

    Args:
        paths: The files.
        format: One of `FORMATS`.
        opening: How they are opened.

    Raises:
        DataError: if a file cannot be read, or its columns or types differ from the first file's.
    """
    arg = opening.arg
    schema: pa.Schema | None = None
    footers = 0  # bytes

    def try_part(path: AnyFile) -> tuple[Part, pa.Schema] | DataError:
        try:
            return read_part(path, format, arg)
        except DataError as error:
            return error

    tried: Iterator[tuple[Part, pa.Schema] | DataError] = map(try_part, paths)
    if any_remote(paths):
        tried = map_ahead(try_part, paths, OPENED_AT_ONCE)

    def read(path: AnyFile) -> Part:
        nonlocal schema, footers
        result = next(tried)
        if isinstance(result, DataError):
            raise result
        part, found = result
        columns = opening.choose(found.names, path)
        chosen = pa.schema([found.field(name) for name in columns])
        check_types(chosen, arg, path)
        schema = chosen if schema is None else unify_schema(schema, chosen, arg, path)
        opening.names, opening.columns = opening.names or tuple(found.names), columns
        footers += part.footer.serialized_size if part.footer is not None else 0
        return part if footers <= FOOTER_BYTES else replace(part, footer=None)

    parts = opening.read_each(paths, read)
    reader = ColumnarReader(parts, format, schema, opening)
    if reader.known_rows == 0:
        raise file_error(parts[0].path, arg, "has no rows.", "Check how it was written.")
    return reader


def read_part(path: AnyFile, format: str, arg: str) -> tuple[Part, pa.Schema]:
    """Reads the metadata of a file: its part, with the number of rows, and its schema.

    Args:
        path: The file.
        format: One of `FORMATS`.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if the file is of another format than its suffix, or incomplete.
    """
    stamp, module = check_file(path, arg), FORMATS[format]
    try:
        schema, rows, footer = module.read_facts(path)
    except FileFaultError as fault:
        raise file_error(path, arg, fault.problem, fault.hint) from fault
    except DAMAGED as error:
        if isinstance(error, OSError) and (error.errno is not None or store_reason(error)):
            raise opening_error(path, arg, error) from error
        hint = "It is cut off, or of another format: write or copy it again."
        problem = f"is no whole {module.NAME} file."
        raise file_error(path, arg, problem, hint) from error
    return Part(path, stamp, rows, footer=footer if any_remote([path]) else None), schema
