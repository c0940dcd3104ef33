"""Joins the workers: they connect to the chief, which listens until all have joined.

A connection may come from anything, even a port scanner. Such a connection is closed after a short
time, and no bytes that it sends can delay the workers.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from gpukeras.core.errors import ClusterError
from gpukeras.distributed.addresses import Address, parse_address
from gpukeras.distributed.channel.connection import LAST_WORD_S, Connection, finish_connections
from gpukeras.distributed.channel.errors import explain_difference, worker_error
from gpukeras.distributed.channel.protocol import (
    BEAT,
    CHIEF,
    HELLO,
    REFUSE,
    WELCOME,
    WORKER,
    AuthenticationError,
    Message,
    Seal,
    is_count,
)
from gpukeras.distributed.cluster_config import ClusterSpec

STRANGER_S = 10.0  # seconds for which a connection may stay without a hello
# What a stranger causes, the last by a record in a record in a record ...
STRANGE = (OSError, AuthenticationError, RecursionError)
STRANGERS = 100  # most connections without a hello; the oldest are closed
GRACE_S = 10.0  # seconds to wait for the rest when the cluster cannot start any more
MOST = 100_000  # workers; a larger number is invalid
DETAILS = ("worker", "address", "reason", "differences")  # fields of a refusal
BIND_S = 10.0  # seconds: the previous chief may still hold the port
ATTEMPT_S = 5.0  # seconds for one attempt to connect
PAUSE_S = 0.1  # seconds between two attempts
BEAT_S = 1.0  # seconds between two heartbeats
LOOK_S = 0.02  # seconds between two checks whether all have joined
NO_CHIEF = "what answers there is no chief"
OTHER_CREDENTIALS = (
    "it ended the connection; its secret or its TLS may be others than this worker's"
)


# The chief ----------------------------------------------------------------------------------------


class JoinGate:
    """Admits workers until all have joined, or sends all of them why they cannot start.

    Args:
        spec: The cluster; the chief listens on its `control` address only, and only until all
            have joined.
        description: Values that must agree on all workers.
        limit_s: Seconds to wait for all.
    """

    def __init__(self, spec: ClusterSpec, description: Mapping[str, Any], limit_s: float) -> None:
        """Opens the gate; no worker has joined."""
        self._spec = spec
        self._own = description
        self._limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self._tls = spec.credentials.open_tls(is_chief=True)
        self._guests: dict[asyncio.Task[None], None] = {}  # they have not introduced themselves
        self._strangers: list[str] = []  # addresses of those that have proved to be no workers
        self._came: dict[Connection, int] = {}  # workers, which may have to be refused
        self._verdict: ClusterError | None = None

    async def admit_all(self) -> dict[int, Connection]:
        """Returns the connections to workers 1, 2, ... once all have joined.

        Raises:
            ClusterError: if one differs or has not joined; all that joined receive the error.
        """
        spec = self._spec
        limit_s = min(BIND_S, self._limit_s)
        with await open_listener(spec.control, spec.workers, limit_s) as listener:
            tasks = [asyncio.ensure_future(self._accept(listener))]
            tasks.append(asyncio.ensure_future(self._beat()))
            try:
                while self._find_missing() and time.monotonic() < self._deadline:
                    await asyncio.sleep(LOOK_S)
                if verdict := self._verdict or self._explain_missing():
                    await self._refuse(verdict)
                    raise verdict
            except BaseException:  # an interrupt too
                for connection in self._came:
                    connection.abort()
                raise
            finally:
                for task in (*tasks, *self._guests):
                    task.cancel()
                await asyncio.wait([*tasks, *self._guests])
        for connection in self._came:
            connection.send(WELCOME)
        return {index: connection for connection, index in self._came.items()}

    def explain_strangers(self) -> str:
        """Returns a sentence about connections that were closed as strangers, or ""."""
        if not self._strangers:
            return ""
        count = len(self._strangers)
        many = f"{count}{' or more' if count == STRANGERS else ''} connections"
        what = "A connection was" if count == 1 else f"{many} were"
        return f"{what} sent away that did not prove to be a worker's, from {self._strangers[0]}."

    def _find_missing(self) -> list[int]:
        # A worker that has ended may be started again, so its place becomes free.
        self._came = {one: index for one, index in self._came.items() if not one.closed.is_set()}
        return sorted({*range(1, len(self._spec.workers))} - {*self._came.values()})

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(beat_interval(self._spec.timeout_s))
            for connection in self._came:
                connection.send(BEAT)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, address = await asyncio.get_running_loop().sock_accept(listener)
            except OSError:  # closed again, or this process may open no more files
                await asyncio.sleep(PAUSE_S)
                continue
            guest = asyncio.ensure_future(self._admit(accepted, str(address[0])))
            self._guests[guest] = None
            guest.add_done_callback(self._guests.pop)
            if len(self._guests) > STRANGERS:
                next(iter(self._guests)).cancel()

    async def _admit(self, accepted: socket.socket, peer: str) -> None:
        connection = Connection(Seal(self._spec.credentials.secret, CHIEF))
        opening = asyncio.get_running_loop().connect_accepted_socket(
            lambda: connection, accepted, ssl=self._tls
        )
        try:
            hello = _receive_hello(connection, opening)
            index, description = await asyncio.wait_for(hello, STRANGER_S)
            error = self._judge(index, description)
        except (*STRANGE, asyncio.TimeoutError, asyncio.CancelledError):
            if len(self._strangers) < STRANGERS:
                self._strangers.append(peer)
            connection.abort()
            return
        self._came[connection] = index
        if error is not None:
            # The rest are waited for, so that they receive the reason too.
            self._verdict = self._verdict or error
            grace_s = min(GRACE_S, self._spec.timeout_s)
            self._deadline = min(self._deadline, time.monotonic() + grace_s)

    def _judge(self, index: int, description: Mapping[str, Any]) -> ClusterError | None:
        """Returns why the cluster cannot start with a worker, or None if it can."""
        workers = self._spec.workers
        known = index < len(workers)
        address = workers[index] if known else "not one of `workers`"
        if error := explain_difference(index, address, self._own, description):
            return error
        if index in self._find_missing():
            return None
        hint = f"Every worker needs its own `index`, from 1 to {len(workers)}."
        return worker_error(index, address, "has come twice" if known else "has come", hint)

    def _explain_missing(self) -> ClusterError | None:
        missing = self._find_missing()
        if not missing:
            return None
        reason = f"has not come within {self._limit_s:g} s"
        more = f" ({len(missing) - 1} more have not)" if len(missing) > 1 else ""
        hint = "Start all workers; a firewall must let them through to the chief's address."
        hint = f"{hint} {self.explain_strangers()}".rstrip()
        address = self._spec.workers[missing[0]]
        return worker_error(missing[0], address, f"{reason}{more}", hint, reason=reason)

    async def _refuse(self, verdict: ClusterError) -> None:
        for connection in self._came:
            connection.send(
                REFUSE, message=verdict.message, hint=verdict.hint, details=verdict.details
            )
        await finish_connections(self._came, LAST_WORD_S)


async def _receive_hello(
    connection: Connection, opening: Awaitable[Any]
) -> tuple[int, Mapping[str, Any]]:
    """Returns a worker's index and description from its first message.

    Raises:
        AuthenticationError: if it is none, or not a worker's.
    """
    await opening
    message = await connection.receive()
    if message is None or message.kind != HELLO:
        raise AuthenticationError("no hello")
    index, description = message.values.get("index"), message.values.get("description")
    if not is_count(index, MOST) or not isinstance(description, dict):
        raise AuthenticationError("a hello without a name")
    return index, description


# The others ---------------------------------------------------------------------------------------


async def reach_chief(
    spec: ClusterSpec, description: Mapping[str, Any], limit_s: float
) -> Connection:
    """Connects to the chief, as soon as it listens, and waits until all others have joined.

    Args:
        spec: The cluster.
        description: Values that must agree on all workers.
        limit_s: Seconds to wait for the chief; once it answers, it decides how long it waits for
            the others, and its heartbeats show that it still does.

    Raises:
        ClusterError: if the chief cannot be reached, or refuses.
    """
    deadline = time.monotonic() + limit_s
    problem = "nothing answers there"
    tls = spec.credentials.open_tls(is_chief=False)
    while time.monotonic() < deadline:
        connection = Connection(Seal(spec.credentials.secret, WORKER))
        try:
            await asyncio.wait_for(_connect(connection, spec.control, tls), ATTEMPT_S)
            problem = await _introduce(connection, spec, description)
        except asyncio.TimeoutError:  # a class of its own before Python 3.11
            problem = os.strerror(errno.ETIMEDOUT)
        except OSError as error:
            problem = explain_error(error)
        except AuthenticationError:
            problem = NO_CHIEF
        except BaseException:  # the chief's refusal, or an interrupt
            connection.abort()
            raise
        if not problem:
            return connection
        connection.abort()
        await asyncio.sleep(PAUSE_S)
    text = f"has not been found at {spec.control} within {limit_s:g} s: {problem}"
    hint = "Start worker 1 too; a firewall must let workers through to that address."
    raise worker_error(0, spec.workers[0], text, hint, reason=problem)


async def _connect(connection: Connection, address: str, tls: ssl.SSLContext | None) -> None:
    where = parse_address(address, "control")
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: connection, where.host, where.port, ssl=tls)


async def _introduce(
    connection: Connection, spec: ClusterSpec, description: Mapping[str, Any]
) -> str:
    # Returns why the chief has not decided about this worker; "" when it is welcome.
    try:
        await asyncio.wait_for(connection.greeted.wait(), STRANGER_S)
    except asyncio.TimeoutError:
        return "what answers there says nothing"
    connection.send(HELLO, index=spec.index, description=description)
    while True:
        try:
            message = await asyncio.wait_for(connection.receive(), spec.timeout_s)
        except asyncio.TimeoutError:
            return "it has not decided"
        if message is None:
            return NO_CHIEF if connection.stranger else OTHER_CREDENTIALS
        if message.kind == WELCOME:
            return ""
        if message.kind != BEAT:
            raise _explain_refusal(message)


def _explain_refusal(message: Message) -> ClusterError:
    reason, details = message.values.get("message"), message.values.get("details")
    if message.kind != REFUSE or not isinstance(reason, str) or not isinstance(details, dict):
        raise AuthenticationError("a refusal without a reason")
    details = {name: value for name, value in details.items() if name in DETAILS}
    return ClusterError(reason, hint=str(message.values.get("hint", "")), **details)


# Both ---------------------------------------------------------------------------------------------


def beat_interval(timeout_s: float) -> float:
    """Returns the seconds between two heartbeats, given those after which a worker is lost."""
    return min(BEAT_S, timeout_s / 4)


async def open_listener(address: str, workers: Sequence[str], limit_s: float) -> socket.socket:
    """Listens on one address only.

    Args:
        address: "host:port".
        workers: All addresses.
        limit_s: Seconds to try while another program holds the port.

    Raises:
        ClusterError: if this computer has no such address, others know it by another, or the port
            stays taken.
    """
    deadline = time.monotonic() + limit_s
    where = parse_address(address, "control")
    while True:
        try:
            found = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0]
            check_shared(where, workers, str(found[4][0]))
            listener = socket.create_server(found[4], family=found[0])
            listener.setblocking(False)
            return listener
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                reason = explain_error(error)
                raise ClusterError(
                    f"The chief cannot listen on {address}: {reason}.",
                    hint="The first of `workers` must be an address of the computer on which "
                    "worker 1 runs, and the port must be free there.",
                    address=address,
                    reason=reason,
                ) from error
        await asyncio.sleep(PAUSE_S)


def check_shared(where: Address, workers: Sequence[str], ip: str) -> None:
    """Refuses a name that resolves to another address on this computer than on the others.

    Args:
        where: The chief's listening address.
        workers: All addresses.
        ip: Its IP address on this computer.

    Raises:
        ClusterError: if the name resolves to a loopback address, and there are other computers.
    """
    others = {parse_address(worker).host for worker in workers} - {where.host}
    if others and not where.is_loopback and Address(ip, where.port).is_loopback:
        raise ClusterError(
            f"The chief's name {where.host} stands for {ip} on its own computer, where no other "
            "computer can reach it.",
            hint="Give its address in place of its name, or mend its line in /etc/hosts.",
            address=str(where),
            reason="its name is a loopback address",
        )


def explain_error(error: OSError) -> str:
    """Returns the system's reason for an error of a connection."""
    if isinstance(error, socket.gaierror | ssl.SSLError) or error.errno is None:
        return getattr(error, "reason", None) or error.strerror or str(error)
    return os.strerror(error.errno)  # without the address that asyncio adds
