"""One connection to another worker: it never blocks, and records when bytes arrived."""

from __future__ import annotations

import errno
import json
import selectors
import socket
import ssl
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from gpukeras.distributed.channel.authentication import AuthenticationError, Seal
from gpukeras.distributed.channel.protocol import LIMIT, Frame, FrameKind, FrameReader, pack_frame

NO_ANSWER = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
LAST_WORD_S = 2.0  # how long closing a connection waits for bytes on their way
TURN = 2**23  # most bytes read at a time from one link, so that the others are read too


class Link:
    """A non-blocking connection that sends and receives whole messages.

    Args:
        connection: A connected socket, with TLS or without; the link owns it from here on.
        seal: The seal of this side of the connection.

    Attributes:
        heard: When bytes last arrived, by the reader's clock.
        ended: Whether the other side has closed, or sent bytes that no worker sends.
        stranger: Whether it was the latter.
        silent: Whether the other side counts as lost: closing does not wait for it.
        unreachable: Whether the system reported that the other computer does not answer.
    """

    def __init__(self, connection: socket.socket, seal: Seal) -> None:
        """Takes the connection and sends the greeting; refuses long messages until `trust()`."""
        connection.setblocking(False)
        with suppress(OSError):  # not a TCP socket
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self._peer = name_peer(connection)
        self.heard = 0.0
        self.ended = self.stranger = self.silent = self.unreachable = False
        self._deaf = False  # the other side reads no more
        self._seal, self._reader = seal, FrameReader(seal)
        self._out = deque([memoryview(seal.greeting)])
        self._held: deque[tuple[FrameKind, tuple[bytes | memoryview, ...]]] = deque()
        self._shaking = isinstance(connection, ssl.SSLSocket)  # until the TLS handshake is done
        self.flush()

    def fileno(self) -> int:
        """Returns the file descriptor, for selectors."""
        return self.connection.fileno()

    def trust(self, timeout_s: float) -> None:
        """Accepts long messages from now on: the other side is a worker.

        Args:
            timeout_s: Seconds after which a worker is lost.  TCP keep-alive detects a computer that
                is off or disconnected, even while its process rests; it takes longer than
                `timeout_s`, so that a worker that hangs receives the fault before the connection
                ends.
        """
        self._reader.limit = LIMIT
        probes = max(1, round(timeout_s / 4))
        options = {
            "TCP_KEEPIDLE": probes,
            "TCP_KEEPINTVL": probes,
            "TCP_KEEPCNT": 3,
            "TCP_USER_TIMEOUT": round(2000 * timeout_s),
        }
        with suppress(OSError):  # not a TCP socket
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in options.items():
                if hasattr(socket, name):
                    self.connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def peer(self) -> str:
        """The address at the other end, without its port."""
        return self._peer

    @property
    def met(self) -> bool:
        """Whether the other side's greeting has arrived; messages wait until then."""
        return self._seal.ready

    @property
    def unread(self) -> bool:
        """Whether TLS holds received bytes that no selector reports."""
        return isinstance(self.connection, ssl.SSLSocket) and self.connection.pending() > 0

    @property
    def waiting(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._out)

    def send(self, kind: FrameKind, *parts: bytes | memoryview) -> None:
        """Sends a message, as far as the system accepts it now; `flush()` sends the rest."""
        if not self._deaf:
            self._held.append((kind, parts))
            self._release()

    def send_record(self, kind: FrameKind, record: Mapping[str, Any]) -> None:
        """Sends a record as `send()` does."""
        self.send(kind, json.dumps(record).encode())

    def _release(self) -> None:
        # A message's tag depends on the nonces of both sides.
        if self._seal.ready:
            while self._held:
                kind, parts = self._held.popleft()
                self._out.extend(pack_frame(self._seal, kind, *parts))
        self.flush()

    def flush(self) -> None:
        """Sends waiting bytes, as far as the system accepts them now."""
        try:
            self._shake()
            while self._out:
                sent = self.connection.send(self._out[0])
                if sent < self._out[0].nbytes:
                    self._out[0] = self._out[0][sent:]
                else:
                    self._out.popleft()
        except NOT_NOW:
            pass
        except OSError:  # bytes sent before it closed are still to be read: no end yet
            self._deaf = True
            self._out.clear()

    def receive(self, now: float, at_most: int | None = None) -> list[Frame]:
        """Returns the messages that are whole now; sets `heard`, `ended` and `stranger`.

        Args:
            now: The reader's clock.
            at_most: Number of messages after which the rest stays unread.
        """
        frames: list[Frame] = []
        read = 0
        try:
            self._shake()
            while read < TURN and (at_most is None or len(frames) < at_most):
                count = self.connection.recv_into(self._reader.room())
                if not count:
                    self.ended = True
                    break
                self.heard, read = now, read + count
                if frame := self._reader.took(count):
                    frames.append(frame)
        except NOT_NOW:
            pass
        except (AuthenticationError, ssl.SSLError):
            self.ended = self.stranger = True
        except OSError as error:
            self.ended, self.unreachable = True, error.errno in NO_ANSWER
        self._release()
        return frames

    def _shake(self) -> None:
        if self._shaking:
            self.connection.do_handshake()  # type: ignore[attr-defined]
            self._shaking = False

    def shutdown_write(self) -> None:
        """Shuts down the sending direction."""
        self._deaf = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)

    def drain(self) -> None:
        """Discards received bytes; sets `ended` at the end of the stream."""
        try:
            while not self.ended:
                self.ended = not self.connection.recv(2**16)
        except NOT_NOW:
            pass
        except OSError:
            self.ended = True

    def close(self) -> None:
        """Closes the connection."""
        self._out.clear()
        self._held.clear()
        self.connection.close()


def name_peer(connection: socket.socket) -> str:
    """Returns the address at the other end of a connection, as far as it is known."""
    try:
        name = connection.getpeername()
    except OSError:
        return "an address that is gone"
    return str(name[0]) if isinstance(name, tuple) else "this computer"


def finish_links(links: Collection[Link], limit_s: float) -> None:
    """Sends waiting bytes, waits until the other sides have closed too, and closes.

    Closing a connection with unread bytes resets it, and the last message might be lost.

    Args:
        links: The connections.
        limit_s: Seconds after which they are closed anyway.
    """
    deadline = time.monotonic() + limit_s
    left = {link for link in links if not link.ended and not link.silent}
    quiet: set[Link] = set()
    while left and time.monotonic() < deadline:
        for link in left - quiet:
            link.flush()
            if not link.waiting:
                link.shutdown_write()
                quiet.add(link)
        _wait(left, quiet, deadline - time.monotonic())
        for link in left:
            link.drain()
        left = {link for link in left if not link.ended}
    for link in links:
        link.close()


def _wait(left: Collection[Link], quiet: Collection[Link], limit_s: float) -> None:
    with selectors.DefaultSelector() as selector:
        for link in left:
            write = 0 if link in quiet else selectors.EVENT_WRITE
            selector.register(link, selectors.EVENT_READ | write)
        selector.select(max(0.0, limit_s))
