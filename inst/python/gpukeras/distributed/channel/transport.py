"""One connection to another worker: never blocks, counts what it hears."""

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

from gpukeras.distributed.channel.authentication import Seal, StrangerError
from gpukeras.distributed.channel.protocol import LIMIT, Frame, FrameKind, FrameReader, pack_frame

NO_ANSWER = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
LAST_WORD_S = 2.0  # how long the end of a connection waits for what is still on its way
TURN = 2**23  # bytes read at a time from one link, so that the others get their turn


class Link:
    """A non-blocking connection that sends and receives whole messages.

    Args:
        connection: A connected socket, of TLS or not; the link owns it from here on.
        seal: Of this side of the connection.

    Attributes:
        heard: When bytes last came, by the clock of who reads.
        ended: Whether the other side has closed, or sent what no worker sends.
        stranger: Whether it was the latter.
        silent: Whether it has been given up: its end is not waited for.
        unreachable: Whether the system found that no computer answers there any more.
    """

    def __init__(self, connection: socket.socket, seal: Seal) -> None:
        """Takes the connection and greets; accepts only short messages until `trust()`."""
        connection.setblocking(False)
        with suppress(OSError):  # no TCP
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self._peer = name_peer(connection)
        self.heard = 0.0
        self.ended = self.stranger = self.silent = self.unreachable = False
        self._deaf = False  # the other side reads no more
        self._seal, self._reader = seal, FrameReader(seal)
        self._out = deque([memoryview(seal.greeting)])
        self._held: deque[tuple[FrameKind, tuple[bytes | memoryview, ...]]] = deque()
        self._shaking = isinstance(connection, ssl.SSLSocket)  # until TLS has agreed on its keys
        self.flush()

    def fileno(self) -> int:
        """For selectors."""
        return self.connection.fileno()

    def trust(self, timeout_s: float) -> None:
        """Accepts long messages from now on: the other side is a worker.

        Args:
            timeout_s: Seconds after which a worker is lost.  The system itself notices a computer
                that is off or cut off, while its process rests too; later, so that who hangs is
                told so before the connection ends.
        """
        self._reader.limit = LIMIT
        probes = max(1, round(timeout_s / 4))
        options = {
            "TCP_KEEPIDLE": probes,
            "TCP_KEEPINTVL": probes,
            "TCP_KEEPCNT": 3,
            "TCP_USER_TIMEOUT": round(2000 * timeout_s),
        }
        with suppress(OSError):  # no TCP
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
        """Whether the other side's greeting has come; what is to be sent before that waits."""
        return self._seal.ready

    @property
    def unread(self) -> bool:
        """Whether TLS holds bytes that have come, of which no selector knows."""
        return isinstance(self.connection, ssl.SSLSocket) and self.connection.pending() > 0

    @property
    def waiting(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._out)

    def send(self, kind: FrameKind, *parts: bytes | memoryview) -> None:
        """Sends a message, or what the system takes of it now; `flush()` sends the rest."""
        if not self._deaf:
            self._held.append((kind, parts))
            self._release()

    def send_record(self, kind: FrameKind, record: Mapping[str, Any]) -> None:
        """Sends a record as `send()` does."""
        self.send(kind, json.dumps(record).encode())

    def _release(self) -> None:
        # A message's tag has the nonces of both sides in it.
        if self._seal.ready:
            while self._held:
                kind, parts = self._held.popleft()
                self._out.extend(pack_frame(self._seal, kind, *parts))
        self.flush()

    def flush(self) -> None:
        """Sends what waits, as far as the system takes it now."""
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
        except OSError:  # what it said before it closed is still to be read: no end yet
            self._deaf = True
            self._out.clear()

    def receive(self, now: float, at_most: int | None = None) -> list[Frame]:
        """The messages that are whole now; sets `heard`, `ended` and `stranger`.

        Args:
            now: The reader's clock.
            at_most: Leave what comes after so many messages unread.
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
        except (StrangerError, ssl.SSLError):
            self.ended = self.stranger = True
        except OSError as error:
            self.ended, self.unreachable = True, error.errno in NO_ANSWER
        self._release()
        return frames

    def _shake(self) -> None:
        if self._shaking:
            self.connection.do_handshake()  # type: ignore[attr-defined]
            self._shaking = False

    def hush(self) -> None:
        """Tells the other side that nothing more will come."""
        self._deaf = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)

    def drain(self) -> None:
        """Throws away what came; sets `ended` at its end."""
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
    """The address at the other end of a connection, as far as it is known."""
    try:
        name = connection.getpeername()
    except OSError:
        return "an address that is gone"
    return str(name[0]) if isinstance(name, tuple) else "this computer"


def finish_links(links: Collection[Link], limit_s: float) -> None:
    """Sends what waits, waits until the others have closed too, and closes.

    A connection closed with bytes unread resets, and the last word might be lost on the way.

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
                link.hush()
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
