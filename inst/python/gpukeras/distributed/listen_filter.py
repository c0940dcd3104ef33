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
import stat
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
ANSWERED = 16  # most addresses of one name: a filter has at most 4096 instructions
SO_ATTACH_FILTER = 26  # Linux's number; Python's `socket` lacks it
# Instructions of a classic filter (linux/filter.h); offsets count from the IP header.
LOAD_BYTE, LOAD_WORD, AND, JUMP_IF_EQUAL, RETURN = 0x30, 0x20, 0x54, 0x15, 0x06
IP_HEADER = 0xFFF00000
VERSION = {4: 0x40, 6: 0x60}  # the first byte of a packet, without its lower half
DESTINATION = {4: 16, 6: 24}  # offset of a packet's destination address
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
    instructions = plan_filter(addresses)
    # A list: all of them are confined, even where one cannot be.
    confined = [_attach(listener, instructions) for listener in _open_listeners(port)]
    return bool(confined) and all(confined)


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
        while not confined.is_set():
            is_last = over.wait(LOOK_S)
            if confine_listener(port, address):
                confined.set()
            elif is_last:
                return

    watcher = threading.Thread(target=watch, name="gpukeras-confining", daemon=True)
    watcher.start()
    try:
        yield confined
    finally:
        over.set()
        watcher.join()


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


def plan_filter(addresses: Sequence[IP]) -> list[Instruction]:
    """Returns a filter that passes packets sent to one of the addresses."""
    plan: list[Instruction] = []
    for address in addresses:
        steps = [(LOAD_BYTE, IP_HEADER), (AND, 0xF0), (JUMP_IF_EQUAL, VERSION[address.version])]
        offset = IP_HEADER + DESTINATION[address.version]
        for place, (word,) in enumerate(struct.iter_unpack("!L", address.packed)):
            steps += [(LOAD_WORD, offset + 4 * place), (JUMP_IF_EQUAL, word)]
        steps.append((RETURN, PASS))
        # A value that differs leads behind the last step, to the next address.
        for place, (code, operand) in enumerate(steps, 1):
            plan.append((code, 0, len(steps) - place if code == JUMP_IF_EQUAL else 0, operand))
    return [*plan, (RETURN, 0, 0, DROP)]


def _open_listeners(port: int) -> Iterator[socket.socket]:
    # Yields this process' sockets that listen on a port, under copies of their descriptors, so that
    # closing those leaves the owner's open.
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # closed meanwhile, such as the one that lists them
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as opened:
                internet = opened.family in (socket.AF_INET, socket.AF_INET6)
                listens = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if internet and listens and opened.getsockname()[1] == port:
                    yield opened


def _attach(listener: socket.socket, instructions: Sequence[Instruction]) -> bool:
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(instructions), ctypes.addressof(buffer))
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    except OSError:
        return False
    return True
