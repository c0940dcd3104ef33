"""The wire format of the control channel: a JSON record and parts of bytes in each message.

    greeting | header | tag | record | parts | tag | header | tag | ...

No header is parsed before its tag is checked, see `authentication`, and no record before its own;
the memory of a message grows with the bytes received, not with the announced length. This module
does not use sockets, so that it is tested without any.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from gpukeras.distributed.channel.authentication import (
    GREETING,
    MAGIC,
    TAG,
    AuthenticationError,
    Bytes,
    Seal,
)

HEADER = struct.Struct("!4sIQ")  # magic, bytes of the record, bytes of all parts
FIRST_LIMIT = 2**20  # bytes of a message from a peer that has not proved to be a worker
LIMIT = 2**36  # bytes of one message between workers
JOINED = 2**16  # shorter messages are joined into one piece

HELLO = "hello"  # from a worker: its index and description
WELCOME = "welcome"  # from the chief: all have joined
REFUSE = "refuse"  # from the chief: why the cluster cannot start
BEAT = "beat"  # from both: a heartbeat, and whether the sender rests from now on
CALL = "call"  # from a worker: its part of a collective call
RESULT = "result"  # from the chief: the parts of all workers
BYE = "bye"  # from a worker: it has finished; from the chief: all have
FAULT = "fault"  # from both: which worker is lost or leaves, and why


@dataclass(frozen=True)
class Message:
    """One whole message.

    Args:
        kind: Its kind, such as "call".
        values: Its record.
        parts: Its bytes, as views of the received message.
    """

    kind: str
    values: Mapping[str, Any]
    parts: Sequence[memoryview] = ()


def pack_message(
    seal: Seal, kind: str, values: Mapping[str, Any], parts: Sequence[Bytes] = ()
) -> list[Bytes]:
    """Returns a message as pieces to be sent in order; long parts are not copied."""
    lengths = [len(part) for part in parts]
    record = json.dumps({"kind": kind, "values": values, "lengths": lengths}).encode()
    header = HEADER.pack(MAGIC, len(record), sum(lengths))
    pieces = [header + seal.sign(header) + record, *parts, seal.sign(record, *parts)]
    return pieces if sum(lengths) > JOINED else [b"".join(pieces)]


class MessageReader:
    """Assembles messages from bytes as they arrive.

    Args:
        seal: The seal of this connection; it takes the greeting, which comes first.
        take: Called with each message once it is whole.
        limit: Longest message, bytes.
    """

    def __init__(
        self, seal: Seal, take: Callable[[Message], None], limit: int = FIRST_LIMIT
    ) -> None:
        """Starts with the greeting as the next expected bytes."""
        self.limit = limit
        self._seal = seal
        self._take = take
        self._buffer = bytearray()
        self._steps = self._read_all()
        self._needed = next(self._steps)

    def feed(self, data: Bytes) -> None:
        """Adds received bytes.

        Raises:
            AuthenticationError: for bytes that no worker sends, or a message longer than the limit.
        """
        self._buffer += data
        while len(self._buffer) >= self._needed:
            whole = self._buffer
            self._buffer = whole[self._needed :]
            del whole[self._needed :]
            self._needed = self._steps.send(whole)

    def _read_all(self) -> Generator[int, bytearray, None]:
        # Yields the number of bytes that are needed next, and is sent them.
        self._seal.complete_handshake((yield GREETING.size))
        while True:
            start = yield HEADER.size + TAG
            self._seal.check(start[HEADER.size :], start[: HEADER.size])
            length = parse_header(start, self.limit)
            body = memoryview((yield length + TAG))
            self._seal.check(body[length:], body[:length])
            self._take(parse_body(HEADER.unpack_from(start)[1], body[:length]))


def parse_header(header: Bytes, limit: int) -> int:
    """Returns the length of a message's record and parts in bytes.

    Raises:
        AuthenticationError: if it is no header, or announces more than `limit` bytes.
    """
    magic, length, more = HEADER.unpack_from(header)
    if magic != MAGIC or length + more > limit:
        raise AuthenticationError("no header of this program, or a message that is too long")
    return length + more


def parse_body(length: int, body: memoryview) -> Message:
    """Parses a message: a record of `length` bytes, then its parts.

    Raises:
        AuthenticationError: if it is none.
    """
    try:
        record = json.loads(bytes(body[:length]), parse_constant=_refuse_constant)
        kind = record["kind"]
        values = record["values"]
        lengths = record["lengths"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise AuthenticationError("a message that is no record") from error
    rest = body[length:]
    valid = isinstance(kind, str) and isinstance(values, dict) and isinstance(lengths, list)
    if not valid or not all(is_count(size, len(rest) + 1) for size in lengths):
        raise AuthenticationError("a message that is no record")
    if sum(lengths) != len(rest):
        raise AuthenticationError("parts of other lengths")
    parts = []
    for size in lengths:
        parts.append(rest[:size])
        rest = rest[size:]
    return Message(kind, values, parts)


def _refuse_constant(name: str) -> None:
    raise AuthenticationError(f"{name} for a number")


def is_count(value: Any, size: int) -> TypeGuard[int]:
    """Whether a received value is an integer from 0 to below `size`; `true` is none."""
    return type(value) is int and 0 <= value < size
