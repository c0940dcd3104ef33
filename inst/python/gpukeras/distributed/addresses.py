"""Parses worker addresses, "host:port", and finds local addresses and free ports."""

from __future__ import annotations

import errno
import ipaddress
import random
import re
import socket
from dataclasses import dataclass

from gpukeras.core.errors import SpecError
from gpukeras.core.options import describe, refused_value

LOOPBACK = "127.0.0.1"
LAST_PORT = 65535
# Below the ports that systems assign to outgoing connections (from 32768): no such connection can
# take a port found here before its worker listens, which takes TensorFlow seconds.
FREE_PORTS = range(10240, 32768)
LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
HINT = 'Such as "10.0.0.5:2222", "node1:2222" or "[fd00::5]:2222".'


@dataclass(frozen=True)
class Address:
    """The address that a process listens on.

    Args:
        host: A name in lower case, or an IP address without brackets.
        port: From 1 to 65535.
    """

    host: str
    port: int

    def __str__(self) -> str:
        """Returns "host:port", with IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this computer can reach it."""
        ip = parse_ip(self.host)
        return self.host == "localhost" if ip is None else ip.is_loopback


def parse_address(text: object, arg: str = "workers") -> Address:
    """Parses an address.

    Args:
        text: "host:port"; an IPv6 address in brackets.
        arg: Name of the user's argument, for messages.

    Raises:
        SpecError: if it is no address, or one that others cannot connect to, such as 0.0.0.0.
    """
    match = (
        re.fullmatch(r"(\[[^\[\]]*\]|[^\[\]:]*):(\d{1,5})", text) if isinstance(text, str) else None
    )
    if match is None:
        raise refused_value(arg, text, 'addresses "host:port"', HINT)
    host, port = match[1].strip("[]").lower(), int(match[2])
    if not 1 <= port <= LAST_PORT:
        message = f"`{arg}` has the port {port} in {describe(text)}; ports are 1 to {LAST_PORT}."
        raise SpecError(message, arg=arg)
    _check_host(host, match[1].startswith("["), text, arg)
    ip = parse_ip(host)
    return Address(host if ip is None else str(ip), port)


def _check_host(host: str, bracketed: bool, text: object, arg: str) -> None:
    ip = parse_ip(host)
    if ip is not None and ip.is_unspecified:
        raise SpecError(
            f"`{arg}` has {describe(text)}, which means all addresses of a computer: "
            "nobody can connect to it.",
            hint="Give the one address by which the others reach it.",
            arg=arg,
        )
    labels = host.split(".")
    named = all(map(LABEL.fullmatch, labels)) and not labels[-1].isdigit()
    good = isinstance(ip, ipaddress.IPv6Address) if bracketed else named or ip is not None
    if not good or "%" in host:
        message = f"`{arg}` has {describe(text)}, which is neither a host's name nor an IP address."
        raise SpecError(message, hint=HINT, arg=arg)


def parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns a host as an IP address, or None if it is a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# The computer -------------------------------------------------------------------------------------


def read_is_here(host: str) -> bool:
    """Whether a host is this computer: one of its addresses, or a name that resolves to one.

    A process can bind only to addresses of its own computer. Nothing is sent for this test, except
    to resolve a name.
    """
    if host in ("localhost", socket.gethostname().lower()):
        return True
    try:
        resolved = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:  # an unknown name
        return False
    return not all(_bind_fault(family, (place[0], 0)) for family, _, _, _, place in resolved)


def read_is_free(address: Address) -> bool:
    """Whether a process here may listen there; true where the host's address is unknown."""
    try:
        resolved = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError:
        return True
    return not any(_bind_fault(family, place) for family, _, _, _, place in resolved)


def read_is_taken(port: int) -> bool:
    """Whether another program of this computer listens on a port, at any address."""
    return _bind_fault(socket.AF_INET, ("", port)) == errno.EADDRINUSE


def _bind_fault(family: int, place: tuple) -> int | None:
    """Returns the errno of binding to an address; None if it can be bound to."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Connections that an ended server leaves behind for minutes do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        return error.errno
    return None


def find_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Returns distinct free ports, below those of outgoing connections.

    Args:
        count: Number of ports.
        host: The host to listen on.

    Raises:
        SpecError: if there are fewer free ports.
    """
    ports = random.SystemRandom().sample(FREE_PORTS, len(FREE_PORTS))  # changes no user's seed
    free = (port for port in ports if read_is_free(Address(host, port)))
    chosen = [port for port, _ in zip(free, range(count), strict=False)]
    if len(chosen) < count:
        raise SpecError(f"{count} free ports are needed, found {len(chosen)}.", arg="workers")
    return chosen
