"""Authenticates the messages between workers with HMAC-SHA-256 and a shared secret.

Each side of a connection begins with a greeting that holds a nonce. The keys are derived from the
secret and both nonces, one key for each direction, and each tag has a number: a message that is
replayed from another connection or another time, or reflected to its sender, fails the check.
Without a secret the same is done with an empty one, which protects against accidents but not
against attackers.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct

PROTOCOL = 3  # incremented when workers of two versions of gpukeras would misunderstand each other
MAGIC = b"GPUK"
GREETING = struct.Struct("!4sBB2x32s")  # magic, protocol, side, nonce
NONCE, TAG = 32, 32  # bytes
CHIEF, WORKER = 1, 2  # the sides of a connection
_COUNT = struct.Struct("!Q")
Bytes = bytes | bytearray | memoryview


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
    made = hmac.new(key, _COUNT.pack(number), hashlib.sha256)
    for part in parts:
        made.update(part)
    return made.digest()
