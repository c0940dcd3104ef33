"""The bytes of a CSV file in blocks of whole records, compressed or not."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukeras.core.prefetch import read_ahead
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.csv.header import Header
from gpukeras.data.files.csv.records import QUOTE, record_ends, split_end
from gpukeras.data.files.paths import compression_of

BLOCK_BYTES = 2 * 2**20  # of 1, 2, 4 and 8 MiB this took least processor time
COLUMN_BYTES = 4096  # a block's least size by column: each costs some time in each block
MAX_RECORD_BYTES = 16 * 2**20  # a record without end: its quote is not closed


@dataclass(frozen=True)
class Block:
    """Consecutive records.

    Args:
        start: Bytes of the file before it, without compression.
        data: Its bytes.
        endless: Whether it is one line that begins a quoted text without end.
    """

    start: int
    data: bytes
    endless: bool = False

    def __post_init__(self) -> None:
        """Checks that there is something."""
        if not self.data:
            raise ValueError("an empty block")


def open_bytes(path: Path) -> Any:
    """A file's bytes without compression.

    Raises:
        OSError: if it cannot be opened.
    """
    compression = compression_of(path)
    if compression is None:
        return path.open("rb", buffering=0)
    return pa.input_stream(str(path), compression=compression)


def read_blocks(path: Path, header: Header) -> Generator[Block, None, None]:
    """A file's blocks; those of a compressed one are made in a thread, ahead.

    Raises:
        OSError: if it cannot be read, or is no whole compressed file.
    """
    blocks = _read_blocks(path, header)
    return read_ahead(blocks) if compression_of(path) else blocks


def _read_blocks(path: Path, header: Header) -> Generator[Block, None, None]:
    size = min(MAX_RECORD_BYTES, max(BLOCK_BYTES, COLUMN_BYTES * len(header.names)))
    with closing(open_bytes(path)) as file:
        _pass_over(file, header.start)
        start, tail = header.start, b""
        while chunk := file.read(size):
            data = tail + chunk if tail else chunk
            for block in _whole_records(data, start, size, header):
                yield block
                start += len(block.data)
                data = data[len(block.data) :]
            tail = data
        yield from _last_records(tail, start, header)


def _whole_records(data: bytes, start: int, size: int, header: Header) -> Iterator[Block]:
    """The block of whole records at the start of `data`, if there is one."""
    if len(data) < size:
        return
    end = split_end(data, header.newline, header.separator)
    if end:
        yield Block(start, data[:end])
    elif len(data) >= MAX_RECORD_BYTES:
        yield _first_line(data, start, header)


def _last_records(data: bytes, start: int, header: Header) -> Iterator[Block]:
    """The blocks of what is left at the end of a file."""
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


def count_lines(path: Path, end: int, newline: bytes) -> int:
    """How many lines end before a place; reads the file up to there."""
    lines = 0
    with closing(open_bytes(path)) as file:
        while end > 0 and (data := file.read(min(end, BLOCK_BYTES))):
            lines += data.count(newline)
            end -= len(data)
    return lines
