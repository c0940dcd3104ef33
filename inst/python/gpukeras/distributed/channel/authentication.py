"""What proves that a message comes from who shares the secret: HMAC-SHA-256 over each of them.

Both sides of a connection begin with a greeting that holds a nonce. Keys are made of the secret and
both nonces, one for each direction, and each message has a number: so what was said in another
connection, at another time or by oneself is no message here. Without a secret the same is done with
an empty one, which keeps accidents out but nobody who means harm.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable

PROTOCOL = 2  # rises when workers of two versions of gpukeras would misunderstand each other
MAGIC = b"GPUK"
GREETING = struct.Struct("!4sBB2x32s")  # magic, protocol, side, nonce
NONCE, TAG = 32, 32  # bytes
CHIEF, WORKER = 1, 2  # the sides of a connection
_COUNT = struct.Struct("!Q")


class StrangerError(Exception):
    """Bytes that no worker of this training sends."""


class Seal:
    """One side of one connection: seals what it sends, checks what it gets.

    Args:
        secret: What all workers share; b"" for none.
        side: CHIEF or WORKER.
    """

    def __init__(self, secret: bytes, side: int) -> None:
        """Has met nobody yet."""
        self._secret, self._side = secret, side
        self._nonce = os.urandom(NONCE)
        self._outward = self._inward = b""
        self._sent = self._taken = 0
        self.greeting = GREETING.pack(MAGIC, PROTOCOL, side, self._nonce)

    @property
    def ready(self) -> bool:
        """Whether the other side's greeting has come."""
        return bool(self._inward)

    def meet(self, greeting: bytes) -> None:
        """Takes the other side's greeting.

        Raises:
            StrangerError: if it is none, or one's own.
        """
        magic, protocol, side, nonce = GREETING.unpack(greeting)
        if magic != MAGIC or protocol != PROTOCOL or side != CHIEF + WORKER - self._side:
            raise StrangerError("no greeting of this program")
        pair = (self._nonce, nonce) if self._side == CHIEF else (nonce, self._nonce)
        self._outward = self._derive(self._side, pair)
        self._inward = self._derive(side, pair)

    def sign_header(self, header: bytes) -> bytes:
        """The tag of the next message's header."""
        self._sent += 1
        return _sign(self._outward, self._sent, b"header", (header,))

    def sign_body(self, parts: Iterable[bytes | memoryview]) -> bytes:
        """The tag of the same message's body."""
        return _sign(self._outward, self._sent, b"body", parts)

    def check_header(self, header: bytes, tag: bytes) -> None:
        """Checks the next message's header, before anything in it is believed.

        Raises:
            StrangerError: if it does not come from who knows the secret, or not in its turn.
        """
        self._taken += 1
        _compare(_sign(self._inward, self._taken, b"header", (header,)), tag)

    def check_body(self, body: bytearray, tag: bytes) -> None:
        """Checks the same message's body; raises as `check_header()`."""
        _compare(_sign(self._inward, self._taken, b"body", (body,)), tag)

    def _derive(self, side: int, nonces: tuple[bytes, bytes]) -> bytes:
        text = b"gpukeras control channel" + bytes([PROTOCOL, side]) + b"".join(nonces)
        return hmac.digest(self._secret, text, "sha256")


def _sign(
    key: bytes, number: int, what: bytes, parts: Iterable[bytes | bytearray | memoryview]
) -> bytes:
    made = hmac.new(key, _COUNT.pack(number) + what, hashlib.sha256)
    for part in parts:
        made.update(part)
    return made.digest()


def _compare(expected: bytes, tag: bytes) -> None:
    if not hmac.compare_digest(expected, tag):
        raise StrangerError("a message without the secret")
