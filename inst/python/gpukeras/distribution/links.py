"""One connection to another worker: never blocks, counts what it hears."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections import deque
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from .frames import LIMIT, Frame, FrameKind, FrameReader, StrangerError, pack_frame, pack_record

NO_ANSWER = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
LAST_WORD_S = 2.0  # how long the end of a connection waits for what is still on its way
TURN = 2**23  # bytes read at a time from one link, so that the others get their turn


class Link:
    """A non-blocking connection that sends and receives whole messages.

    Args:
        connection: A connected socket; the link owns it from here on.

    Attributes:
        heard: When bytes last came, by the clock of who reads.
        ended: Whether the other side has closed, or sent what no worker sends.
        stranger: Whether it was the latter.
        silent: Whether it has been given up: its end is not waited for.
        unreachable: Whether the system found that no computer answers there any more.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Takes the connection; accepts only short messages until `trust()`."""
        connection.setblocking(False)
        with suppress(OSError):  # no TCP
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.heard = 0.0
        self.ended = self.stranger = self.silent = self.unreachable = False
        self._deaf = False  # the other side reads no more
        self._reader = FrameReader()
        self._out: deque[memoryview] = deque()

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
    def waiting(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._out)

    def send(self, kind: FrameKind, *parts: bytes | memoryview) -> None:
        """Sends a message, or what the system takes of it now; `flush()` sends the rest."""
        self._push(pack_frame(kind, *parts))

    def send_record(self, kind: FrameKind, record: Mapping[str, Any]) -> None:
        """Sends a record as `send()` does."""
        self._push(pack_record(kind, record))

    def _push(self, pieces: list[memoryview]) -> None:
        if not self._deaf:
            self._out.extend(pieces)
            self.flush()

    def flush(self) -> None:
        """Sends what waits, as far as the system takes it now."""
        try:
            while self._out:
                sent = self.connection.send(self._out[0])
                if sent < self._out[0].nbytes:
                    self._out[0] = self._out[0][sent:]
                else:
                    self._out.popleft()
        except BlockingIOError:
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
            while read < TURN and (at_most is None or len(frames) < at_most):
                count = self.connection.recv_into(self._reader.room())
                if not count:
                    self.ended = True
                    break
                self.heard, read = now, read + count
                if frame := self._reader.took(count):
                    frames.append(frame)
        except BlockingIOError:
            pass
        except OSError as error:
            self.ended, self.unreachable = True, error.errno in NO_ANSWER
        except StrangerError:
            self.ended = self.stranger = True
        return frames

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
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True

    def close(self) -> None:
        """Closes the connection."""
        self._out.clear()
        self.connection.close()


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
