"""Finds record boundaries in CSV data, where quoted strings may contain newlines.

A quote opens a quoted string only at the start of a field, as in Arrow and Python's csv; inside it,
a doubled quote is a quote. Pure functions of bytes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

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
