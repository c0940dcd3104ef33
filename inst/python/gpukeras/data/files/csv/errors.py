"""Finds the faulty record of a block, and its fault. Slow, so only for blocks that failed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from gpukeras.core.errors import DataError
from gpukeras.core.messages import count_of
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.base import Part
from gpukeras.data.files.csv.chunks import Block, count_lines
from gpukeras.data.files.csv.header import Header
from gpukeras.data.files.csv.records import record_ends
from gpukeras.data.files.errors import file_error
from gpukeras.data.files.schema import WORDS, family_of

COUNTS = re.compile(r"Expected (\d+) columns?, got (\d+)")
COLUMN = re.compile(r"In CSV column #(\d+):")
CSV_HINT = (
    "Correct it (missing values are NA), or leave such rows out and have them counted: "
    '`on_error = "skip"`.'
)
Parsed = TypeVar("Parsed")
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
        found = _fault(data[edges[low] : edges[middle]], parse)
        low, high = (middle, high) if found is None else (low, middle)
        message = message if found is None else found
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
    found = None if block.endless else find_first(block.data, parse, header.separator)
    place, message = found or (0, "")
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
    data: bytes, parse: Callable[[bytes], Parsed], separator: str
) -> tuple[list[Parsed], int]:
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
    parsed: list[Parsed] = []
    bad = 0
    for part in (data[:half], data[half:]):
        some, more = parse_leniently(part, parse, separator)
        parsed, bad = parsed + some, bad + more
    return parsed, bad
