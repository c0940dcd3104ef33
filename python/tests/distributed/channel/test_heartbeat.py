import socket
import threading

import pytest

from gpukeras.distributed.channel.authentication import WORKER, Seal
from gpukeras.distributed.channel.heartbeat import Clock, explain_end
from gpukeras.distributed.channel.transport import Link
from gpukeras.distributed.channel.worker import Worker


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


def make_member(on_loss=None):
    here, there = socket.socketpair()
    return Worker(("a:1", "b:2"), 1, 5.0, Link(here, Seal(b"", WORKER)), on_loss), there


def test_own_trouble_does_not_leave_callers_waiting():
    member, there = make_member()
    member.start()
    member.post(lambda: 1 / 0)
    assert member.mailbox.wait_result(0) is None
    fault = member.mailbox.fault
    assert fault.worker == 1
    assert fault.reason.startswith("lost its channel: ZeroDivisionError")
    there.close()
    member.end()
    assert not member.thread.is_alive()


def test_on_loss_that_fails_is_no_trouble():
    called = []

    def on_loss(message):
        called.append(message)
        raise RuntimeError(message)

    member, there = make_member(on_loss)
    member.start()
    there.close()
    assert member.mailbox.wait_fault(600).reason == "has ended"
    member.end()
    assert called == ["The chief, worker 1 (a:1), has ended."]


@pytest.mark.parametrize("garbage", [b"x" * 16, b"GPUK\x06" + b"\0" * 11, b"GPUK\x07" + b"\0" * 11])
def test_chief_that_sends_what_no_chief_sends(garbage):
    member, there = make_member()
    member.start()
    there.sendall(garbage.ljust(40, b"\0"))
    assert member.mailbox.wait_fault(600).reason == "sent what is no message of this program"
    member.end()
    there.close()


def test_posting_after_the_end_does_nothing():
    member, there = make_member()
    member.start()
    there.close()
    member.end()
    member.post(lambda: pytest.fail("ran"))
    member.set_rest(True)
    assert "gpukeras-channel" not in {thread.name for thread in threading.enumerate()}


def test_unreachable_computers_are_told_from_ended_processes():
    here, there = socket.socketpair()
    link = Link(here, Seal(b"", WORKER))
    assert explain_end(link, 3.0) == "has ended"
    link.unreachable = True
    assert explain_end(link, 3.0) == "has not answered for 3 s"
    link.close()
    there.close()
