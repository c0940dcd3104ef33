"""Cuts CSV files into blocks of complete records, and reads their header."""

from __future__ import annotations

import csv
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from gpukeras.core.prefetch import read_ahead
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.files import AnyFile, RemoteFile
from gpukeras.data.files.paths import compression_of

# Records ------------------------------------------------------------------------------------------

QUOTE = b'"'
_SENTINEL = "\x01"  # a separate record, unless a quoted string before it is still open


def split_end(data: bytes, newline: bytes, separator: str) -> int:
    """Returns the offset after the last complete record of a block, 0 if there is none.

    The fast path counts quotes. An odd number before a newline means that the newline is inside a
    quoted string, or that a stray quote is in an unquoted one: then the records are parsed one by
    one.

    Args:
        data: The block.
        newline: Bytes that end a line.
        separator: Separator between fields.
    """
    end = data.rfind(newline) + 1
    odd = QUOTE in data and data.count(QUOTE, 0, end) % 2
    while end and odd:
        before = data.rfind(newline, 0, end - 1) + 1
        odd ^= data.count(QUOTE, before, end) % 2
        end = before
    if end:
        return end
    ends = record_ends(data, separator)
    if ends and not data[: ends[-1]].endswith(newline):
        ends.pop()  # the record may continue in the next block
    return ends[-1] if ends else 0


def record_ends(data: bytes, separator: str) -> list[int]:
    """Returns the offsets after each record that ends within `data`, without blank lines.

    A record with an unclosed quote, and all bytes after it, are left out.
    """
    ends: list[int] = []
    record: list[str] = []
    place = 0

    def lines() -> Iterator[str]:
        nonlocal place
        for line in data.splitlines(keepends=True):
            place += len(line)
            yield line.decode("latin-1")  # one character per byte
        if not data.endswith((b"\n", b"\r")):
            yield "\n"
        yield _SENTINEL

    try:
        for record in csv.reader(lines(), delimiter=separator):
            if record:
                ends.append(place)
    except csv.Error:  # field exceeds csv's limit: probably an unclosed quote
        return ends
    return ends[:-1]  # the last record is the sentinel, alone or in an open quote


# Headers ------------------------------------------------------------------------------------------

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


def parse_header(data: bytes, separator: str | None) -> Header | None:
    """Parses the header at the start of a file; skips blank lines before it.

    Args:
        data: The start of the file, or all of it.
        separator: Separator between fields, or None to detect it.

    Returns:
        The header, or None if no line has text, or a quote is not closed.

    Raises:
        UnicodeError: if the header is not in UTF-8.
    """
    newline = _newline_of(data)
    begin = _header_begin(data)
    start = _header_end(data, begin, newline) or len(data)
    text = data[begin:start].decode("utf-8").rstrip("\r\n")
    if not text or (start == len(data) and not record_ends(data[begin:], separator or ",")):
        return None
    if "\0" in text:  # UTF-16 without a mark
        raise UnicodeError("a header with NUL bytes")
    separator = separator or choose_separator(text)
    fields = next(csv.reader([text], delimiter=separator))
    names, notes = name_unnamed(fields)
    notes = [*notes, *_note_numbers(fields)]
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
    separators = [separator for separator in SEPARATORS if separator in outside]
    return separators[0] if len(separators) == 1 else ","


def name_unnamed(header: list[str]) -> tuple[list[str], list[str]]:
    """Names columns without a name as R does (often written row names); returns names and notes."""
    names: list[str] = []
    notes: list[str] = []
    for name in header:
        if not name:
            count = 0
            while (name := f"X.{count}" if count else "X") in (*header, *names):
                count += 1
            notes.append(f"has a column without a name: it is called `{name}`.")
        names.append(name)
    return names, notes


def _note_numbers(header: list[str]) -> list[str]:
    """Returns a note if all names are numbers: the file probably has no header."""
    try:
        [float(name) for name in header]
    except ValueError:
        return []
    return ["has only numbers in its first line: they were taken as the names of its columns."]


# Blocks -------------------------------------------------------------------------------------------

