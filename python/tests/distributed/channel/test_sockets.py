import ipaddress
import socket

import pytest
from channels import free_address

from gpukeras.core.errors import ClusterError
from gpukeras.distributed.channel import sockets
from gpukeras.distributed.channel.sockets import (
    check_shared,
    open_connection,
    open_listener,
    read_ip,
)


def test_listens_on_the_address_given_only():
    address = free_address()
    port = int(address.rpartition(":")[2])
    with open_listener(address) as listener:
        assert listener.getsockname() == ("127.0.0.1", port)
        with open_connection(address):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 1)


@pytest.mark.skipif(not socket.has_ipv6, reason="this computer has no IPv6")
def test_ipv6_in_brackets():
    address = free_address().replace("127.0.0.1", "[::1]")
    with open_listener(address) as listener:
        assert listener.getsockname()[0] == "::1"
        with open_connection(address):
            pass


def test_port_that_another_program_holds():
    address = free_address()
    with open_listener(address), pytest.raises(ClusterError, match=address):
        open_listener(address, limit_s=0.1)


def test_port_may_be_taken_again_at_once():
    address = free_address()
    for _ in range(3):
        with open_listener(address) as listener, open_connection(address) as client:
            listener.setblocking(True)
            listener.accept()[0].close()
            assert client.recv(1) == b""


def test_socket_connected_to_itself_is_no_connection():
    # What happens by chance on a port of this computer from which connections go out.
    address = free_address()
    with socket.socket() as itself:
        itself.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        host, _, port = address.rpartition(":")
        itself.bind((host, int(port)))
        itself.connect((host, int(port)))
        assert sockets.is_itself(itself)
    with open_listener(address), open_connection(address) as other:
        assert not sockets.is_itself(other)


@pytest.mark.parametrize(
    ("address", "workers", "found"),
    [
        ("127.0.0.1:5", ("127.0.0.1:1", "127.0.0.2:1"), "127.0.0.1"),
        ("localhost:5", ("localhost:1", "localhost:2"), "127.0.0.1"),
        ("10.0.0.5:5", ("10.0.0.5:1", "10.0.0.6:1"), "10.0.0.5"),
        ("node1:5", ("node1:1", "node2:1"), "10.0.0.5"),
        ("node1:5", ("node1:1", "node1:2"), "127.0.1.1"),
        ("node1:5", ("node1:1", "node2:1"), None),
    ],
)
def test_addresses_that_may_be_listened_on(address, workers, found):
    assert check_shared(address, workers, found and ipaddress.ip_address(found)) is None


@pytest.mark.parametrize("found", ["127.0.1.1", "::1"])
def test_own_name_that_others_do_not_know_as_this(found):
    with pytest.raises(ClusterError, match=f"node1 stands for {found} on its own"):
        check_shared("node1:5", ("node1:1", "node2:1"), ipaddress.ip_address(found))


@pytest.mark.parametrize(
    ("address", "found"),
    [("10.0.0.5:5", "10.0.0.5"), ("[fd00::5]:5", "fd00::5"), ("no-such-host.invalid:5", "None")],
)
def test_ip_of_an_address(address, found):
    assert str(read_ip(address)) == found
