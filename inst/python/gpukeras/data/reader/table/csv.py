"""Reads CSV files: infers types, parses blocks of records in several threads, locates faults.

    read_blocks() --BlockParser, in threads--> record batches

Each block is parsed separately, which bounds memory and locates a fault by parsing one block again.
For a file of 400 MB this took two thirds of the CPU time of Arrow's readers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.core.prefetch import map_ahead
from gpukeras.data.files.arrow import pa, pacsv, pc
from gpukeras.data.files.files import (
    AnyFile,
    check_unchanged,
    file_error,
    opening_error,
    store_reason,
)
from gpukeras.data.files.paths import check_file, plain_suffix
from gpukeras.data.reader.table.columnar import Part, TableReader
from gpukeras.data.reader.table.csv_records import (
    MAX_RECORD_BYTES,
    Block,
    Header,
    count_lines,
    has_header,
    open_bytes,
    parse_header,
    read_blocks,
    record_ends,
)
from gpukeras.data.reader.table.schema import EXACT, WORDS, Opening, family_of, reaches
from gpukeras.system.host import count_workers

# Types --------------------------------------------------------------------------------------------

MISSING = ("NA", "NaN", "", " ", " NA", "NA ")  # in columns of numbers, dates and logicals
TRUE = ("TRUE", "True", "true", "T")
FALSE = ("FALSE", "False", "false", "F")


@dataclass(frozen=True)
class Dialect:
    """Separator and decimal point of CSV files.

    Args:
        separator: Separator between fields.
        decimal: Decimal point of numbers.
    """

    separator: str = ","
    decimal: str = "."


def parse_block(
    data: bytes,
    names: Sequence[str],
    dialect: Dialect,
    options: pacsv.ConvertOptions,
    on_row: object = None,
) -> pa.Table:
    """Parses complete records into columns, in this thread.

    Args:
        data: The records.
        names: Names of all columns.
        dialect: Separator and decimal point.
        options: Columns and types to convert.
        on_row: Function called with each row whose number of values differs from the number of
            names; it returns "skip" or "error". None is an error. It receives strings, so `data`
            must be UTF-8.

    Raises:
        pa.ArrowInvalid: for a faulty row.
    """
    read = pacsv.ReadOptions(
        use_threads=False, block_size=len(data) + 1, column_names=list(names)
    )  # a single block keeps newlines within quotes intact
    parse = pacsv.ParseOptions(delimiter=dialect.separator, invalid_row_handler=on_row)
    source = pa.BufferReader(data)
    return pacsv.read_csv(source, read_options=read, parse_options=parse, convert_options=options)


def convert_options(
    columns: Sequence[str], types: Mapping[str, pa.DataType], decimal: str, guess: bool = False
) -> pacsv.ConvertOptions:
    """Returns Arrow's conversion options for columns.

    Args:
        columns: Names of the columns.
        types: Their types by name; others are inferred.
        decimal: Decimal point of numbers.
        guess: Whether strings can be missing too, for type inference.
    """
    return pacsv.ConvertOptions(
        include_columns=list(columns),
        column_types=dict(types),
        null_values=list(MISSING),
        strings_can_be_null=guess,
        true_values=list(TRUE),
        false_values=list(FALSE),
        decimal_point=decimal,
    )


def to_utf8(data: bytes) -> bytes:
    """Replaces each byte that is not UTF-8 by a replacement character."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode(errors="replace").encode()
    return data


def guess_types(
    data: bytes, names: Sequence[str], columns: Sequence[str], dialect: Dialect
) -> dict[str, pa.DataType]:
    """Infers the types of the columns that have a value; skips faulty rows.

    Args:
        data: The records.
        names: Names of all columns.
        columns: Columns to infer.
        dialect: Separator and decimal point.
    """
    data = to_utf8(data)
    options = convert_options(columns, {}, dialect.decimal, guess=True)
    table = parse_block(data, names, dialect, options, lambda row: "skip")
    return {
        field.name: _hold(field.type, data, names, field.name, dialect)
        for field in table.schema
        if not pa.types.is_null(field.type)
    }


def _hold(
    type: pa.DataType, data: bytes, names: Sequence[str], name: str, dialect: Dialect
) -> pa.DataType:
    """Widens a type for later values: decimals after integers, fractions of seconds."""
    if pa.types.is_integer(type):
        return pa.float64()
    if pa.types.is_time(type):
        return pa.time64("us")
    if pa.types.is_timestamp(type):
        wide = pa.timestamp("us", type.tz)
        options = convert_options([name], {name: wide}, dialect.decimal)
        try:
            parse_block(data, names, dialect, options, lambda row: "skip")
        except pa.ArrowInvalid:  # fractions of microseconds
            return type
        return wide
    return pa.string() if pa.types.is_binary(type) else type


