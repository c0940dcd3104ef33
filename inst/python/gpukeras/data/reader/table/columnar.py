"""Files of typed columns as one table, with shared types and prefetched batches.

A format is a module with `NAME`, `read_facts(path)`, which returns a file's schema, its number of
rows, None if only reading tells it, and a footer to read by, or None, and
`read_batches(path, names)`, which yields these columns of a file in batches of `arrow.batch_rows()`
rows. What such a module raises of a damaged file is in `arrow.DAMAGED`; of what a user can mend it
raises FileFaultError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from gpukeras.core.errors import DataError
from gpukeras.core.prefetch import map_ahead, read_ahead, shutdown_without_join
from gpukeras.data.files.arrow import DAMAGED, pa
from gpukeras.data.files.files import (
    AGAIN,
    AnyFile,
    FileFaultError,
    Skipped,
    any_remote,
    check_unchanged,
    file_error,
    opening_error,
    store_reason,
)
from gpukeras.data.files.paths import check_file
from gpukeras.data.reader.table import feather, hdf5, parquet
from gpukeras.data.reader.table.base import Part, Reader, TableReader, read_each
from gpukeras.data.reader.table.csv.parsing import EXACT, reaches
from gpukeras.data.reader.table.schema import (
    Asked,
    check_same_names,
    check_types,
    choose_columns,
    unify_schema,
)

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
    there = values.drop_null()
    return not there.cast(pa.float64(), safe=False).cast(there.type, safe=False).equals(there)


def convert(values: pa.Array, type: pa.DataType) -> pa.Array:
    """Casts values to the type shared by all files; only digits beyond float64's are lost."""
    if values.type.equals(type):
        return values
    if pa.types.is_dictionary(type) and pa.types.is_dictionary(values.type):
        indices, levels = values.indices.cast(type.index_type), values.dictionary.cast(pa.string())
        return pa.DictionaryArray.from_arrays(indices, levels)
    return values.cast(type, safe=not pa.types.is_floating(type))


def open_columnar(
    paths: Sequence[AnyFile],
    format: str,
    arg: str,
    columns: Asked,
    skipped: Skipped | None,
) -> ColumnarReader:
    """Opens Parquet or Arrow files as a table; reads only their metadata.

    Args:
        paths: The files.
        format: One of `FORMATS`.
        arg: Name of the user's argument, for error messages.
        columns: Columns to read, in that order, or what `schema.choose_columns()` takes.
        skipped: Counts the files that cannot be read, or None if such a file is an error.

    Raises:
        DataError: if a file cannot be read, or its columns or types differ from the first file's.
    """
    names: tuple[str, ...] = ()
    requested: tuple[str, ...] = ()
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
        nonlocal names, requested, schema, footers
        result = next(tried)
        if isinstance(result, DataError):
            raise result
        part, found = result
        if schema is None:
            first = choose_columns(found.names, columns, arg, path)
        else:
            first = requested
            check_same_names(found.names, names, requested, columns, arg=arg, path=path)
        chosen = pa.schema([found.field(name) for name in first])
        check_types(chosen, arg, path)
        schema = chosen if schema is None else unify_schema(schema, chosen, arg, path)
        names, requested = names or tuple(found.names), first
        footers += part.footer.serialized_size if part.footer is not None else 0
        return part if footers <= FOOTER_BYTES else replace(part, footer=None)

    parts = read_each(paths, read, arg, skipped)
    reader = ColumnarReader(parts, format, schema, arg, skipped=skipped)
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
