"""Authenticates the messages between workers with HMAC-SHA-256 and a shared secret.

Each side of a connection begins with a greeting that holds a nonce. The keys are derived from the
secret and both nonces, one key for each direction, and each message has a number: a message that is
replayed from another connection or another time, or reflected to its sender, fails the check.
Without a secret the same is done with an empty one, which protects against accidents but not
against attackers.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable

PROTOCOL = 2  # incremented when workers of two versions of gpukeras would misunderstand each other
MAGIC = b"GPUK"
GREETING = struct.Struct("!4sBB2x32s")  # magic, protocol, side, nonce
NONCE, TAG = 32, 32  # bytes
CHIEF, WORKER = 1, 2  # the sides of a connection
_COUNT = struct.Struct("!Q")


class AuthenticationError(Exception):
    """Received bytes that no worker of this training sends."""


class Seal:
    """One side of one connection: signs the messages it sends, checks those it receives.

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

    def complete_handshake(self, greeting: bytes) -> None:
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

    def sign_header(self, header: bytes) -> bytes:
        """Returns the tag of the next message's header."""
        self._sent += 1
        return _sign(self._outward, self._sent, b"header", (header,))

    def sign_body(self, parts: Iterable[bytes | memoryview]) -> bytes:
        """Returns the tag of the same message's body."""
        return _sign(self._outward, self._sent, b"body", parts)

    def check_header(self, header: bytes, tag: bytes) -> None:
        """Checks the tag of the next message's header, before the header is parsed.

        Raises:
            AuthenticationError: if the sender does not know the secret, or the message is out of
                order.
        """
        self._taken += 1
        _compare(_sign(self._inward, self._taken, b"header", (header,)), tag)

    def check_body(self, body: bytearray, tag: bytes) -> None:
        """Checks the tag of the same message's body; raises as `check_header()`."""
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
        raise AuthenticationError("a message without the secret")