def choose_decimal(data: bytes, names: Sequence[str], separator: str) -> str:
    """Returns the decimal point that makes more columns numeric.

    Args:
        data: The records.
        names: Names of all columns.
        separator: Separator between fields, which is no comma.
    """
    counts = {}
    for decimal in (".", ","):
        types = guess_types(data, names, names, Dialect(separator, decimal)).values()
        counts[decimal] = sum(type.equals(pa.float64()) for type in types)
    return "," if counts[","] > counts["."] else "."


# Faults -------------------------------------------------------------------------------------------

COUNTS = re.compile(r"Expected (\d+) columns?, got (\d+)")
COLUMN = re.compile(r"In CSV column #(\d+):")
CSV_HINT = (
    "Correct it (missing values are NA), or leave such rows out and have them counted: "
    '`on_error = "skip"`.'
)
Found = TypeVar("Found")
Parse = Callable[[bytes], object]  # raises pa.ArrowInvalid for a faulty record


def find_first(data: bytes, parse: Parse, separator: str) -> tuple[int, str] | None:
    """Returns the offset of the first faulty record, and Arrow's message; None if there is none.

    Args:
        data: The records.
        parse: Function that parses records strictly.
        separator: Separator between fields.
    """
    ends = record_ends(data, separator) or [len(data)]
    ends[-1] = len(data)
    edges = [0, *ends]
    low, high = 0, len(ends)  # the fault is at or after `low`, and before `high`
    message = _fault(data, parse)
    if message is None:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        fault = _fault(data[edges[low] : edges[middle]], parse)
        low, high = (middle, high) if fault is None else (low, middle)
        message = message if fault is None else fault
    return edges[low], message


def _fault(data: bytes, parse: Parse) -> str | None:
    try:
        parse(data)
    except pa.ArrowInvalid as error:
        return str(error)
    return None


def explain(part: Part, block: Block, parse: Parse, schema: pa.Schema, arg: str) -> DataError:
    """Returns the error for the first faulty record of a block; names its line and column.

    Args:
        part: The file.
        block: The block, which has a faulty record.
        parse: Function that parses records strictly.
        schema: Schema of the columns to read.
        arg: Name of the user's argument, for error messages.
    """
    header: Header = part.facts
    first = None if block.endless else find_first(block.data, parse, header.separator)
    place, message = first or (0, "")
    line = line_of(part, block, place)
    if block.endless:
        problem = f"has a quoted text that begins in line {line:,} and does not end."
        return file_error(part.path, arg, problem, CSV_HINT, row=line)
    counts = COUNTS.search(message)
    if counts:
        values, names = count_of(int(counts[2]), "value"), count_of(int(counts[1]), "name")
        problem = f"has {values} in line {line:,} where its header has {names}."
        return file_error(part.path, arg, problem, CSV_HINT, row=line)
    return _explain_value(part, line, message, schema, arg)


def _explain_value(part: Part, line: int, message: str, schema: pa.Schema, arg: str) -> DataError:
    column = COLUMN.search(message)
    if column is None:
        problem = f"cannot be read in line {line:,}."
        return file_error(part.path, arg, problem, CSV_HINT, row=line)
    name = part.facts.names[int(column[1])]
    expected = WORDS[family_of(schema.field(name).type) or "text"]
    problem = (
        f"has a value in line {line:,} that is not {expected}, "
        f"as column `{name}` has it at the start of the first file."
    )
    hint = CSV_HINT
    if expected == WORDS["text"]:
        problem = f"has text in line {line:,} of column `{name}` that is not in UTF-8."
        hint = "Save the file in UTF-8."
    return file_error(part.path, arg, problem, hint, row=line, column=name)


def line_of(part: Part, block: Block, place: int) -> int:
    """Returns the line of the file, from 1, in which a record begins.

    Args:
        part: The file.
        block: The block with the record.
        place: Offset of the record in the block.
    """
    newline = part.facts.newline
    blank = block.data[place:]
    blanks = len(blank) - len(blank.lstrip(b"\r\n"))  # blank lines belong to the next record
    return count_lines(part.path, block.start + place + blanks, newline) + 1


