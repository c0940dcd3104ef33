"""Reads CSV files in blocks of complete records, parsed in several threads, in order.

    read_blocks() --BlockParser, in threads--> record batches

Each block is parsed separately, which bounds memory and locates a fault by parsing one block again.
For a file of 400 MB this took two thirds of the CPU time of Arrow's readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from gpukeras.core.errors import DataError
from gpukeras.core.prefetch import count_workers, map_ahead
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.files import (
    AnyFile,
    Skipped,
    check_unchanged,
    file_error,
    opening_error,
    store_reason,
)
from gpukeras.data.files.paths import check_file, plain_suffix
from gpukeras.data.reader.table.base import Part, TableReader, read_each
from gpukeras.data.reader.table.csv.parsing import (
    BlockParser,
    CsvPlan,
    Dialect,
    Parsed,
    choose_decimal,
    explain,
    guess_types,
)
from gpukeras.data.reader.table.csv.records import (
    MAX_RECORD_BYTES,
    Block,
    has_header,
    open_bytes,
    parse_header,
    read_blocks,
)
from gpukeras.data.reader.table.schema import Asked, check_same_names, choose_columns

HEAD_BYTES = 2**16  # per read while looking for the header


class DelimitedReader(TableReader):
    """CSV files with the same columns.

    Args:
        parts: The files, with their headers.
        plan: Types and options for parsing.
        arg: Name of the user's argument, for error messages.
        skipped: Counts of what opening left out, or None if the first fault is an error.
        notes: Sentences for the user.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        plan: CsvPlan,
        arg: str,
        skipped: Skipped | None,
        notes: Sequence[str] = (),
    ) -> None:
        """Stores the arguments; reads no data."""
        super().__init__(parts, "csv", plan.schema, arg, skipped=skipped, notes=notes)
        self._plan = plan

    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        parser = BlockParser(self._plan, part.facts)
        blocks = _safe_blocks(part, self.arg)
        with closing(map_ahead(parser, blocks, count_workers())) as results:
            for parsed in results:
                if parsed.bad:
                    self._count_bad(part, parsed, parser)
                for name in parsed.rounded:
                    self.note_rounded(name)
                if parsed.batch is not None and parsed.batch.num_rows:
                    yield parsed.batch

    def _count_bad(self, part: Part, parsed: Parsed, parser: BlockParser) -> None:
        """Counts faulty rows if they may be skipped.

        Raises:
            DataError: if they may not; names the first one's line and column.
        """
        if self.skips and self.skipped.first:
            self.skipped.add("", rows=parsed.bad)
            return
        check_unchanged(part.path, self.arg, part.stamp)
        error = explain(part, parsed.block, parser.parse_strictly, self.schema, self.arg)
        if not self.skips:
            raise error
        self.skipped.add(error.message, rows=parsed.bad)


def open_delimited(
    paths: Sequence[AnyFile], arg: str, columns: Asked, skipped: Skipped | None
) -> DelimitedReader:
    """Opens CSV files as a table; reads their headers, and the first rows for the types.

    Args:
        paths: The files.
        arg: Name of the user's argument, for error messages.
        columns: Columns to read, in that order, or what `schema.choose_columns()` takes.
        skipped: Counts what is left out, or None if the first fault is an error.

    Raises:
        DataError: if a file cannot be read, or its columns differ from the first file's.
    """
    separator = "\t" if plain_suffix(paths[0]) == ".tsv" else None
    first: Part | None = None
    requested: tuple[str, ...] = ()

    def read(path: AnyFile) -> Part:
        nonlocal first, requested
        part = read_part(path, arg, first.facts.separator if first else separator)
        if first is None:
            requested = choose_columns(part.facts.names, columns, arg, path)
            first = part
        check_same_names(
            part.facts.names, first.facts.names, requested, columns, arg=arg, path=path
        )
        return part

    parts = read_each(paths, read, arg, skipped)
    dialect = choose_dialect(parts, arg, skipped)
    types = find_types(parts, requested, dialect, arg, skipped)
    plan = CsvPlan(
        pa.schema([(name, types[name]) for name in requested]), dialect, skipped is not None
    )
    return DelimitedReader(parts, plan, arg, skipped, list_notes(parts[0], dialect))


def choose_dialect(parts: Sequence[Part], arg: str, skipped: Skipped | None) -> Dialect:
    """Returns the separator of the first header, and the decimal point of the first rows.

    Args:
        parts: The files.
        arg: Name of the user's argument, for error messages.
        skipped: Counts what is left out, or None if the first fault is an error.
    """
    separator = parts[0].facts.separator
    for part in parts if separator != "," else ():
        for block in _look_at(part, arg, skipped):
            return Dialect(separator, choose_decimal(block.data, part.facts.names, separator))
    return Dialect(separator)


