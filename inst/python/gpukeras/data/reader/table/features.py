"""Tables in files (CSV, Parquet and Feather) of any size, as rows of a data frame's columns.

    files --reader--> spool --learn()--> encoding --encode()--> rows, in memory or a scratch file

The files are parsed once. Later steps work on one block of rows at a time, so that memory does not
grow with the files, except for labels, row numbers, the distinct strings of a category, and (if
missing values are imputed, and for text) one code per row of each category.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.options import check_choice
from gpukeras.core.progress import count_pass
from gpukeras.data.arrays import ALL_ROWS, EncodeOptions
from gpukeras.data.files.files import AnyFile, Skipped
from gpukeras.data.files.paths import find_files
from gpukeras.data.reader.rows import FeatureRequest, Features, Reader, RowSource
from gpukeras.data.reader.storage import STORAGES, RowsWriter
from gpukeras.data.reader.table.columnar import TableReader, open_columnar
from gpukeras.data.reader.table.columns import Encoder, WholeColumn, learn_table
from gpukeras.data.reader.table.csv import open_delimited
from gpukeras.data.reader.table.scan import Scan, choose_watch, empty_column, read_column
from gpukeras.data.reader.table.schema import Opening, Wanted
from gpukeras.data.reader.table.stream import open_stream
from gpukeras.data.recipe.columns import ColumnRule, Learning, take_rows, transform_column
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
        return empty_column(self.reader.schema, name)

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
        watch = choose_watch(
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
