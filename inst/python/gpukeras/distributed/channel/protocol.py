"""The wire format of the control channel: messages with a fixed header, a body and two tags.

    greeting | header | tag | body | tag | header | tag | ...

No header is parsed before its tag is checked, see `authentication`; the memory of a body grows with
the bytes received, not with the announced length. This module does not use sockets, so that it is
tested without any.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeGuard

from gpukeras.distributed.channel.authentication import (
    GREETING,
    MAGIC,
    TAG,
    AuthenticationError,
    Seal,
)

HEADER = struct.Struct("!4sB3xQ")
FIRST_LIMIT = 2**20  # bytes of a message from a peer that has not proved to be a worker
LIMIT = 2**36  # bytes of one message between workers
ROOM = 2**20  # bytes of a body's first buffer; it doubles as bytes arrive
JOINED = 2**16  # parts shorter than this are joined into one piece


class FrameKind(IntEnum):
    """The kind of a message; numbers never change their meaning."""

    HELLO = 1  # from a worker: its number and description
    WAIT = 2  # from the chief: the greeting is accepted; seconds until the decision
    WELCOME = 3  # from the chief: all have joined
    REFUSE = 4  # from the chief: why the cluster cannot start
    BEAT = 5  # from both: a heartbeat
    CALL = 6  # from a worker: its part of a call
    RESULT = 7  # from the chief: the parts of all workers
    BYE = 8  # from a worker: it has finished
    OVER = 9  # from the chief: all have finished
    FAIL = 10  # from a worker: why it leaves
    FAULT = 11  # from both: which worker is lost, and why
    REST = 12  # from both: whether the sender rests


KINDS = {int(kind): kind for kind in FrameKind}


@dataclass(frozen=True)
class Frame:
    """One whole message.

    Args:
        kind: Its kind.
        body: Its bytes.
    """

    kind: FrameKind
    body: bytearray

    def record(self) -> dict[str, Any]:
        """Returns the body as a record.

        Raises:
            AuthenticationError: if it is none.
        """
        try:
            record = json.loads(bytes(self.body), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise AuthenticationError("a message that is no JSON") from error
        if not isinstance(record, dict):
            raise AuthenticationError("a message that is no record")
        return record


def _refuse_constant(name: str) -> None:
    raise AuthenticationError(f"{name} for a number")


class FrameReader:
    """Assembles messages from bytes as they arrive.

    Args:
        seal: The seal of this connection; it takes the greeting, which comes first.
        limit: Longest body, bytes.
    """

    def __init__(self, seal: Seal, limit: int = FIRST_LIMIT) -> None:
        """Starts with the greeting as the next expected bytes."""
        self.limit = limit
        self._seal = seal
        self._body, self._buffer, self._filled = bytearray(), bytearray(), 0
        self._expect(self._take_greeting, GREETING.size)

    def room(self) -> memoryview:
        """Returns the buffer for the next bytes; never empty."""
        if self._filled == len(self._buffer):
            more = bytearray(min(self._needed, 2 * self._filled))
            more[: self._filled] = self._buffer
            self._buffer = more
        return memoryview(self._buffer)[self._filled :]

    def took(self, count: int) -> Frame | None:
        """Records that `count` bytes were put into `room()`; returns a message once it is whole.

        Raises:
            AuthenticationError: for bytes that no worker sends, or a body longer than the limit.
        """
        self._filled += count
        return None if self._filled < self._needed else self._take()

    def _expect(self, take: Callable[[], Frame | None], count: int) -> None:
        self._take, self._needed = take, count
        self._buffer, self._filled = bytearray(min(count, ROOM)), 0

    def _take_greeting(self) -> None:
        self._seal.complete_handshake(bytes(self._buffer))
        self._expect(self._take_header, HEADER.size + TAG)

    def _take_header(self) -> Frame | None:
        header = bytes(self._buffer[: HEADER.size])
        self._seal.check_header(header, bytes(self._buffer[HEADER.size :]))
        self._kind, length = parse_header(header, self.limit)
        if length:
            self._expect(self._take_body, length)
            return None
        return self._finish(bytearray())

    def _take_body(self) -> None:
        self._body = self._buffer
        self._expect(self._take_tag, TAG)

    def _take_tag(self) -> Frame:
        self._seal.check_body(self._body, bytes(self._buffer))
        return self._finish(self._body)

    def _finish(self, body: bytearray) -> Frame:
        self._body = bytearray()
        self._expect(self._take_header, HEADER.size + TAG)
        return Frame(self._kind, body)


def parse_header(header: bytes, limit: int) -> tuple[FrameKind, int]:
    """Returns the kind of a message and the length of its body in bytes.

    Raises:
        AuthenticationError: if it is no valid header, or announces more than `limit` bytes.
    """
    magic, kind, length = HEADER.unpack(header)
    if magic != MAGIC or kind not in KINDS:
        raise AuthenticationError("no header of this program")
    if length > limit:
        raise AuthenticationError(f"a message of {length} bytes, where {limit} are the most")
    return KINDS[kind], length


def pack_frame(seal: Seal, kind: FrameKind, *parts: bytes | memoryview) -> list[memoryview]:
    """Returns a message as pieces to be sent in order; long parts are not copied.

    Args:
        seal: The seal of the connection.
        kind: The kind of the message.
        *parts: The body.
    """
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    header = HEADER.pack(MAGIC, kind, sum(view.nbytes for view in views))
    pieces: list[bytearray | memoryview] = [bytearray(header + seal.sign_header(header))]
    end = [memoryview(seal.sign_body(views))] if views else []
    for view in [*views, *end]:
        last = pieces[-1]
        if view.nbytes < JOINED and isinstance(last, bytearray):
            last += view
        else:
            pieces.append(bytearray(view) if view.nbytes < JOINED else view)
    return [memoryview(piece) for piece in pieces]


def is_place(value: Any, size: int) -> TypeGuard[int]:
    """Whether a received value is an integer from 0 to below `size`; `true` is none."""
    return type(value) is int and 0 <= value < size
