import asyncio
import socket

import pytest
from channels import free_address

from gpukeras.core.errors import ClusterError
from gpukeras.distributed.addresses import parse_address
from gpukeras.distributed.channel.rendezvous import check_shared, open_listener


def listen(address, limit_s=1.0):
    return asyncio.run(open_listener(address, [address], limit_s))


def connect(address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), 1)


def test_listens_on_the_address_given_only():
    address = free_address()
    port = int(address.rpartition(":")[2])
    with listen(address) as listener:
        assert listener.getsockname() == ("127.0.0.1", port)
        with connect(address):
            pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), 1)


@pytest.mark.skipif(not socket.has_ipv6, reason="this computer has no IPv6")
def test_ipv6_in_brackets():
    address = free_address().replace("127.0.0.1", "[::1]")
    with listen(address) as listener:
        assert listener.getsockname()[0] == "::1"
        with connect(address):
            pass


def test_port_that_another_program_holds():
    address = free_address()
    with listen(address), pytest.raises(ClusterError, match=address) as caught:
        listen(address, limit_s=0.1)
    assert caught.value.details["reason"] == "Address already in use"


def test_port_may_be_taken_again_at_once():
    address = free_address()
    for _ in range(3):
        with listen(address) as listener, connect(address) as client:
            listener.setblocking(True)
            listener.accept()[0].close()
            assert client.recv(1) == b""


@pytest.mark.parametrize(
    ("address", "workers", "found"),
    [
        ("127.0.0.1:5", ("127.0.0.1:1", "127.0.0.2:1"), "127.0.0.1"),
        ("localhost:5", ("localhost:1", "localhost:2"), "127.0.0.1"),
        ("10.0.0.5:5", ("10.0.0.5:1", "10.0.0.6:1"), "10.0.0.5"),
        ("node1:5", ("node1:1", "node2:1"), "10.0.0.5"),
        ("node1:5", ("node1:1", "node1:2"), "127.0.1.1"),
    ],
)
def test_addresses_that_may_be_listened_on(address, workers, found):
    assert check_shared(parse_address(address), workers, found) is None


@pytest.mark.parametrize("found", ["127.0.1.1", "::1"])
def test_own_name_that_others_do_not_know_as_this(found):
    with pytest.raises(ClusterError, match=f"node1 stands for {found} on its own"):
        check_shared(parse_address("node1:5"), ("node1:1", "node2:1"), found)


def test_name_that_nobody_knows():
    with pytest.raises(ClusterError, match=r"cannot listen on no-such-host.invalid:5: .*known"):
        listen("no-such-host.invalid:5")
