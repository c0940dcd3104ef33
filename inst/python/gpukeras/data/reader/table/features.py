"""Tables in files (CSV, Parquet and Feather) of any size, as rows of a data frame's columns.

    files --reader--> spool --learn()--> encoding --encode()--> rows, in memory or a scratch file

The files are parsed once. Later steps work on one block of rows at a time, so that memory does not
grow with the files, except for labels, row numbers, the distinct strings of a category, and (if
missing values are imputed, and for text) one code per row of each category.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.core.options import check_choice
from gpukeras.core.prefetch import read_ahead
from gpukeras.core.progress import count_pass
from gpukeras.data.arrays import ALL_ROWS, EncodeOptions, check_some
from gpukeras.data.files.arrow import ipc, pa, row_bytes
from gpukeras.data.files.files import AnyFile, Skipped, any_remote, read_stamp
from gpukeras.data.files.paths import compression_of, find_files
from gpukeras.data.reader.rows import FeatureRequest, Features, Reader, RowSource
from gpukeras.data.reader.storage import STORAGES, RowsWriter, make_scratch, writing
from gpukeras.data.reader.table.columnar import TableReader, open_columnar
from gpukeras.data.reader.table.columns import Encoder, LevelUnion, WholeColumn, learn_table
from gpukeras.data.reader.table.csv import open_delimited
from gpukeras.data.reader.table.schema import Opening, Wanted, to_column
from gpukeras.data.reader.table.stream import R_CHUNKS, open_stream
from gpukeras.data.recipe.columns import (
    ColumnRule,
    Learning,
    NumberSummary,
    kind_of,
    take_rows,
    transform_column,
)
from gpukeras.data.recipe.datetimes import utc_offsets
from gpukeras.data.recipe.encoding import learn_columns
from gpukeras.data.recipe.imputation import count_missing
from gpukeras.data.recipe.recipe import (
    ColumnsEncoding,
    Encoding,
    TableEncoding,
    check_columns,
    check_kind,
    check_names,
)
from gpukeras.data.recipe.targets import SEVERAL

# Opening ------------------------------------------------------------------------------------------

EVERYTHING = Wanted()


def open_table(
    paths: str | Sequence[str | AnyFile],
    arg: str,
    *,
    format: str = "auto",
    wanted: Wanted = EVERYTHING,
    on_error: str = "stop",
) -> TableReader:
    """Opens files with the same columns as one table, read in batches with bounded memory.

    Args:
        paths: One path, several, globs such as "flights/*.parquet", or folders; of this computer or
            of a store, such as "s3://bucket/flights/*.parquet".
        arg: Name of the user's argument, for error messages.
        format: One of `paths.FORMATS`, or "auto" (by the suffixes).
        wanted: The columns to read; others may have any type.
        on_error: "stop" at the first fault, or "skip" broken rows of CSV files and files that
            cannot be read; `TableReader.skipped` counts them.

    Raises:
        DataError: if a file cannot be found or read, or does not match the others; names it.
        SpecError: for an unknown `format` or `on_error`.
    """
    check_choice("on_error", on_error, ("stop", "skip"))
    files = find_files(paths, arg, format)
    opening = Opening(arg, wanted, Skipped() if on_error == "skip" else None)
    if files.format == "csv":
        return open_delimited(files.paths, opening)
    return open_columnar(files.paths, files.format, opening)


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
            assert self._path is not None  # there is a writer
            with writing(self._path, self._arg):
                self._writer.close()
                self._sink.close()
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
        assert self._path is not None  # opened before
        with writing(self._path, self._arg):
            self._writer.write_batch(batch)

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


class ColumnScan:
    """Statistics collected during the first pass over the rows.

    Args:
        columns: Feature columns that need rules, without rows.
        beside: The label and the weights, without rows.
        how: Options for learning the features; its masks of rows are unused.
        whole: Whether all rows are training rows.

    Attributes:
        unions: Category columns by name.
        numbers: Numeric columns by name whose statistics cover all rows.
        beside: Columns that are stored whole: the label and the weights.
    """

    def __init__(
        self,
        columns: Sequence[Mapping[str, Any]],
        beside: Sequence[Mapping[str, Any]],
        how: Learning,
        whole: bool,
    ) -> None:
        """Chooses the statistics to collect."""
        self.beside = {column["name"]: WholeColumn(column) for column in beside}
        self.unions: dict[str, LevelUnion] = {}
        self.numbers: dict[str, NumberSummary] = {}
        for column in columns:
            if kind_of(column) == "category":
                self.unions[column["name"]] = choose_union(column, how)
            elif whole and (summary := NumberSummary(column, how)).needed:
                self.numbers[column["name"]] = summary

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds a batch of rows."""
        for union in self.unions.values():
            union.add(read_column(batch, union.name))
        for summary in self.numbers.values():
            summary.add(read_column(batch, summary.name), None)
        for column in self.beside.values():
            column.add(read_column(batch, column.name))


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
        reader: Reader of the rows, see `open_table()` and `stream`.
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


