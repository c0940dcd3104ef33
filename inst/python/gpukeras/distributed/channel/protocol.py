"""The wire format of the control channel: signed messages, each a JSON record and parts of bytes.

    greeting | header | tag | record | parts | tag | header | tag | ...

Tags are HMAC-SHA-256 by a shared secret. Each side of a connection begins with a greeting that
holds a nonce. The keys are derived from the secret and both nonces, one key for each direction, and
each tag has a number: a message that is replayed from another connection or another time, or
reflected to its sender, fails the check. Without a secret the same is done with an empty one, which
protects against accidents but not against attackers.

No header is parsed before its tag is checked, and no record before its own; the memory of a message
grows with the bytes received, not with the announced length. This module does not use sockets, so
that it is tested without any.
"""

from __future__ import annotations

import hmac
import json
import os
import struct
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

PROTOCOL = 4  # incremented when workers of two versions of gpukeras would misunderstand each other
MAGIC = b"GPUK"
GREETING = struct.Struct("!4sBB2x32s")  # magic, protocol, side, nonce
HEADER = struct.Struct("!IQ")  # bytes of the record, bytes of all parts
NONCE, TAG = 32, 32  # bytes
CHIEF, WORKER = 1, 2  # the sides of a connection
_COUNT = struct.Struct("!Q")
Bytes = bytes | bytearray | memoryview
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


class AuthenticationError(Exception):
    """Received bytes that no worker of this training sends."""


class Seal:
    """One side of one connection: signs what it sends, checks what it receives.

    Args:
        secret: The secret shared by all workers; b"" for none.
        side: CHIEF or WORKER.
    """

    def __init__(self, secret: bytes, side: int) -> None:
        """Creates a nonce; the keys follow from the other side's greeting."""
        self._secret, self._side = secret, side
        self._nonce = os.urandom(NONCE)
        self._outward = self._inward = b""
        self._sent = self._taken = 0
        self.greeting = GREETING.pack(MAGIC, PROTOCOL, side, self._nonce)

    @property
    def ready(self) -> bool:
        """Whether the other side's greeting has arrived."""
        return bool(self._inward)

    def complete_handshake(self, greeting: Bytes) -> None:
        """Derives the keys from the other side's greeting.

        Raises:
            AuthenticationError: if it is no greeting, or this side's own.
        """
        magic, protocol, side, nonce = GREETING.unpack(greeting)
        if magic != MAGIC or protocol != PROTOCOL or side != CHIEF + WORKER - self._side:
            raise AuthenticationError("no greeting of this program")
        pair = (self._nonce, nonce) if self._side == CHIEF else (nonce, self._nonce)
        self._outward = self._derive(self._side, pair)
        self._inward = self._derive(side, pair)

    def sign(self, *parts: Bytes) -> bytes:
        """Returns the tag of the next bytes that this side sends."""
        self._sent += 1
        return _sign(self._outward, self._sent, parts)

    def check(self, tag: Bytes, *parts: Bytes) -> None:
        """Checks the tag of the next bytes that the other side has sent.

        Raises:
            AuthenticationError: if the sender does not know the secret, or they are out of order.
        """
        self._taken += 1
        if not hmac.compare_digest(_sign(self._inward, self._taken, parts), tag):
            raise AuthenticationError("a message without the secret")

    def _derive(self, side: int, nonces: tuple[bytes, bytes]) -> bytes:
        text = b"gpukeras control channel" + bytes([PROTOCOL, side]) + b"".join(nonces)
        return hmac.digest(self._secret, text, "sha256")


def _sign(key: bytes, number: int, parts: tuple[Bytes, ...]) -> bytes:
    made = hmac.new(key, _COUNT.pack(number), "sha256")
    for part in parts:
        made.update(part)
    return made.digest()


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
    header = HEADER.pack(len(record), sum(lengths))
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
            record, parts = HEADER.unpack_from(start)
            length = record + parts
            if length > self.limit:
                raise AuthenticationError("a message that is too long")
            body = memoryview((yield length + TAG))
            self._seal.check(body[length:], body[:length])
            self._take(parse_body(record, body[:length]))


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
