"""Listens on one address, and connects to one."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Sequence

from gpukeras.core.errors import ClusterError
from gpukeras.distributed.addresses import parse_address

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
BIND_S = 10.0  # seconds: the previous chief may still hold the port
ATTEMPT_S = 5.0  # seconds for one attempt to connect
PAUSE_S = 0.1  # seconds between two attempts
BACKLOG = 128  # connections that the system queues until they are accepted


def open_listener(address: str, limit_s: float = BIND_S) -> socket.socket:
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
                reason = error.strerror or str(error)
                raise ClusterError(
                    f"The chief cannot listen on {address}: {reason}.",
                    hint="The first of `workers` must be an address of the computer on which "
                    "worker 1 runs, and the port must be free there.",
                    address=address,
                    reason=reason,
                ) from error
        time.sleep(PAUSE_S)


def check_shared(address: str, workers: Sequence[str], found: IP | None) -> None:
    """Refuses a name that resolves to another address on this computer than on the others.

    Args:
        address: The chief's listening address, "host:port".
        workers: All addresses.
        found: Its IP address on this computer, from `read_ip()`.

    Raises:
        ClusterError: if the name resolves to a loopback address, and there are other computers.
    """
    host = parse_address(address, "control").host
    others = {parse_address(worker).host for worker in workers} - {host}
    if not others or parse_address(address, "control").is_loopback:
        return
    if found is not None and found.is_loopback:
        raise ClusterError(
            f"The chief's name {host} stands for {found} on its own computer, where no other "
            "computer can reach it.",
            hint="Give its address in place of its name, or mend its line in /etc/hosts.",
            address=address,
            reason="its name is a loopback address",
        )


def read_ip(address: str) -> IP | None:
    """Returns the IP address that `open_listener()` would use, or None for an unknown name."""
    host = parse_address(address, "control").host
    try:
        name = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return None
    return ipaddress.ip_address(str(name).partition("%")[0])


def open_connection(address: str, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Connects to an address; the TLS handshake, if `tls` is given, follows later.

    Raises:
        OSError: if nothing answers there.
    """
    where = parse_address(address, "control")
    connection = socket.create_connection((where.host, where.port), ATTEMPT_S)
    if is_itself(connection):
        connection.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    if tls is None:
        return connection
    connection.setblocking(False)
    return tls.wrap_socket(connection, server_hostname=where.host, do_handshake_on_connect=False)


def is_itself(connection: socket.socket) -> bool:
    """Whether a socket is connected to itself, which can happen where nothing listens."""
    return bool(connection.getsockname() == connection.getpeername())


def _listen(address: str) -> socket.socket:
    where = parse_address(address, "control")
    family, kind, protocol, _, name = socket.getaddrinfo(
        where.host, where.port, type=socket.SOCK_STREAM
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere the option would share the port with others
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(name)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