# Faults -------------------------------------------------------------------------------------------

Columns = dict[str, Mapping[str, Any]]


def explain_fault(
    encoding: ColumnsEncoding, read: Callable[[], Iterator[tuple[Columns, int]]], arg: str
) -> DataError | None:
    """Returns the error for the first column that cannot be encoded, as of the whole column.

    Args:
        encoding: The encoding to apply.
        read: Yields the columns of each block, and its number of rows.
        arg: Name of the user's argument, for error messages.

    Returns:
        The error, with the `row` (from 1) of the first faulty value if it is known; or None if no
        fault is found.
    """
    rules = encoding.columns
    faulty = {
        rule.name
        for columns, _ in read()
        for rule in rules
        if _fault(rule, columns[rule.name], arg)
    }
    rule = next((rule for rule in rules if rule.name in faulty), None)
    if rule is None:
        return None
    whole: WholeColumn | None = None
    for columns, _ in read():
        whole = whole or WholeColumn(columns[rule.name])
        whole.add(columns[rule.name])
    return None if whole is None else _fault(rule, whole.take(), arg)


def _fault(rule: ColumnRule, column: Mapping[str, Any], arg: str) -> DataError | None:
    """Returns the error of encoding a column, or None; no memory is taken for the result."""
    shape = len(column["values"]), len(rule.features)
    out = np.lib.stride_tricks.as_strided(np.empty(1, np.float32), shape, (0, 0))
    try:
        transform_column(rule, column, out, arg)
    except DataError as error:
        return error
    return None


def name_row(error: DataError, path: AnyFile | None, row: int) -> DataError:
    """Returns a copy of an error that names the first faulty row and its file.

    Args:
        error: The error.
        path: The file, or None for rows of a stream.
        row: Number of the row in the file, from 1.
    """
    of, file = ("", {}) if path is None else (f" of {path.name}", {"path": str(path)})
    message = f"{error.message.removesuffix('.')}; the first is in row {row:,}{of}."
    return DataError(message, hint=error.hint, **{**error.details, "row": row, **file})


# Features -----------------------------------------------------------------------------------------

Block = tuple[Columns, np.ndarray | None, int]