def parse_leniently(
    data: bytes, parse: Callable[[bytes], Found], separator: str
) -> tuple[list[Found], int]:
    """Parses the valid records; returns the results, and the number of faulty records.

    Args:
        data: The records.
        parse: Function that parses records; raises pa.ArrowInvalid for a faulty record.
        separator: Separator between fields.
    """
    try:
        return [parse(data)], 0
    except pa.ArrowInvalid:
        ends = record_ends(data, separator)
    if len(ends) < 2:
        return [], 1
    half = ends[len(ends) // 2 - 1]
    parsed: list[Found] = []
    bad = 0
    for part in (data[:half], data[half:]):
        some, more = parse_leniently(part, parse, separator)
        parsed, bad = parsed + some, bad + more
    return parsed, bad


# Blocks -------------------------------------------------------------------------------------------

_DIGITS = r"^ *[+-]?[0-9]{16,} *$"


@dataclass(frozen=True)
class CsvPlan:
    """Types and options for parsing CSV records.

    Args:
        schema: Schema of the batches, with the types of the first rows.
        dialect: Separator and decimal point of the files.
        skips: Whether faulty rows are left out and counted.
    """

    schema: pa.Schema
    dialect: Dialect
    skips: bool

    @cached_property
    def options(self) -> pacsv.ConvertOptions:
        """The options shared by all blocks."""
        types = {column.name: column.type for column in self.schema}
        return convert_options(self.schema.names, types, self.dialect.decimal)

    def columns(self, type: pa.DataType) -> list[str]:
        """Returns the names of the columns of a type."""
        return [column.name for column in self.schema if column.type.equals(type)]


@dataclass(frozen=True)
class Parsed:
    """A parsed block.

    Args:
        block: The block.
        batch: The valid rows, or None if there are none, or if a row is faulty and none may be
            skipped.
        bad: Number of faulty rows.
        rounded: Columns with integers that float64 rounds.
    """

    block: Block
    batch: pa.RecordBatch | None
    bad: int = 0
    rounded: tuple[str, ...] = ()


class BlockParser:
    """Parses the blocks of one file.

    Args:
        plan: Types and options for parsing.
        header: Header of the file.
    """

    def __init__(self, plan: CsvPlan, header: Header) -> None:
        """Stores the plan and the header."""
        self._plan = plan
        self._header = header
        self._texts = plan.columns(pa.string())
        self._numbers = plan.columns(pa.float64())

    def __call__(self, block: Block) -> Parsed:
        """Parses a block; returns its valid rows and the number of faulty rows."""
        if block.endless:
            return Parsed(block, None, bad=1)
        batch, bad = self._parse(block.data)
        if batch is None:
            return Parsed(block, None, bad=bad)
        rounded = [name for name in self._numbers if self._is_rounded(name, batch, block.data)]
        return Parsed(block, self._mark_missing(batch), bad, tuple(rounded))

    def parse_strictly(self, data: bytes) -> pa.Table:
        """Parses records.

        Raises:
            pa.ArrowInvalid: for a faulty record.
        """
        return parse_block(data, self._header.names, self._plan.dialect, self._plan.options)

    def _parse(self, data: bytes) -> tuple[pa.RecordBatch | None, int]:
        try:
            return _to_batch(self.parse_strictly(data)), 0
        except pa.ArrowInvalid:
            if not self._plan.skips:
                return None, 1
        parts, bad = parse_leniently(data, self._parse_counting, self._header.separator)
        bad += sum(skipped for _, skipped in parts)
        return (_to_batch(pa.concat_tables([table for table, _ in parts])) if parts else None), bad

    def _parse_counting(self, data: bytes) -> tuple[pa.Table, int]:
        """Returns the records with one value per name, and the number of others.

        Raises:
            pa.ArrowInvalid: for another fault, or for any fault if some bytes are not UTF-8.
        """
        wrong: list[int] = []

        def skip(row: pacsv.InvalidRow) -> str:
            wrong.append(row.actual_columns)
            return "skip"

        plan, on_row = self._plan, skip if to_utf8(data) is data else None
        table = parse_block(data, self._header.names, plan.dialect, plan.options, on_row)
        return table, len(wrong)

    def _mark_missing(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Marks strings "NA" as missing, but not empty strings, as R does."""
        for name in self._texts:
            values = batch.column(name)
            missing = pc.equal(values, "NA")
            if missing.true_count:
                values = pc.if_else(missing, pa.scalar(None, pa.string()), values)
                batch = batch.set_column(batch.schema.get_field_index(name), name, values)
        return batch

    def _is_rounded(self, name: str, batch: pa.RecordBatch, data: bytes) -> bool:
        """Whether float64 changes any integer of a column."""
        if not reaches(batch.column(name), EXACT - 1):
            return False
        options = convert_options([name], {name: pa.string()}, self._plan.dialect.decimal)
        table = parse_block(
            to_utf8(data), self._header.names, self._plan.dialect, options, lambda row: "skip"
        )
        texts = table.column(0).filter(pc.match_substring_regex(table.column(0), _DIGITS))
        return any(int(text) != int(float(text)) for text in texts.to_pylist())


def _to_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


# Reader -------------------------------------------------------------------------------------------

HEAD_BYTES = 2**16  # per read while looking for the header


class DelimitedReader(TableReader):
    """CSV files with the same columns.

    Args:
        parts: The files, with their headers.
        plan: Types and options for parsing.
        opening: How they were opened.
        notes: Sentences for the user.
    """

    def __init__(
        self, parts: Sequence[Part], plan: CsvPlan, opening: Opening, notes: Sequence[str] = ()
    ) -> None:
        """Stores the arguments; reads no data."""
        super().__init__(parts, "csv", plan.schema, opening, notes)
        self._plan = plan

    def _read(self, part: Part) -> Iterator[pa.RecordBatch]:
        before = 0 if part is self._parts[0] else self.bytes_read
        parser = BlockParser(self._plan, part.facts)
        blocks = _safe_blocks(part, self.arg)
        with closing(map_ahead(parser, blocks, count_workers())) as results:
            for parsed in results:
                self.bytes_read = before + parsed.block.read
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


def open_delimited(paths: Sequence[AnyFile], opening: Opening) -> DelimitedReader:
    """Opens CSV files as a table; reads their headers, and the first rows for the types.

    Args:
        paths: The files.
        opening: How they are opened.

    Raises:
        DataError: if a file cannot be read, or its columns differ from the first file's.
    """
    separator = "\t" if plain_suffix(paths[0]) == ".tsv" else None

    def read(path: AnyFile) -> Part:
        nonlocal separator
        part = read_part(path, opening.arg, separator)
        columns = opening.choose(part.facts.names, path)
        opening.names, opening.columns = opening.names or part.facts.names, columns
        separator = part.facts.separator
        return part

    parts = opening.read_each(paths, read)
    dialect = choose_dialect(parts, opening)
    types = find_types(parts, dialect, opening)
    schema = pa.schema([(name, types[name]) for name in opening.columns])
    plan = CsvPlan(schema, dialect, opening.skipped is not None)
    return DelimitedReader(parts, plan, opening, list_notes(parts[0], dialect))


def choose_dialect(parts: Sequence[Part], opening: Opening) -> Dialect:
    """Returns the separator of the first header, and the decimal point of the first rows."""
    separator = parts[0].facts.separator
    for part in parts if separator != "," else ():
        for block in _look_at(part, opening):
            return Dialect(separator, choose_decimal(block.data, part.facts.names, separator))
    return Dialect(separator)


def list_notes(part: Part, dialect: Dialect) -> list[str]:
    """Returns notes for the user, based on the first file."""
    notes = [*part.facts.notes]
    if dialect.decimal == ",":
        notes.append("has numbers with a decimal comma.")
    return [f"The file {part.path.name} {note}" for note in notes]


def find_types(parts: Sequence[Part], dialect: Dialect, opening: Opening) -> dict[str, pa.DataType]:
    """Returns each column's type, from the first block in which it has a value.

    A column without values is logical, as in R.

    Args:
        parts: The files.
        dialect: Separator and decimal point of the files.
        opening: How they are opened.

    Raises:
        DataError: if no file has a row.
    """
    requested = opening.columns
    types: dict[str, pa.DataType] = {}

    def guess(piece: tuple[Part, Block]) -> dict[str, pa.DataType]:
        part, block = piece
        unknown = [name for name in requested if name not in types]
        return guess_types(block.data, part.facts.names, unknown, dialect) if unknown else {}

    blocks = ((part, block) for part in parts for block in _look_at(part, opening))
    any_rows = False
    with closing(map_ahead(guess, blocks, count_workers())) as guesses:
        for guessed in guesses:
            any_rows = True
            types.update({name: guessed[name] for name in guessed if name not in types})
            if len(types) == len(requested):
                return types
    if not any_rows:
        hint = "Each has a header and nothing else." if len(parts) > 1 else "It has a header only."
        raise file_error(parts[0].path, opening.arg, "has no rows.", hint)
    return dict.fromkeys(requested, pa.bool_()) | types


def _look_at(part: Part, opening: Opening) -> Iterator[Block]:
    """Yields a file's blocks with rows; a fault that may be skipped ends them silently.

    The later pass over the rows counts it.
    """
    try:
        for block in _safe_blocks(part, opening.arg):
            if not block.endless and block.data.strip(b"\r\n"):
                yield block
    except DataError:
        if opening.skipped is None:
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
    except UnicodeError as error:
        problem = "has a header that is not in UTF-8."
        raise file_error(path, arg, problem, "Save the file in UTF-8.", row=1) from error
    if header is None:
        problem = "has no header: it has no text, or a quote that is not closed."
        raise file_error(path, arg, problem, "Write it again.", row=1)
    return Part(path, stamp, header)
