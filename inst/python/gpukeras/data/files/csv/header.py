"""Parses the header of a CSV file: column names and separator. Does no I/O."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from gpukeras.data.files.csv.records import QUOTE, record_ends

SEPARATORS = (",", ";", "\t")
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Header:
    """The header of one file.

    Args:
        names: Names of all columns, after renaming.
        start: Offset of the first row in bytes.
        newline: Bytes that end a line.
        separator: Separator between fields.
        notes: Sentences for the user, to follow the file's name.
    """

    names: tuple[str, ...]
    start: int
    newline: bytes
    separator: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks that there are names, and a separator of one character."""
        if not self.names or len(self.separator) != 1:
            raise ValueError("a header has names and a separator of one character")


def parse_header(data: bytes, separator: str | None) -> Header | None:
    """Parses the header at the start of a file; skips blank lines before it.

    Args:
        data: The start of the file, or all of it.
        separator: Separator between fields, or None to detect it.

    Returns:
        The header, or None if no line has text, or a quote is not closed.

    Raises:
        UnicodeDecodeError: if the header is not in UTF-8.
    """
    newline = _newline_of(data)
    begin = _header_begin(data)
    start = _header_end(data, begin, newline) or len(data)
    text = data[begin:start].decode("utf-8").rstrip("\r\n")
    if not text or (start == len(data) and not record_ends(data[begin:], separator or ",")):
        return None
    separator = separator or choose_separator(text)
    given = next(csv.reader([text], delimiter=separator))
    names, notes = name_unnamed(given)
    notes = [*notes, *_note_numbers(given)]
    return Header(tuple(names), start, newline, separator, tuple(notes))


def has_header(data: bytes) -> bool:
    """Whether the start of a file contains the complete header, and bytes after it."""
    newline, begin = _newline_of(data), _header_begin(data)
    return 0 < _header_end(data, begin, newline) < len(data)


def _newline_of(data: bytes) -> bytes:
    return b"\r" if b"\n" not in data and b"\r" in data else b"\n"


def _header_begin(data: bytes) -> int:
    """Returns the offset of the first text."""
    begin = len(BOM) if data.startswith(BOM) else 0
    while data.startswith((b"\n", b"\r"), begin):
        begin += 2 if data.startswith(b"\r\n", begin) else 1
    return begin


def _header_end(data: bytes, begin: int, newline: bytes) -> int:
    """Returns the offset after the header, which may have newlines in quoted names; or 0."""
    end = data.find(newline, begin) + 1
    if data.count(QUOTE, begin, end) % 2 == 0:
        return end
    separator = choose_separator(data[begin:end].decode("latin-1"))
    ends = record_ends(data[begin:], separator)
    return begin + ends[0] if ends else 0


def choose_separator(header: str) -> str:
    """Returns the only separator outside quotes; a comma if several or none occur."""
    outside = "".join(header.split('"')[::2])
    found = [separator for separator in SEPARATORS if separator in outside]
    return found[0] if len(found) == 1 else ","


def name_unnamed(given: list[str]) -> tuple[list[str], list[str]]:
    """Names columns without a name as R does (often written row names); returns names and notes."""
    names: list[str] = []
    notes: list[str] = []
    for name in given:
        if not name:
            count = 0
            while (name := f"X.{count}" if count else "X") in (*given, *names):
                count += 1
            notes.append(f"has a column without a name: it is called `{name}`.")
        names.append(name)
    return names, notes


def _note_numbers(given: list[str]) -> list[str]:
    """Returns a note if all names are numbers: the file probably has no header."""
    try:
        [float(name) for name in given]
    except ValueError:
        return []
    return ["has only numbers in its first line: they were taken as the names of its columns."]
