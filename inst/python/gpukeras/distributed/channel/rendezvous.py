"""Joins the workers: they connect to the chief, which listens until all have joined.

A connection may come from anything, even a port scanner. Such a connection is closed after a short
time, and no bytes that it sends can delay the workers.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpukeras.core.errors import ClusterError
from gpukeras.core.options import is_number
from gpukeras.distributed.addresses import parse_address
from gpukeras.distributed.channel.authentication import (
    CHIEF,
    PROTOCOL,
    WORKER,
    AuthenticationError,
    Seal,
)
from gpukeras.distributed.channel.connection import (
    LAST_WORD_S,
    Connection,
    finish_connections,
)
from gpukeras.distributed.channel.errors import (
    explain_difference,
    find_differences,
    name_worker,
    worker_error,
)
from gpukeras.distributed.channel.protocol import (
    HELLO,
    REFUSE,
    WAIT,
    WELCOME,
    Message,
    is_count,
    require,
)
from gpukeras.distributed.cluster_config import ClusterSpec

STRANGER_S = 10.0  # seconds for which a connection may stay without a hello
STRANGERS = 100  # most connections without a hello; the oldest are closed
GRACE_S = 10.0  # seconds to wait for the rest when the cluster cannot start any more
WAIT_LIMIT_S = 7 * 86400.0  # longest wait that the chief may announce; no batch system needs more
MOST = 100_000  # workers; a larger number is invalid
DETAILS = ("worker", "address", "reason", "differences")  # fields of a refusal
BIND_S = 10.0  # seconds: the previous chief may still hold the port
ATTEMPT_S = 5.0  # seconds for one attempt to connect
PAUSE_S = 0.1  # seconds between two attempts
LOOK_S = 0.02  # seconds between two checks whether all have joined
OTHER_CREDENTIALS = (
    "it ended the connection; its secret or its TLS may be others than this worker's"
)


# The chief ----------------------------------------------------------------------------------------


async def gather_workers(
    spec: ClusterSpec, description: Mapping[str, Any], limit_s: float
) -> tuple[dict[int, Connection], str]:
    """Waits, as the chief, until all other workers have joined.

    Args:
        spec: The cluster; the chief listens on its `control` address only, and only until all
            have joined.
        description: Values that must agree on all workers.
        limit_s: Seconds to wait.

    Returns:
        The connections to workers 1, 2, ..., and a sentence about strangers that connected too.

    Raises:
        ClusterError: if one differs or has not joined; those that joined receive the same error.
    """
    if len(spec.workers) == 1:
        return {}, ""
    check_shared(spec.control, spec.workers, read_ip(spec.control))
    with await open_listener(spec.control, min(BIND_S, limit_s)) as listener:
        gate = JoinGate(spec, _describe(spec, description), limit_s)
        return await gate.open(listener), explain_strangers(gate.strangers)


class JoinGate:
    """Admits workers until all have joined, or sends all of them why they cannot start.

    Args:
        spec: The cluster.
        description: The chief's own.
        limit_s: Seconds to wait for all.

    Attributes:
        strangers: Addresses of connections that were closed because they are no workers.
    """

    def __init__(self, spec: ClusterSpec, description: Mapping[str, Any], limit_s: float) -> None:
        """Opens the gate; no worker has joined."""
        self.strangers: list[str] = []
        self._workers = spec.workers
        self._own = description
        self._limit_s = limit_s
        # The rest are waited for after a refusal, so that they receive the reason too.
        self._grace_s = min(GRACE_S, spec.timeout_s)
        self._deadline = time.monotonic() + limit_s
        self._secret = spec.credentials.secret
        self._tls = spec.credentials.open_server()
        self._members: dict[int, Connection] = {}
        self._refused: dict[Connection, int] = {}
        self._verdict: ClusterError | None = None

    async def open(self, listener: socket.socket) -> dict[int, Connection]:
        """Admits workers; returns the connections to them.

        Raises:
            ClusterError: if one differs or has not joined; all that joined receive the error.
        """
        accepting = asyncio.ensure_future(self._accept(listener))
        try:
            while not self._decided():
                await asyncio.sleep(LOOK_S)
            accepting.cancel()
            await asyncio.wait([accepting])
            if verdict := self._verdict or self._explain_missing():
                await self._refuse(verdict)
                raise verdict
        except BaseException:  # an interrupt too
            for connection in (*self._members.values(), *self._refused):
                connection.abort()
            raise
        for connection in self._members.values():
            connection.send(WELCOME)
        return self._members

    def _decided(self) -> bool:
        came = {0, *self._members, *self._refused.values()}
        return came >= {*range(len(self._workers))} or time.monotonic() > self._deadline

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        guests: dict[asyncio.Task[None], None] = {}
        strangers: dict[asyncio.Task[None], None] = {}
        try:
            while True:
                try:
                    accepted, address = await loop.sock_accept(listener)
                except OSError:  # closed again, or this process may open no more files
                    await asyncio.sleep(PAUSE_S)
                    continue
                guest = asyncio.ensure_future(self._admit(accepted, str(address[0]), strangers))
                guests[guest] = strangers[guest] = None
                guest.add_done_callback(guests.pop)
                if len(strangers) > STRANGERS:
                    next(iter(strangers)).cancel()
        finally:
            for guest in list(guests):
                guest.cancel()
            if guests:
                await asyncio.wait(list(guests))

    async def _admit(
        self,
        accepted: socket.socket,
        peer: str,
        strangers: dict[asyncio.Task[None], None],
    ) -> None:
        connection = Connection(Seal(self._secret, CHIEF))
        try:
            index, description = await asyncio.wait_for(
                self._hear_hello(connection, accepted), STRANGER_S
            )
        except (TimeoutError, OSError, AuthenticationError, asyncio.CancelledError):
            if len(self.strangers) < STRANGERS:
                self.strangers.append(peer)
            connection.abort()
            return
        finally:
            strangers.pop(asyncio.current_task(), None)  # type: ignore[arg-type]
        self._judge(connection, index, description)
        while await connection.receive() is not None:  # it sends nothing until it is welcomed
            pass
        # It may be started again, so its place becomes free.
        self._members = {i: one for i, one in self._members.items() if one is not connection}

    async def _hear_hello(
        self, connection: Connection, accepted: socket.socket
    ) -> tuple[int, Mapping[str, Any]]:
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: connection, accepted, ssl=self._tls)
        message = await connection.receive()
        require(message is not None and message.kind == HELLO)
        assert message is not None
        index, description = (
            message.values.get("index"),
            message.values.get("description"),
        )
        if not is_count(index, MOST) or not isinstance(description, dict):
            raise AuthenticationError("a hello without a name")
        return index, description

    def _judge(self, connection: Connection, index: int, description: Mapping[str, Any]) -> None:
        verdict = judge_hello(
            index,
            find_differences(self._own, description),
            [0, *self._members],
            self._workers,
        )
        if verdict is None:
            self._members[index] = connection
        else:
            self._refused[connection] = index
            if self._verdict is None:
                self._verdict = verdict
                self._deadline = min(self._deadline, time.monotonic() + self._grace_s)
        left_s = max(0.0, self._deadline - time.monotonic())
        connection.send(WAIT, limit_s=left_s + self._grace_s)

    def _explain_missing(self) -> ClusterError | None:
        missing = [i for i in range(1, len(self._workers)) if i not in self._members]
        if not missing:
            return None
        worker, address = missing[0], self._workers[missing[0]]
        reason = f"has not come within {self._limit_s:g} s"
        more = f" ({len(missing) - 1} more have not)" if len(missing) > 1 else ""
        hint = "Start all workers; a firewall must let them through to the chief's address."
        hint = f"{hint} {explain_strangers(self.strangers)}".rstrip()
        name = name_worker(worker, address)
        return worker_error(worker, name, f"{reason}{more}", hint, address=address, reason=reason)

    async def _refuse(self, verdict: ClusterError) -> None:
        connections = [*self._members.values(), *self._refused]
        for connection in connections:
            connection.send(
                REFUSE,
                message=verdict.message,
                hint=verdict.hint,
                details=verdict.details,
            )
        await finish_connections(connections, LAST_WORD_S)


def judge_hello(
    index: int,
    differences: Mapping[str, tuple[str | None, str | None]],
    here: Sequence[int],
    workers: Sequence[str],
) -> ClusterError | None:
    """Returns why a cluster cannot start with a worker that joins, or None if it can.

    Args:
        index: The worker's, from 0.
        differences: How it differs from the chief, see `find_differences()`.
        here: Indices of the workers that have joined already, the chief's too.
        workers: All addresses.
    """
    known = index < len(workers)
    address = workers[index] if known else "not one of `workers`"
    if differences:
        return explain_difference(index, address, differences)
    if known and index not in here:
        return None
    reason = "has come twice" if known else "has come"
    name = name_worker(index, address).removesuffix(",")
    hint = f"Every worker needs its own `index`, from 1 to {len(workers)}."
    return worker_error(index, name, reason, hint, address=address, reason=reason)


def explain_strangers(peers: Sequence[str]) -> str:
    """Returns a sentence about connections that were closed as strangers, or ""."""
    if not peers:
        return ""
    count = len(peers)
    many = f"{count}{' or more' if count == STRANGERS else ''} connections"
    what = "A connection was" if count == 1 else f"{many} were"
    return f"{what} sent away that did not prove to be a worker's, from {peers[0]}."


# The others ---------------------------------------------------------------------------------------


async def reach_chief(
    spec: ClusterSpec, description: Mapping[str, Any], limit_s: float
) -> Connection:
    """Connects to the chief, as soon as it listens, and waits until all others have joined.

    Args:
        spec: The cluster.
        description: Values that must agree on all workers.
        limit_s: Seconds to wait for the chief; its answer then holds how long it waits for others.

    Raises:
        ClusterError: if the chief cannot be reached, or refuses.
    """
    deadline = time.monotonic() + limit_s
    problem = "nothing answers there"
    tls = spec.credentials.open_client()
    described = _describe(spec, description)
    while time.monotonic() < deadline:
        connection = Connection(Seal(spec.credentials.secret, WORKER))
        try:
            await asyncio.wait_for(_connect(connection, spec.control, tls), ATTEMPT_S)
            problem = await _introduce(connection, spec.index, described, deadline)
        except TimeoutError:
            problem = os.strerror(errno.ETIMEDOUT)
        except OSError as error:
            problem = explain_error(error)
        except AuthenticationError:
            problem = "what answers there is no chief"
        except BaseException:  # the chief's refusal, or an interrupt
            connection.abort()
            raise
        if not problem:
            return connection
        connection.abort()
        await asyncio.sleep(PAUSE_S)
    name = name_worker(0, spec.workers[0])
    text = f"has not been found at {spec.control} within {limit_s:g} s: {problem}"
    hint = "Start worker 1 too; a firewall must let workers through to that address."
    raise worker_error(0, name, text, hint, address=spec.control, reason=problem)


async def _connect(connection: Connection, address: str, tls: ssl.SSLContext | None) -> None:
    where = parse_address(address, "control")
    name = where.host if tls else None
    loop = asyncio.get_running_loop()
    await loop.create_connection(
        lambda: connection, where.host, where.port, ssl=tls, server_hostname=name
    )


async def _introduce(
    connection: Connection, index: int, description: Mapping[str, Any], deadline: float
) -> str:
    # Returns why the chief has not decided about this worker; "" when it is welcome.
    try:
        await asyncio.wait_for(connection.greeted.wait(), STRANGER_S)
    except TimeoutError:
        return "what answers there says nothing"
    connection.send(HELLO, index=index, description=description)
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            message = await asyncio.wait_for(connection.receive(), left_s)
        except TimeoutError:
            break
        if message is None:
            require(not connection.stranger)
            return OTHER_CREDENTIALS
        if message.kind == WELCOME:
            return ""
        if message.kind != WAIT:
            raise _explain_refusal(message)
        deadline = max(deadline, time.monotonic() + wait_limit(message))
    return "it has not decided"


def wait_limit(message: Message) -> float:
    """Returns the seconds until the chief decides, from its answer to a hello.

    Raises:
        AuthenticationError: if the answer holds no valid number.
    """
    seconds: Any = message.values.get("limit_s")
    if not is_number(seconds) or not 0 <= seconds <= WAIT_LIMIT_S:
        raise AuthenticationError("a wait without an end")
    return float(seconds)


def _explain_refusal(message: Message) -> ClusterError:
    reason, details = message.values.get("message"), message.values.get("details")
    if message.kind != REFUSE or not isinstance(reason, str) or not isinstance(details, dict):
        raise AuthenticationError("a refusal without a reason")
    details = {name: value for name, value in details.items() if name in DETAILS}
    return ClusterError(reason, hint=str(message.values.get("hint", "")), **details)


# Both ---------------------------------------------------------------------------------------------


def _describe(spec: ClusterSpec, description: Mapping[str, Any]) -> dict[str, Any]:
    return {"protocol": PROTOCOL, "workers": list(spec.workers), **description}


async def open_listener(address: str, limit_s: float = BIND_S) -> socket.socket:
    """Listens on one address only.

    Args:
        address: "host:port".
        limit_s: Seconds to try while another program holds the port.

    Raises:
        ClusterError: if this computer has no such address, or the port stays taken.
    """
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return _listen(address)
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


def _listen(address: str) -> socket.socket:
    where = parse_address(address, "control")
    family, _, _, _, place = socket.getaddrinfo(where.host, where.port, type=socket.SOCK_STREAM)[0]
    listener = socket.create_server(place[:2], family=family)
    listener.setblocking(False)
    return listener


def explain_error(error: OSError) -> str:
    """Returns the system's reason for an error of a connection."""
    if isinstance(error, socket.gaierror | ssl.SSLError) or error.errno is None:
        return getattr(error, "reason", None) or error.strerror or str(error)
    return os.strerror(error.errno)  # without the address that asyncio adds


def check_shared(
    address: str,
    workers: Sequence[str],
    found: ipaddress.IPv4Address | ipaddress.IPv6Address | None,
) -> None:
    """Refuses a name that resolves to another address on this computer than on the others.

    Args:
        address: The chief's listening address, "host:port".
        workers: All addresses.
        found: Its IP address on this computer, from `read_ip()`.

    Raises:
        ClusterError: if the name resolves to a loopback address, and there are other computers.
    """
    where = parse_address(address, "control")
    others = {parse_address(worker).host for worker in workers} - {where.host}
    if others and not where.is_loopback and found is not None and found.is_loopback:
        raise ClusterError(
            f"The chief's name {where.host} stands for {found} on its own computer, where no other "
            "computer can reach it.",
            hint="Give its address in place of its name, or mend its line in /etc/hosts.",
            address=address,
            reason="its name is a loopback address",
        )


def read_ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the IP address that `open_listener()` would use, or None for an unknown name."""
    with suppress(OSError):
        host = parse_address(address, "control").host
        name = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
        return ipaddress.ip_address(str(name).partition("%")[0])
    return None
