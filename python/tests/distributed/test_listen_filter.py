"""Real sockets that listen on all addresses, and who can still reach them."""

import ctypes
import ipaddress
import socket
import struct
import sys
import threading

import pytest
from channels import open_files, own_address

from gpukeras.distributed import listen_filter
from gpukeras.distributed.addresses import find_ports

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux lets a process filter its sockets"
)


def lets_filter():
    """Whether the kernel lets this user filter a socket: some kernels let only root."""
    passes = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0xFFFFFFFF), 8)
    with socket.socket() as plain:
        try:
            plain.setsockopt(socket.SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(passes)))
        except PermissionError:
            return False
    return True


FILTERING = pytest.mark.skipif(
    sys.platform.startswith("linux") and not lets_filter(),
    reason="this kernel lets only root filter a socket",
)


def listen(dual):
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", 0), family=family, dualstack_ipv6=dual)


def talk(listener, address):
    """What comes back through a connection to `address`, or None where there is no answer."""
    try:
        client = socket.create_connection((address, listener.getsockname()[1]), 0.15)
    except TimeoutError:
        return None
    with client, listener.accept()[0] as server:
        client.sendall(b"x" * 100_000)
        echo = threading.Thread(target=lambda: server.sendall(_read(server, 100_000)[:5]))
        echo.start()
        answer = _read(client, 5)
        echo.join()
        return answer


def _read(connection, count):
    data = b""
    while len(data) < count:
        data += connection.recv(count - len(data))
    return data


def others():
    return [address for address in ("127.0.0.2", own_address()) if address]


# Both families, the address given, what answers then, and what does not.
CONFINED = {
    "IPv4": (False, "127.0.0.1", ["127.0.0.1"], others()),
    "both families": (True, "127.0.0.1", ["127.0.0.1"], [*others(), "::1"]),
    "another loopback address": (True, "127.0.0.2", ["127.0.0.2"], ["127.0.0.1"]),
    "IPv6": (True, "[::1]", ["::1"], ["127.0.0.1"]),
    "a name, all its addresses": (True, "localhost", ["127.0.0.1"], ["127.0.0.2"]),
}
if own_address():
    CONFINED["its own address"] = (True, own_address(), [own_address()], ["127.0.0.1"])


@FILTERING
@pytest.mark.parametrize("case", CONFINED)
def test_only_the_address_given_answers(case):
    dual, given, answering, silent = CONFINED[case]
    with listen(dual) as listener:
        assert all(talk(listener, address) for address in (*answering, *silent))
        assert listen_filter.confine_listener(listener.getsockname()[1], given)
        assert [talk(listener, address) for address in answering] == [b"xxxxx"] * len(answering)
        assert [talk(listener, address) for address in silent] == [None] * len(silent)


@FILTERING
def test_the_listener_stays_its_owners():
    with listen(True) as listener:
        files = open_files()
        for _ in range(3):
            assert listen_filter.confine_listener(listener.getsockname()[1], "127.0.0.1")
        assert open_files() == files
        assert talk(listener, "127.0.0.1") == b"xxxxx"


def test_port_that_nothing_here_listens_on():
    with listen(False) as listener:
        port = listener.getsockname()[1]
    assert not listen_filter.confine_listener(port, "127.0.0.1")


def test_name_without_addresses():
    with listen(False) as listener:
        assert not listen_filter.confine_listener(listener.getsockname()[1], "no-such-host.invalid")
        assert talk(listener, "127.0.0.2") == b"xxxxx"


@pytest.mark.parametrize("host", ["192.0.2.1", "[fd00::5]", "fe80::1%eth0"])
def test_addresses_that_need_no_name_service(host):
    plain = host.strip("[]").partition("%")[0]
    assert listen_filter.read_addresses(host) == [ipaddress.ip_address(plain)]


def run_filter(instructions, packet):
    """What Linux makes of a filter: enough of it for those that are planned here."""
    place, value = 0, 0
    while True:
        code, yes, no, operand = instructions[place]
        place += 1
        if code == 0x06:
            return operand
        if code in (0x30, 0x20):
            start = operand - 0xFFF00000
            value = int.from_bytes(packet[start : start + (1 if code == 0x30 else 4)], "big")
        elif code == 0x54:
            value &= operand
        else:
            place += yes if value == operand else no


def make_packet(destination):
    address = ipaddress.ip_address(destination)
    if address.version == 4:
        return b"\x45" + bytes(15) + address.packed
    return b"\x60" + bytes(23) + address.packed


@pytest.mark.parametrize(
    "allowed", [["10.0.0.1"], ["fd00::1"], ["10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2:1"]]
)
def test_filter_passes_its_addresses_only(allowed):
    instructions = listen_filter.plan_filter([ipaddress.ip_address(address) for address in allowed])
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2:1", "fd00::2", "::"):
        passed = run_filter(instructions, make_packet(address)) != 0
        assert passed == (address in allowed), address
    assert run_filter(instructions, b"\x00" * 40) == 0


@FILTERING
def test_a_listener_is_confined_as_soon_as_it_is_there():
    (port,) = find_ports(1)
    with listen_filter.confining(port, "127.0.0.1") as confined:
        assert not confined.is_set()
        listener = socket.create_server(("", port))
        assert confined.wait(60)
    with listener:
        socket.create_connection(("127.0.0.1", port), 2).close()
        with pytest.raises(TimeoutError):
            socket.create_connection(("127.0.0.2", port), 0.3)


def test_what_does_not_listen_is_not_confined():
    (port,) = find_ports(1)
    with listen_filter.confining(port, "127.0.0.1") as confined:
        pass
    assert not confined.is_set()
