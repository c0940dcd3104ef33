"""Where the records of delimited text begin and end: quoted texts may have newlines in them.

A quote opens a quoted text only where a field begins, as Arrow and Python's csv have it; within
one, a doubled quote is a quote. Pure: bytes in, places out.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator

QUOTE = b'"'
_SENTINEL = "\x01"  # a record of its own, unless a quoted text before it is still open


def split_end(data: bytes, newline: bytes, separator: str) -> int:
    """How much of a block is whole records: the place behind the last of them, 0 for none.

    Quotes are counted, which is fast. An odd number before a newline means that it lies within a
    quoted text, or that a stray quote stands in a plain one: then the records are told one by one.
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
        ends.pop()  # it may go on in the next block
    return ends[-1] if ends else 0


def record_ends(data: bytes, separator: str) -> list[int]:
    """The places behind each record that ends within `data`, or at its end; blank lines are none.

    A record whose quoted text does not end is not among them, nor is what comes after it.
    """
    ends: list[int] = []
    record: list[str] = []
    place = 0

    def lines() -> Iterator[str]:
        nonlocal place
        for line in data.splitlines(keepends=True):
            place += len(line)
            yield line.decode("latin-1")  # a character a byte
        if not data.endswith((b"\n", b"\r")):
            yield "\n"
        yield _SENTINEL

    try:
        for record in csv.reader(lines(), delimiter=separator):
            if record:
                ends.append(place)
    except csv.Error:  # a text longer than csv takes: its quote is not closed, most likely
        return ends
    return ends[:-1]  # the last is the sentinel, alone or in an open quote