def list_notes(part: Part, dialect: Dialect) -> list[str]:
    """Returns notes for the user, based on the first file."""
    notes = [*part.facts.notes]
    if dialect.decimal == ",":
        notes.append("has numbers with a decimal comma.")
    return [f"The file {part.path.name} {note}" for note in notes]


def find_types(
    parts: Sequence[Part],
    requested: Sequence[str],
    dialect: Dialect,
    arg: str,
    skipped: Skipped | None,
) -> dict[str, pa.DataType]:
    """Returns each column's type, from the first block in which it has a value.

    A column without values is logical, as in R.

    Args:
        parts: The files.
        requested: Columns to read.
        dialect: Separator and decimal point of the files.
        arg: Name of the user's argument, for error messages.
        skipped: Counts what is left out, or None if the first fault is an error.

    Raises:
        DataError: if no file has a row.
    """
    types: dict[str, pa.DataType] = {}

    def guess(piece: tuple[Part, Block]) -> dict[str, pa.DataType]:
        part, block = piece
        unknown = [name for name in requested if name not in types]
        return guess_types(block.data, part.facts.names, unknown, dialect) if unknown else {}

    blocks = ((part, block) for part in parts for block in _look_at(part, arg, skipped))
    any_rows = False
    with closing(map_ahead(guess, blocks, count_workers())) as guesses:
        for guessed in guesses:
            any_rows = True
            types.update({name: guessed[name] for name in guessed if name not in types})
            if len(types) == len(requested):
                return types
    if not any_rows:
        hint = "Each has a header and nothing else." if len(parts) > 1 else "It has a header only."
        raise file_error(parts[0].path, arg, "has no rows.", hint)
    return dict.fromkeys(requested, pa.bool_()) | types


def _look_at(part: Part, arg: str, skipped: Skipped | None) -> Iterator[Block]:
    """Yields a file's blocks with rows; a fault that may be skipped ends them silently.

    The later pass over the rows counts it.
    """
    try:
        for block in _safe_blocks(part, arg):
            if not block.endless and block.data.strip(b"\r\n"):
                yield block
    except DataError:
        if skipped is None:
            raise


def _safe_blocks(part: Part, arg: str) -> Iterator[Block]:
    """Yields a file's blocks; raises DataError if the file breaks off."""
    try:
        with closing(read_blocks(part.path, part.facts)) as blocks:
            yield from blocks
    except OSError as error:
        check_unchanged(part.path, arg, part.stamp)
        raise _broken_off(part.path, arg, error) from error


def _broken_off(path: AnyFile, arg: str, error: OSError) -> DataError:
    if error.errno is not None or store_reason(error):
        return opening_error(path, arg, error)
    problem = "is no whole compressed file: it is cut off, or not what its suffix says."
    return file_error(path, arg, problem, "Write or copy it again.")


def _read_head(path: AnyFile) -> bytes:
    """Returns the start of a file including its header, or all of a smaller file."""
    data = b""
    with closing(open_bytes(path)) as file:
        while not has_header(data) and len(data) < MAX_RECORD_BYTES:
            chunk = file.read(HEAD_BYTES)
            if not chunk:
                break
            data += chunk
    return data


def read_part(path: AnyFile, arg: str, separator: str | None) -> Part:
    """Reads the header of a file.

    Args:
        path: The file.
        arg: Name of the user's argument, for error messages.
        separator: Separator between fields, or None to detect it.

    Raises:
        DataError: if the file cannot be opened, is empty, or is not UTF-8 text.
    """
    stamp = check_file(path, arg)
    try:
        data = _read_head(path)
    except OSError as error:
        raise _broken_off(path, arg, error) from error
    try:
        header = parse_header(data, separator)
    except UnicodeDecodeError as error:  # UTF-16 begins with bytes that UTF-8 does not have
        problem = "has a header that is not in UTF-8."
        raise file_error(path, arg, problem, "Save the file in UTF-8.", row=1) from error
    if header is not None and any("\0" in name for name in header.names):  # UTF-16, unmarked
        problem = "has a header that is not in UTF-8."
        raise file_error(path, arg, problem, "Save the file in UTF-8.", row=1)
    if header is None:
        problem = "has no header: it has no text, or a quote that is not closed."
        raise file_error(path, arg, problem, "Write it again.", row=1)
    return Part(path, stamp, header)
