"""What travels on the control channel: a fixed header, then so many bytes.

Reading and writing of bytes is here apart from sockets, so that it is tested without any.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

PROTOCOL = 1  # rises when workers of two versions of gpukeras would misunderstand each other
MAGIC = b"GPUK"
HEADER = struct.Struct("!4sB3xQ")
FIRST_LIMIT = 2**20  # bytes of what a stranger may send before it has proved to be a worker
LIMIT = 2**36  # bytes of one message between workers
JOINED = 2**16  # parts shorter than this go out in one piece


class FrameKind(IntEnum):
    """What a message is for; numbers never change their meaning."""

    HELLO = 1  # a worker: who I am and what I have
    WAIT = 2  # the chief: you are known; seconds until I decide
    WELCOME = 3  # the chief: all are here
    REFUSE = 4  # the chief: why it cannot start
    BEAT = 5  # both: I live
    CALL = 6  # a worker: what I give to the exchange
    RESULT = 7  # the chief: what all gave
    BYE = 8  # a worker: I have finished
    OVER = 9  # the chief: all have finished
    FAIL = 10  # a worker: why I leave
    FAULT = 11  # both: who is lost and why
    REST = 12  # both: whether my silence means anything


KINDS = {int(kind): kind for kind in FrameKind}


class StrangerError(Exception):
    """Bytes that no worker of gpukeras sends."""


@dataclass(frozen=True)
class Frame:
    """One whole message.

    Args:
        kind: What it is for.
        body: Its bytes.
    """

    kind: FrameKind
    body: bytearray

    def record(self) -> dict[str, Any]:
        """The body as a record.

        Raises:
            StrangerError: if it is none.
        """
        try:
            record = json.loads(bytes(self.body))
        except (ValueError, RecursionError) as error:
            raise StrangerError("a message that is no JSON") from error
        if not isinstance(record, dict):
            raise StrangerError("a message that is no record")
        return record


class FrameReader:
    """Puts messages together from bytes as they come.

    Args:
        limit: Longest body, bytes.
    """

    def __init__(self, limit: int = FIRST_LIMIT) -> None:
        """Waits for a header."""
        self.limit = limit
        self._expect_header()

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return memoryview(self._buffer)[self._filled :]

    def took(self, count: int) -> Frame | None:
        """Notes that `count` bytes were put into `room()`; a message if it is whole now.

        Raises:
            StrangerError: for a header that is none, or a body longer than the limit.
        """
        self._filled += count
        if self._filled < len(self._buffer):
            return None
        if self._kind is None:
            self._kind, length = parse_header(bytes(self._buffer), self.limit)
            self._buffer, self._filled = bytearray(length), 0
            if length:
                return None
        frame = Frame(self._kind, self._buffer)
        self._expect_header()
        return frame

    def _expect_header(self) -> None:
        self._kind: FrameKind | None = None
        self._buffer, self._filled = bytearray(HEADER.size), 0


def parse_header(header: bytes, limit: int) -> tuple[FrameKind, int]:
    """The kind of a message and the bytes of its body.

    Raises:
        StrangerError: if it is no header of ours, or announces more than `limit` bytes.
    """
    magic, kind, length = HEADER.unpack(header)
    if magic != MAGIC or kind not in KINDS:
        raise StrangerError("no header of this program")
    if length > limit:
        raise StrangerError(f"a message of {length} bytes, where {limit} are the most")
    return KINDS[kind], length


def pack_frame(kind: FrameKind, *parts: bytes | memoryview) -> list[memoryview]:
    """A message as pieces to be sent in order; long parts are not copied."""
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    header = HEADER.pack(MAGIC, kind, sum(view.nbytes for view in views))
    pieces = [bytearray(header)]
    for view in views:
        if view.nbytes < JOINED and isinstance(pieces[-1], bytearray):
            pieces[-1] += view
        else:
            pieces.append(bytearray(view) if view.nbytes < JOINED else view)
    return [memoryview(piece) for piece in pieces]


def pack_record(kind: FrameKind, record: Mapping[str, Any]) -> list[memoryview]:
    """A message whose body is a record."""
    return pack_frame(kind, json.dumps(record).encode())
