"""Admits workers to the cluster: the chief accepts connections and decides who may join.

A connection may come from anything, even a port scanner. Such a connection is closed after a short
time, and no bytes that it sends can delay the workers.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gpukeras.core.errors import ClusterError
from gpukeras.distributed.channel.authentication import CHIEF, AuthenticationError, Seal
from gpukeras.distributed.channel.errors import (
    ALIKE,
    explain_difference,
    find_differences,
    name_worker,
    worker_error,
)
from gpukeras.distributed.channel.protocol import Frame, FrameKind, is_place
from gpukeras.distributed.channel.transport import LAST_WORD_S, Link, finish_links

STRANGER_S = 10.0  # seconds for which a connection may stay without a greeting
GRACE_S = 10.0  # seconds to wait for the rest when the cluster cannot start any more
WAIT_LIMIT_S = 7 * 86400.0  # longest wait that the chief may announce; no batch system needs more
MOST = 100_000  # workers; a larger number is invalid
STRANGERS = 100  # most connections without a greeting; the oldest are closed


@dataclass(frozen=True)
class Hello:
    """A worker's description of itself when it joins.

    Args:
        index: Its number, from 0.
        alike: Values that must agree on all workers.
    """

    index: int
    alike: Mapping[str, Any]

    def record(self) -> dict[str, Any]:
        """Returns the greeting as a record for sending."""
        return {"index": self.index, "alike": dict(self.alike)}


def parse_hello(frame: Frame) -> Hello:
    """Parses a worker's greeting.

    Raises:
        AuthenticationError: if it comes from no worker of this program.
    """
    if frame.kind is not FrameKind.HELLO:
        raise AuthenticationError("no greeting")
    record = frame.record()
    index, alike = record.get("index"), record.get("alike")
    if not is_place(index, MOST) or not isinstance(alike, dict):
        raise AuthenticationError("a greeting without a name")
    return Hello(index, alike)


def judge_hello(
    hello: Hello, own: Hello, here: Sequence[int], workers: Sequence[str]
) -> ClusterError | None:
    """Returns why a cluster cannot start with a worker that joins, or None if it can.

    Args:
        hello: The worker's greeting.
        own: The chief's own.
        here: Numbers of the workers that have joined already.
        workers: All addresses.
    """
    known = 0 <= hello.index < len(workers)
    address = workers[hello.index] if known else "not one of `workers`"
    if differences := find_differences(own.alike, hello.alike):
        return explain_difference(hello.index, address, differences, ALIKE)
    if not known or hello.index in (own.index, *here):
        reason = "has come twice" if known else "has come"
        name = name_worker(hello.index, address).removesuffix(",")
        hint = f"Every worker needs its own `index`, from 1 to {len(workers)}."
        return worker_error(hello.index, name, reason, hint, address=address, reason=reason)
    return None


class JoinGate:
    """Admits workers until all have joined, or sends all of them why they cannot start.

    Args:
        listener: The listening socket; closed with the gate.
        workers: All addresses.
        own: The chief's own greeting.
        limit_s: Seconds to wait for all.
        timeout_s: Silence after which a worker is lost; also the longest wait for the rest when
            the cluster cannot start, so that they receive the reason too.
        secret: The secret shared by all workers.
        tls: A TLS server context, or None.

    Attributes:
        strangers: Addresses of connections that were closed because they are no workers.
    """

    def __init__(
        self,
        listener: socket.socket,
        workers: Sequence[str],
        own: Hello,
        limit_s: float,
        timeout_s: float,
        *,
        secret: bytes = b"",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Opens the gate; no worker has joined."""
        self._secret, self._tls = secret, tls
        self.strangers: list[str] = []
        self._workers, self._own = workers, own
        self._limit_s, self._grace_s = limit_s, min(GRACE_S, timeout_s)
        self._deadline = time.monotonic() + limit_s
        self._listener = listener
        self._strangers: dict[Link, float] = {}  # when each of them connected
        self._members: dict[int, Link] = {}
        self._refused: dict[Link, int] = {}
        self._verdict: ClusterError | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> JoinGate:
        """Returns the gate itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stops listening; links that were returned stay open."""
        self._selector.close()
        self._listener.close()
        for link in [*self._strangers, *self._refused, *self._members.values()]:
            link.close()

    @property
    def decided(self) -> bool:
        """Whether all workers have joined, or the gate waits for no more."""
        came = {self._own.index, *self._members, *self._refused.values()}
        return came >= {*range(len(self._workers))} or time.monotonic() > self._deadline

    def step(self, limit_s: float) -> None:
        """Waits a moment for connections and messages, and handles them."""
        for key, _ in self._selector.select(limit_s):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj in self._strangers:
                self._hear_stranger(key.fileobj)
            else:
                self._hear_member(cast("Link", key.fileobj))
        self._send_away(time.monotonic() - STRANGER_S)

    def open_up(self) -> dict[int, Link]:
        """Welcomes all workers and returns the links to them.

        Raises:
            ClusterError: if one differs or has not joined; all workers that joined receive the
                error.
        """
        verdict = self._verdict or self._explain_missing()
        if verdict is not None:
            self._refuse(verdict)
            raise verdict
        for link in self._members.values():
            link.send_record(FrameKind.WELCOME, {})
        members, self._members = self._members, {}
        return members

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            if self._tls is not None:
                connection = self._tls.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
        except OSError:  # closed again, or this process may open no more files
            return
        link = Link(connection, Seal(self._secret, CHIEF))
        self._strangers[link] = time.monotonic()
        self._selector.register(link, selectors.EVENT_READ)
        if len(self._strangers) > STRANGERS:
            self._forget(next(iter(self._strangers)))

    def _send_away(self, since: float) -> None:
        for link in [link for link, came in self._strangers.items() if came < since]:
            self._forget(link)

    def _forget(self, link: Link) -> None:
        if len(self.strangers) < STRANGERS:
            self.strangers.append(link.peer)
        self._strangers.pop(link, None)
        self._selector.unregister(link)
        link.close()

    def _hear_stranger(self, link: Link) -> None:
        frames = link.receive(time.monotonic(), at_most=1)
        try:
            for frame in frames:
                self._meet(link, parse_hello(frame))
        except (AuthenticationError, RecursionError):  # a record in a record in a record ...
            link.ended = True
        if link.ended and link in self._strangers:
            self._forget(link)

    def _meet(self, link: Link, hello: Hello) -> None:
        verdict = judge_hello(hello, self._own, list(self._members), self._workers)
        del self._strangers[link]
        if verdict is None:
            self._members[hello.index] = link
        else:
            self._refused[link] = hello.index
            if self._verdict is None:
                self._verdict = verdict
                self._deadline = min(self._deadline, time.monotonic() + self._grace_s)
        wait_s = max(0.0, self._deadline - time.monotonic()) + self._grace_s
        link.send_record(FrameKind.WAIT, {"limit_s": wait_s})

    def _hear_member(self, link: Link) -> None:
        # A worker that has joined sends nothing until it is welcomed: this is its end.
        link.receive(time.monotonic(), at_most=1)
        if link.ended:
            # It may be started again, so its place becomes free.
            self._members = {i: member for i, member in self._members.items() if member != link}
            self._selector.unregister(link)
            link.close()

    def _explain_missing(self) -> ClusterError | None:
        here = {self._own.index, *self._members}
        told = explain_strangers(self.strangers)
        missing = [worker for worker in range(len(self._workers)) if worker not in here]
        if not missing:
            return None
        worker, address = missing[0], self._workers[missing[0]]
        reason = f"has not come within {self._limit_s:g} s"
        more = f" ({len(missing) - 1} more have not)" if len(missing) > 1 else ""
        hint = "Start all workers; a firewall must let them through to the chief's address."
        hint = f"{hint} {told}" if told else hint
        name = name_worker(worker, address)
        return worker_error(worker, name, f"{reason}{more}", hint, address=address, reason=reason)

    def _refuse(self, verdict: ClusterError) -> None:
        links = [*self._members.values(), *self._refused]
        record = {"message": verdict.message, "hint": verdict.hint, "details": verdict.details}
        for link in links:
            link.send_record(FrameKind.REFUSE, record)
        finish_links(links, LAST_WORD_S)


def wait_limit(frame: Frame) -> float:
    """Returns the seconds until the chief decides, from its answer to a greeting.

    Raises:
        AuthenticationError: if the answer holds no valid number.
    """
    seconds = frame.record().get("limit_s")
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if seconds is None or not number or not 0 <= seconds <= WAIT_LIMIT_S:  # false for NaN
        raise AuthenticationError("a wait without an end")
    return float(seconds)


def explain_strangers(peers: Sequence[str]) -> str:
    """Returns a sentence about connections that were closed as strangers, or ""."""
    if not peers:
        return ""
    count = len(peers)
    many = f"{count}{' or more' if count == STRANGERS else ''} connections"
    what = "A connection was" if count == 1 else f"{many} were"
    return f"{what} sent away that did not prove to be a worker's, from {peers[0]}."
