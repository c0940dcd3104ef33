"""One connection to another worker, in the channel's event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, cast

from gpukeras.distributed.channel.protocol import (
    LIMIT,
    AuthenticationError,
    Bytes,
    Message,
    MessageReader,
    Seal,
    pack_message,
)

NO_ANSWER = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
LAST_WORD_S = 2.0  # how long closing a connection waits for bytes on their way
CHUNK = 2**20  # bytes given to the transport at a time, which copies what the system refuses


class Connection(asyncio.Protocol):
    """A connection that sends and receives whole messages, with TLS or without.

    Args:
        seal: The seal of this side of the connection.

    Attributes:
        greeted: Set when the other side's greeting has arrived, or the connection has ended.
        closed: Set when the connection has ended.
        silent_s: Seconds without received bytes, as the owner counts them.
        silent: Whether the other side counts as lost: closing does not wait for it.
        stranger: Whether the other side has sent bytes that no worker sends.
        unreachable: Whether the system reported that the other computer does not answer.
    """

    def __init__(self, seal: Seal) -> None:
        """Refuses long messages until `trust()`."""
        self.greeted = asyncio.Event()
        self.closed = asyncio.Event()
        self.silent_s = 0.0
        self.silent = False
        self.stranger = False
        self.unreachable = False
        self._seal = seal
        self._inbox: asyncio.Queue[Message | None] = asyncio.Queue()
        self._reader = MessageReader(seal, self._inbox.put_nowait)
        self._out: deque[memoryview] = deque()
        self._paused = False
        self._finishing = False
        self._transport: asyncio.Transport | None = None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sends the greeting."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._seal.greeting)

    def data_received(self, data: bytes) -> None:
        """Takes received bytes."""
        if self.stranger:
            return
        self.silent_s = 0.0
        try:
            self._reader.feed(data)
        except AuthenticationError:
            self.stranger = True
            self.abort()
        if self._seal.ready:
            self.greeted.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Notes why the connection has ended."""
        self.stranger |= isinstance(error, ssl.SSLError)
        self.unreachable = isinstance(error, OSError) and error.errno in NO_ANSWER
        self._out.clear()
        self._inbox.put_nowait(None)
        self.greeted.set()
        self.closed.set()

    def pause_writing(self) -> None:
        """Stops giving bytes to the transport."""
        self._paused = True

    def resume_writing(self) -> None:
        """Gives bytes to the transport again."""
        self._paused = False
        self._write()

    # What its owner calls.

    @property
    def waiting(self) -> bool:
        """Whether bytes wait to be sent."""
        return bool(self._out)

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
        assert self._transport is not None
        connection = self._transport.get_extra_info("socket")
        with suppress(OSError):  # it has ended
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in options.items():
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, kind: str, parts: Sequence[Bytes] = (), **values: Any) -> None:
        """Sends a message, as far as the system accepts it now; the event loop sends the rest."""
        if self._finishing or self.closed.is_set():
            return
        for piece in pack_message(self._seal, kind, values, parts):
            view = memoryview(piece)
            self._out.extend(view[at : at + CHUNK] for at in range(0, len(view), CHUNK))
        self._write_soon()

    async def receive(self) -> Message | None:
        """Returns the next message; None at the end of the connection."""
        return await self._inbox.get()

    def finish(self) -> None:
        """Sends waiting bytes, then the end of the stream."""
        self._finishing = True
        self._write_soon()

    def abort(self) -> None:
        """Closes the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def explain_end(self, timeout_s: float) -> str:
        """Returns why the connection has ended, to follow a worker's name."""
        if self.stranger:
            return "sent what is no message of this program"
        return f"has not answered for {timeout_s:g} s" if self.unreachable else "has ended"

    def _write_soon(self) -> None:
        # The loop reads before it looks at the clock. A write to a connection that the other side
        # has closed ends it, and what that side said before would be lost.
        asyncio.get_running_loop().call_later(0, self._write)

    def _write(self) -> None:
        if self._transport is None or self.closed.is_set():
            return
        while self._out and not self._paused:
            self._transport.write(self._out.popleft())
        if self._finishing and not self._out:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:  # TLS ends both directions, after what was sent
                self._transport.close()


async def finish_connections(connections: Collection[Connection], limit_s: float) -> None:
    """Sends waiting bytes, waits until the other sides have closed too, and closes.

    Closing a connection with unread bytes resets it, and the last message might be lost.

    Args:
        connections: The connections.
        limit_s: Seconds after which they are closed anyway.
    """
    for connection in connections:
        connection.finish()
    heard = [connection for connection in connections if not connection.silent]
    if ends := [asyncio.ensure_future(connection.closed.wait()) for connection in heard]:
        await asyncio.wait(ends, timeout=limit_s)
    for connection in connections:
        connection.abort()