BLOCK_BYTES = 2 * 2**20  # used the least CPU time of 1, 2, 4 and 8 MiB
COLUMN_BYTES = 4096  # least block size per column: each column adds time per block
MAX_RECORD_BYTES = 16 * 2**20  # a longer record has an unclosed quote


@dataclass(frozen=True)
class Block:
    """A block of consecutive records.

    Args:
        start: Offset of the block in the uncompressed file.
        data: The bytes of the block.
        endless: Whether the block is a single line with an unclosed quote.
        read: Bytes of the file, as it is stored, that have been read.
    """

    start: int
    data: bytes
    endless: bool = False
    read: int = 0


def open_bytes(path: AnyFile) -> Any:
    """Opens a file for reading uncompressed bytes.

    Raises:
        OSError: if the file cannot be opened.
    """
    return _unpack(_open_stored(path), path)


def _open_stored(path: AnyFile) -> Any:
    """Opens a file for reading its bytes as they are stored."""
    if isinstance(path, RemoteFile):
        return path.open()
    return pa.OSFile(str(path)) if compression_of(path) else path.open("rb", buffering=0)


def _unpack(stored: Any, path: AnyFile) -> Any:
    compression = compression_of(path)
    return pa.CompressedInputStream(stored, compression) if compression else stored


def read_blocks(path: AnyFile, header: Header) -> Generator[Block, None, None]:
    """Yields a file's blocks; a thread prefetches those of a compressed or remote file.

    Raises:
        OSError: if the file cannot be read, or is an incomplete compressed file.
    """
    blocks = _read_blocks(path, header)
    ahead = compression_of(path) or isinstance(path, RemoteFile)
    return read_ahead(blocks) if ahead else blocks


def _read_blocks(path: AnyFile, header: Header) -> Generator[Block, None, None]:
    size = min(MAX_RECORD_BYTES, max(BLOCK_BYTES, COLUMN_BYTES * len(header.names)))
    with closing(_open_stored(path)) as stored, closing(_unpack(stored, path)) as file:
        _pass_over(file, header.start)
        start, tail = header.start, b""
        while chunk := file.read(size):
            data = tail + chunk if tail else chunk
            for block in _whole_records(data, start, size, header):
                yield replace(block, read=stored.tell())
                start += len(block.data)
                data = data[len(block.data) :]
            tail = data
        for block in _last_records(tail, start, header):
            yield replace(block, read=stored.tell())


def _whole_records(data: bytes, start: int, size: int, header: Header) -> Iterator[Block]:
    """Yields the block of complete records at the start of `data`, if any."""
    if len(data) < size:
        return
    end = split_end(data, header.newline, header.separator)
    if end:
        yield Block(start, data[:end])
    elif len(data) >= MAX_RECORD_BYTES:
        yield _first_line(data, start, header)


def _last_records(data: bytes, start: int, header: Header) -> Iterator[Block]:
    """Yields the blocks of the remaining bytes at the end of a file."""
    while data:
        whole = len(data)
        if data.count(QUOTE) % 2:
            whole = (record_ends(data, header.separator) or [0])[-1]
            if not data[whole:].strip(b"\r\n"):
                whole = len(data)
        block = Block(start, data[:whole]) if whole else _first_line(data, start, header)
        yield block
        start, data = start + len(block.data), data[len(block.data) :]


def _first_line(data: bytes, start: int, header: Header) -> Block:
    end = data.find(header.newline) + 1
    return Block(start, data[: end or len(data)], endless=True)


def _pass_over(file: Any, count: int) -> None:
    while count > 0 and (passed := file.read(count)):
        count -= len(passed)


def count_lines(path: AnyFile, end: int, newline: bytes) -> int:
    """Counts the lines that end before an offset; reads the file up to there.

    Args:
        path: The file.
        end: The offset in the uncompressed file.
        newline: Bytes that end a line.
    """
    lines = 0
    with closing(open_bytes(path)) as file:
        while end > 0 and (data := file.read(min(end, BLOCK_BYTES))):
            lines += data.count(newline)
            end -= len(data)
    return lines
