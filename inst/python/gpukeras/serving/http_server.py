"""Runs an application by uvicorn, an optional package: connections, time limits and the end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 10.0  # for a request's first lines to arrive on an open connection
KEEP_ALIVE_S = 5
GRACE_S = 20  # for requests in flight when the server is stopped
CONNECTIONS = 512  # at a time; half of the usual limit of 1,024 open files


class TimedProtocol(H11Protocol):
    """Closes connections on which no request arrives whole in time.

    uvicorn 0.54 limits how long a connection may be idle after a request, but not how long a
    client may take over a request's first lines (the attack "slow loris").
    """

    head_s = HEAD_S

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Starts the clock."""
        super().connection_made(transport)
        self._seen: Any = None
        self._clock = self.loop.call_later(self.head_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the clock."""
        self._clock.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Closes the connection if it brought no new request since the last look, and has none."""
        busy = self.cycle is not None and not self.cycle.response_complete
        if not busy and self.cycle is self._seen:
            self.transport.close()
            return
        self._seen = self.cycle
        self._clock = self.loop.call_later(self.head_s, self._look)


def make_server(app: Any, head_s: float = HEAD_S) -> uvicorn.Server:
    """Makes a server of an application; `run(sockets)` runs it until a signal or `should_exit`.

    Args:
        app: The ASGI application.
        head_s: Seconds for a request's first lines.
    """
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    protocol = type("Protocol", (TimedProtocol,), {"head_s": head_s})
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_config=None,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    return uvicorn.Server(config)
