"""Restricts a socket that listens on all addresses to packets for one address.

The threat: TensorFlow's server asks for no secret, so anyone who reaches a worker's port can run
code as its user, and it listens on every address of the computer, whatever address it was given.
Where the workers have a private network and the computer a second one, all hosts of the second
network reach it.  A packet filter on its socket (Linux lets a process filter its own sockets) drops
packets sent to any other address: from outside the socket behaves as if it were bound to one
address, except that a refused connection times out.  Accepted connections inherit the filter; those
accepted before do not.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
ANSWERED = 16  # most addresses of one name: jumps in a filter are short
SO_ATTACH_FILTER = 26  # Linux's number; Python's `socket` lacks it
LISTENING = "0A"  # state of a socket in /proc/net/tcp
# Instructions of a classic filter (linux/filter.h); offsets count from the IP header.
LOAD_BYTE, LOAD_WORD, AND, JUMP_IF_EQUAL, RETURN = 0x30, 0x20, 0x54, 0x15, 0x06
IP_HEADER = 0xFFF00000
TO_V4, TO_V6 = IP_HEADER + 16, IP_HEADER + 24  # offset of a packet's destination address
LOOK_S = 0.005  # between two checks for the listener; until it is confined, any host can connect
PASS, DROP = 0xFFFFFFFF, 0
Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def confine_listener(port: int, address: str) -> bool:
    """Restricts this process' listener of a port to one address.

    Args:
        port: The port.
        address: An IP address, or a name: then all addresses that it resolves to.

    Returns:
        Whether the listener is restricted now.  False where the system is not Linux, this process
        has no such listener, or others reach this computer by addresses that the name does not
        resolve to.
    """
    addresses = read_addresses(address)
    if not sys.platform.startswith("linux") or not addresses:
        return False
    inodes = _read_inodes(port)
    found = [fd for fd, inode in _read_sockets() if inode in inodes]
    return bool(found) and all([_attach(fd, plan_filter(addresses)) for fd in found])


@contextmanager
def confining(port: int, address: str) -> Iterator[threading.Event]:
    """Restricts a port on which the context's body starts to listen, as soon as it does.

    Args:
        port: The port.
        address: See `confine_listener()`.

    Yields:
        An event that is set once the port is restricted, at the latest on exit if that is possible.
    """
    confined, over = threading.Event(), threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            if confine_listener(port, address):
                confined.set()
                return

    watcher = threading.Thread(target=watch, name="gpukeras-confining", daemon=True)
    watcher.start()
    try:
        yield confined
    finally:
        over.set()
        watcher.join()
        if confine_listener(port, address):
            confined.set()


def read_addresses(host: str) -> list[IP]:
    """Returns the IP addresses of a host; none where they are unknown.

    On the computer itself its name may resolve to a loopback address: other computers then use an
    address that is unknown here.
    """
    with suppress(ValueError):
        return [ipaddress.ip_address(host.strip("[]").partition("%")[0])]
    try:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    names = dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in answers)
    addresses = [ipaddress.ip_address(name) for name in names]
    known = host == "localhost" or not any(address.is_loopback for address in addresses)
    return addresses[:ANSWERED] if known else []


def parse_listeners(table: str, port: int) -> set[int]:
    """Returns the inodes of the sockets that listen on a port.

    Args:
        table: Text of `/proc/net/tcp` or `tcp6`.
        port: The port.
    """
    rows = (line.split() for line in table.splitlines()[1:])
    return {
        int(row[9])
        for row in rows
        if len(row) > 9 and row[3] == LISTENING and int(row[1].rpartition(":")[2], 16) == port
    }


def plan_filter(addresses: Sequence[IP]) -> list[Instruction]:
    """Returns a filter that passes packets sent to one of the addresses."""
    four = [address for address in addresses if address.version == 4]
    six = [address for address in addresses if address.version == 6]
    v4 = [(LOAD_WORD, 0, 0, TO_V4)]
    for address in four:
        v4 += [(JUMP_IF_EQUAL, 0, 1, int(address)), (RETURN, 0, 0, PASS)]
    v4 += [(RETURN, 0, 0, DROP)]
    v6 = [instruction for address in six for instruction in _plan_v6(address.packed)]
    version = [(LOAD_BYTE, 0, 0, IP_HEADER), (AND, 0, 0, 0xF0)]
    return [
        *version,
        (JUMP_IF_EQUAL, 0, len(v4), 0x40),
        *v4,
        (JUMP_IF_EQUAL, 1, 0, 0x60),
        (RETURN, 0, 0, DROP),
        *v6,
        (RETURN, 0, 0, DROP),
    ]


def _plan_v6(packed: bytes) -> list[Instruction]:
    # Compares four words; at the first that differs it jumps to the next address.
    words = struct.unpack("!4L", packed)
    block: list[Instruction] = []
    for place, word in enumerate(words):
        block += [
            (LOAD_WORD, 0, 0, TO_V6 + 4 * place),
            (JUMP_IF_EQUAL, 0, 7 - 2 * place, word),
        ]
    return [*block, (RETURN, 0, 0, PASS)]


def _read_inodes(port: int) -> set[int]:
    inodes: set[int] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):  # no IPv6 on this computer
            inodes |= parse_listeners(Path("/proc/self/net", name).read_text(), port)
    return inodes


def _read_sockets() -> Iterable[tuple[int, int]]:
    # File descriptors of this process that are sockets, with their inodes.
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, such as the one that lists them
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:["):
                yield int(name), int(target[8:-1])


def _attach(fd: int, instructions: Sequence[Instruction]) -> bool:
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(instructions), ctypes.addressof(buffer))
    try:
        # A copy of the descriptor, so that closing it leaves the owner's open.
        with socket.socket(fileno=os.dup(fd)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    except OSError:
        return False
    return True
