"""Splits the bytes of a CSV file, compressed or not, into blocks of complete records."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from gpukeras.core.prefetch import read_ahead
from gpukeras.data.files.arrow import pa
from gpukeras.data.files.csv.header import Header
from gpukeras.data.files.csv.records import QUOTE, record_ends, split_end
from gpukeras.data.files.paths import compression_of
from gpukeras.data.files.remote_file import AnyFile, RemoteFile

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
    """

    start: int
    data: bytes
    endless: bool = False

    def __post_init__(self) -> None:
        """Checks that the block is not empty."""
        if not self.data:
            raise ValueError("an empty block")


def open_bytes(path: AnyFile) -> Any:
    """Opens a file for reading uncompressed bytes.

    Raises:
        OSError: if the file cannot be opened.
    """
    compression = compression_of(path)
    if isinstance(path, RemoteFile):
        file = path.open()
        return pa.CompressedInputStream(file, compression) if compression else file
    if compression is None:
        return path.open("rb", buffering=0)
    return pa.input_stream(str(path), compression=compression)


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
