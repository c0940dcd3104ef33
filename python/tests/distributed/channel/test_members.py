import select
import socket
import threading
from contextlib import contextmanager

import pytest
from channels import SECRET, Peer, make_spec

from gpukeras.distributed.channel.authentication import CHIEF, MAGIC, Seal
from gpukeras.distributed.channel.collectives import Call
from gpukeras.distributed.channel.connection import Connection, explain_end
from gpukeras.distributed.channel.members import Clock, Worker
from gpukeras.distributed.channel.protocol import CALL, HELLO, WELCOME


@pytest.mark.parametrize(
    ("looks", "awake"),
    [
        ([10.0], 0.0),
        ([10.0, 10.5, 11.5], 1.5),
        ([10.0, 11.0, 500.0], 3.0),  # a computer that slept
        ([10.0, 9.0, 10.0], 1.0),
    ],
)
def test_clock_counts_the_time_awake(looks, awake):
    clock = Clock(longest_s=2.0)
    assert [clock.tick(look) for look in looks][-1] == awake


@contextmanager
def joined(on_loss=None):
    """A worker that has joined, and its chief in the test's hands."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        control = f"127.0.0.1:{listener.getsockname()[1]}"
        member = Worker(make_spec(control, 2, 1), on_loss)
        joining = threading.Thread(target=member.join, args=({}, 20.0))
        joining.start()
        chief = Peer(listener.accept()[0], SECRET, CHIEF)
    assert chief.hear().kind == HELLO
    chief.send(WELCOME)
    joining.join()
    yield member, chief
    chief.close()
    member.leave("has left", 0.0)
    assert not member.thread.is_alive()


def test_own_trouble_does_not_leave_callers_waiting():
    with joined() as (member, _):
        member.post(lambda: 1 / 0)
        assert member.call(Call(0, '"epoch"', 60.0, b"")) is None
        assert member.fault.worker == 1
        assert member.fault.reason.startswith("lost its channel: ZeroDivisionError")


def test_on_loss_that_fails_is_no_trouble():
    called = []

    def on_loss(message):
        called.append(message)
        raise RuntimeError(message)

    with joined(on_loss) as (member, chief):
        chief.close()
        member.wait_ended(600)
        assert member.fault.reason == "has ended"
    assert called == ["The chief, worker 1 (127.0.0.1:2001), has ended."]


@pytest.mark.parametrize("garbage", [b"x" * 48, MAGIC + bytes(44), MAGIC + b"\xff" * 44])
def test_chief_that_sends_what_no_chief_sends(garbage):
    with joined() as (member, chief):
        chief.connection.sendall(garbage)
        member.wait_ended(600)
        assert member.fault.reason == "sent what is no message of this program"


def test_chief_that_sends_what_a_worker_sends():
    with joined() as (member, chief):
        chief.send(CALL, Call(0, "x", 1.0, b"").values(), [b""])
        member.wait_ended(600)
        assert member.fault.reason == "sent what is no message of this program"


def test_a_rest_is_told_before_the_call_returns():
    """After it R holds Python's lock, and nothing more is written."""
    with joined() as (member, chief):
        for at_rest in [True, False] * 20:
            member.set_rest(at_rest)
            assert select.select([chief.connection], [], [], 0)[0]
            while chief.hear(beats=True).values["rests"] is not at_rest:
                pass


def test_posting_after_the_end_does_nothing():
    with joined() as (member, chief):
        chief.close()
    member.post(lambda: pytest.fail("ran"))
    member.set_rest(True)
    assert "gpukeras-channel" not in {thread.name for thread in threading.enumerate()}


def test_unreachable_computers_are_told_from_ended_processes():
    connection = Connection(Seal(b"", CHIEF))
    assert explain_end(connection, 3.0) == "has ended"
    connection.connection_lost(TimeoutError(110, "Connection timed out"))
    assert explain_end(connection, 3.0) == "has not answered for 3 s"
