"""Infers the types of a CSV file's columns, and parses blocks of records into record batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.files.arrow import pa, pacsv, pc
from gpukeras.data.files.files import file_error
from gpukeras.data.reader.table.base import Part
from gpukeras.data.reader.table.csv.records import Block, Header, count_lines, record_ends
from gpukeras.data.reader.table.schema import WORDS, family_of

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

    def __post_init__(self) -> None:
        """Checks that separator and decimal point differ."""
        if self.separator == self.decimal:
            raise ValueError("separator and decimal point must differ")


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

EXACT = 2.0**53  # float64 represents all integers up to here
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
    options: pacsv.ConvertOptions = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Prepares the options shared by all blocks."""
        types = {column.name: column.type for column in self.schema}
        options = convert_options(self.schema.names, types, self.dialect.decimal)
        object.__setattr__(self, "options", options)

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

    def __post_init__(self) -> None:
        """Checks that a block without rows has a count of faulty rows."""
        if self.batch is None and not self.bad:
            raise ValueError("a block without rows has bad ones")


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


def reaches(values: pa.Array, limit: float) -> bool:
    """Whether any absolute value exceeds a limit."""
    if values.null_count or pa.types.is_integer(values.type):
        ends = pc.min_max(values)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        return low is not None and (high > limit or low < -limit)
    numbers = values.to_numpy()
    high, low = np.fmax.reduce(numbers, initial=0.0), np.fmin.reduce(numbers, initial=0.0)
    return bool(high > limit or low < -limit)


def _to_batch(table: pa.Table) -> pa.RecordBatch:
    """Converts the table of a block to a record batch."""
    return pa.RecordBatch.from_arrays(
        [
            column.chunk(0)
            if column.num_chunks == 1
            else pa.concat_arrays([pa.array([], column.type), *column.chunks])
            for column in table.columns
        ],
        schema=table.schema,
    )