class TableFeatures(Features):
    """Feature columns from files.

    Args:
        asked: With features `{kind: "table", paths, format, columns, label, weights}`; the last
            four may be missing: the format follows from the suffix, and all columns except label
            and weights are features. `label` may name several columns, one per output. Instead of
            paths, `stream` gives rows that come once, see `stream.open_stream()`. With `shard`, a
            worker's number from 0 and the number of workers, only its part of the files is read.
            Where an encoding is known, only its columns are read.

    Raises:
        DataError: if a file cannot be read, or lacks a column.
    """

    kind = "columns"
    row_shape = None

    def __init__(self, asked: FeatureRequest) -> None:
        """Reads the files' headers; their rows are read on first use."""
        self.arg, features = asked.arg, asked.features
        self._spec, self._text = asked.spec, asked.text
        self._labels = _texts(features.get("label")) or []
        self._weights = features.get("weights") or None
        self._shard = features.get("shard")
        check_names(self._labels, "y")
        if self._weights in self._labels:
            problem = f"`weights` is the label `{self._weights}`."
            raise DataError(problem, hint="Give another column.", arg="weights")
        self._beside = [*self._labels, *([self._weights] if self._weights else [])]
        self._encoding = None
        if asked.encoding is not None:
            self._encoding = check_kind(asked.encoding, TableEncoding, self.arg)
        wanted = Wanted(_texts(features.get("columns")), self._beside, self._encoding)
        self.reader = self._open(features, wanted)
        self.columns = [name for name in self.reader.names if name not in self._beside]
        self._scan: Scan | None = None

    def _open(self, features: Mapping[str, Any], wanted: Wanted) -> Reader:
        if features.get("stream") is not None:
            reader = open_stream(features["stream"], self.arg)
            try:
                return reader.select(wanted.choose(reader.names, self.arg))
            except BaseException:
                reader.close()
                raise
        paths = _texts(features["paths"]) or []
        how = {"format": features.get("format") or "auto", "on_error": self._spec.on_error}
        table = open_table(paths, self.arg, wanted=wanted, **how)
        if self._shard is not None:
            self.share = table.take_shard(*self._shard)
        return table

    # Rows

    @property
    def rows(self) -> int:
        """Number of rows in all files."""
        return self._scanned().rows

    @property
    def skipped(self) -> str:  # type: ignore[override] # known when the files were read
        """Description of what `on_error = "skip"` left out, or ""."""
        self._scanned()
        return self.reader.skipped.explain()

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override] # the reader's
        """Sentences about surprising properties of the files."""
        return tuple(self.reader.notes)

    def texts(self) -> Collection[str]:
        """Returns the names of the text columns."""
        return [name for name in self.columns if self.empty(name)["kind"] == "character"]

    @property
    def formula(self) -> str:  # type: ignore[override] # of the columns chosen
        """R's formula of the label, the features and the weights, or "" without a label."""
        return write_formula(self._labels, self.columns, self._weights) if self._labels else ""

    def labels(self) -> Mapping[str, Any] | None:
        """Returns the label column in the form that R passes; several columns are separate outputs.

        Raises:
            DataError: if a label column is a date, a time or a duration.
        """
        if len(self._labels) < 2:
            return self._take_label(self._labels[0]) if self._labels else None
        outputs = [{"name": name, "labels": self._take_label(name)} for name in self._labels]
        return {"kind": SEVERAL, "outputs": outputs}

    def _take_label(self, name: str) -> Mapping[str, Any]:
        kind = self.empty(name)["kind"]
        if kind in ("date", "time", "duration"):
            raise DataError(
                f"`y` cannot be labels: the column `{name}` is a {kind}.",
                hint="Make a number or a text of it.",
                arg="y",
                column=name,
            )
        return {**self._scanned().watch.beside[name].take(), "name": name, "arg": name}

    def weights(self) -> np.ndarray | None:
        """Returns the column of weights, or None."""
        if self._weights is None:
            return None
        column = self._scanned().watch.beside[self._weights].take()
        if column["kind"] not in ("numeric", "integer"):
            raise DataError(
                f"`weights` must be numbers: the column `{self._weights}` is a {column['kind']}.",
                arg="weights",
                column=self._weights,
            )
        return column["values"]

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the mask of complete rows, and the number of rows that lack each column."""
        names = [name for name in self.columns if known is None or name in known]
        masks, counts = [], Counter[str]()
        for columns, _, rows in self.blocks(names, "looking for missing values in"):
            block = {"kind": "columns", "columns": columns.values()}
            complete, missing = count_missing(block, rows, None, self.arg)
            masks.append(complete)
            counts.update(missing)
        return np.concatenate(masks), counts

    # Learning

    def learn(self, how: Learning) -> TableEncoding:
        """Learns the encoding, as `encoding.learn_each()` does for rows in memory."""
        how, complete = replace(how, arg=self.arg, text=self._text), how.complete
        some = not how.keep.all()

        def read(names: Sequence[str]) -> Iterator[tuple[Columns, np.ndarray | None]]:
            for columns, kept, _ in self.blocks(
                names, "learning from", complete, how.keep if some else None
            ):
                yield columns, kept

        watch = self._scanned().watch
        early = {} if some or complete is not None else dict(watch.numbers)
        learn = partial(
            learn_table, category=lambda name: watch.unions[name].column(), early=early, read=read
        )
        try:
            return learn_columns([*map(self.empty, self.columns)], how, learn)
        except DataError as error:
            raise self._located(error, complete) from error

    # Encoding

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> RowSource:
        """Returns the encoded rows.

        Args:
            encoding: The encoding to apply.
            how: The rows to use, and where to note what they lose.

        Raises:
            DataError: as `encoding.transform()` raises, with the first faulty row.
        """
        encoding = check_kind(encoding, TableEncoding, self.arg)
        check_columns(encoding, self.columns, self.arg)
        complete, rows = how.complete, how.count(self.rows)
        keep = STORAGES.get(self._spec.cache, "auto")
        with RowsWriter(encoding.shape, np.float32, keep, self.arg, rows) as writer:
            try:
                encoder = Encoder(encoding.columns, self.arg, how.notes)
                for columns, count in self._encodable(encoding, complete):
                    out = writer.room(count)
                    encoder.encode(columns, out)
                    writer.write(out)
            except DataError as error:
                read = partial(self._encodable, encoding, complete)
                error = explain_fault(encoding, read, self.arg) or error
                raise self._located(error, complete) from error
        self._scanned().close()
        return writer.finish()

    def _located(self, error: DataError, complete: np.ndarray | None) -> DataError:
        """Adds the file and row to an error about a row used; unchanged if they are unknown."""
        row, files = error.details.get("row"), self.reader.files
        if row is None or self.skipped or self._shard is not None:
            return error
        row = row if complete is None else int(np.flatnonzero(complete)[row - 1]) + 1
        if len(files) < 2:
            return name_row(error, files[0] if files else None, row)
        for path, rows in self.reader.file_rows.items():
            if row <= rows:
                return name_row(error, path, row)
            row -= rows
        return error

    def _encodable(
        self, encoding: TableEncoding, complete: np.ndarray | None
    ) -> Iterator[tuple[Columns, int]]:
        """Yields each block's columns that the encoding uses, and its number of rows.

        Times are converted to the encoding's zones.
        """
        zones = {rule.name: rule.zone for rule in encoding.columns}
        for columns, _, count in self.blocks(list(zones), "encoding", complete):
            yield {name: in_zone(column, zones[name]) for name, column in columns.items()}, count

    def blocks(
        self,
        names: Sequence[str],
        verb: str,
        complete: np.ndarray | None = None,
        keep: np.ndarray | None = None,
    ) -> Iterator[Block]:
        """Yields blocks of rows: columns by name, mask of the training rows, number of rows.

        Args:
            names: Names of the columns.
            verb: What the pass does, see `count_pass()`.
            complete: Mask of the rows to use, or None for all rows.
            keep: Mask of the training rows among them, or None for all.
        """
        start = taken = 0
        scan = self._rows_open()
        for batch in count_pass(scan.batches(), verb, scan.rows, len):
            part = None if complete is None else complete[start : start + batch.num_rows]
            part = None if part is None or part.all() else part
            rows = batch.num_rows if part is None else int(part.sum())
            columns = {name: take_rows(read_column(batch, name), part) for name in names}
            yield columns, None if keep is None else keep[taken : taken + rows], rows
            start, taken = start + batch.num_rows, taken + rows

    def empty(self, name: str) -> Mapping[str, Any]:
        """Returns a column without rows: its kind, zone and units."""
        return to_column(name, pa.array([], self.reader.schema.field(name).type))

    def _scanned(self) -> Scan:
        """Returns the result of the first pass; its rows may be closed."""
        if self._scan is None:
            self._scan = self._read()
        return self._scan

    def _rows_open(self) -> Scan:
        """Returns a scan with open rows; reads the files again if the rows were closed."""
        if not self._scanned().open:
            self._scan = self._read()
        return self._scanned()

    def _read(self) -> Scan:
        spec = self._spec
        watch = ColumnScan(
            [] if self._encoding else [*map(self.empty, self.columns)],
            [*map(self.empty, self._beside)],
            Learning(np.ones(0, dtype=bool), spec, arg=self.arg, text=self._text),
            whole=spec.validation == 0 and spec.na != "drop",
        )
        return Scan(self.reader, self.arg, watch, again=spec.on_error == "stop")


def in_zone(column: Mapping[str, Any], zone: str) -> Mapping[str, Any]:
    """Converts a time column to a rule's zone, which defines its weekdays and hours."""
    if column["kind"] != "time" or not zone or column["zone"] == zone:
        return column
    values = column["values"]
    return {**column, "zone": zone, "offsets": utc_offsets(values, zone, column["name"])}


def write_formula(labels: Sequence[str], columns: Sequence[str], weights: str | None) -> str:
    """Returns R's formula of one label, or a list of labels, the features and the weights."""
    left, right = ([_quote(name) for name in names] for names in (labels, columns))
    label = left[0] if len(left) == 1 else f"list({', '.join(left)})"
    right += [f".weights({_quote(weights)})"] if weights else []
    return f"{label} ~ {' + '.join(right)}"


def _quote(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")  # a name must not end its quotes
    return f"`{escaped}`"


def _texts(value: str | Sequence[str] | None) -> list[str] | None:
    if value is None:
        return None
    return [value] if isinstance(value, str) else list(value)
