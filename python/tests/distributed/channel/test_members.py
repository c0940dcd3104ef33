import select
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from channels import SECRET, Peer, make_spec

from gpukeras.core.errors import ClusterError
from gpukeras.distributed.channel.channel import open_channel
from gpukeras.distributed.channel.connection import Connection
from gpukeras.distributed.channel.members import Clock, Worker
from gpukeras.distributed.channel.protocol import (
    BYE,
    CALL,
    CHIEF,
    FAULT,
    HELLO,
    MAGIC,
    RESULT,
    WELCOME,
    Seal,
)


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
    """A worker's channel that has joined, and its chief in the test's hands."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        spec = make_spec(f"127.0.0.1:{listener.getsockname()[1]}", 2, 1)
        joining = pool.submit(open_channel, spec, {}, on_loss, 20.0)
        chief = Peer(listener.accept()[0], SECRET, CHIEF)
        assert chief.hear().kind == HELLO
        chief.send(WELCOME)
        channel = joining.result()
    yield channel, chief
    chief.close()
    channel.close(0.0)
    assert "gpukeras-channel" not in {thread.name for thread in threading.enumerate()}


def reason(channel):
    return channel.fault(600).details["reason"]


def test_own_trouble_does_not_leave_callers_waiting(monkeypatch):
    monkeypatch.setattr(Worker, "_take", lambda *_: 1 / 0)
    with joined() as (channel, chief):
        chief.send(RESULT)
        with pytest.raises(ClusterError, match="lost its channel: ZeroDivisionError") as caught:
            channel.exchange("epoch", {}, 60.0)
        assert caught.value.details["worker"] == 2
        told = chief.hear()
        while told.kind == CALL:
            told = chief.hear()
        assert (told.kind, told.values["worker"]) == (FAULT, 1)


def test_on_loss_that_fails_is_no_trouble():
    called = []

    def on_loss(message):
        called.append(message)
        raise RuntimeError(message)

    with joined(on_loss) as (channel, chief):
        chief.close()
        assert reason(channel) == "has ended"
    assert called == ["The chief, worker 1 (127.0.0.1:2001), has ended."]


@pytest.mark.parametrize("garbage", [b"x" * 48, MAGIC + bytes(44), MAGIC + b"\xff" * 44])
def test_chief_that_sends_what_no_chief_sends(garbage):
    with joined() as (channel, chief):
        chief.connection.sendall(garbage)
        assert reason(channel) == "sent what is no message of this program"


@pytest.mark.parametrize("kind", [CALL, RESULT])
def test_chief_that_sends_what_a_worker_sends_or_a_result_of_others(kind):
    with joined() as (channel, chief):
        chief.send(kind, {"place": "x", "limit_s": 1.0}, [b""] * (1 if kind == CALL else 3))
        assert reason(channel) == "sent what is no message of this program"


def test_a_rest_is_told_before_the_call_returns():
    """After it R holds Python's lock, and nothing more is written."""
    with joined() as (channel, chief):
        for at_rest in [True, False] * 20:
            channel.rest() if at_rest else channel.resume()
            assert select.select([chief.connection], [], [], 0)[0]
            while chief.hear(beats=True).values["rests"] is not at_rest:
                pass


@contextmanager
def interrupted(monkeypatch):
    """An interrupt of whatever waits for the channel's loop."""

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Future, "exception", interrupt)
        yield


def test_an_interrupt_at_once_does_not_keep_a_worker_from_leaving(monkeypatch):
    with joined() as (channel, chief):
        channel._loop.call_soon_threadsafe(time.sleep, 0.3)  # it is busy
        with interrupted(monkeypatch), pytest.raises(KeyboardInterrupt):
            channel.close()
        told = chief.hear()
        while told.kind == BYE:
            told = chief.hear()
        assert (told.kind, told.values["reason"]) == (FAULT, "has left")


def test_an_interrupted_call_leaves_its_result_to_nobody(monkeypatch):
    """The next call gets the result of its own, not that of the call before."""
    with joined() as (channel, chief):
        with interrupted(monkeypatch), pytest.raises(KeyboardInterrupt):
            channel.exchange("epoch", {})
        assert chief.hear().kind == CALL
        chief.send(RESULT, {}, [b'{"of": 1}', b'{"of": 1}'])
        with ThreadPoolExecutor(1) as pool:
            second = pool.submit(channel.exchange, "epoch", {})
            assert chief.hear().kind == CALL
            chief.send(RESULT, {}, [b'{"of": 2}', b'{"of": 2}'])
            assert second.result() == [{"of": 2}] * 2


def test_asking_after_the_end_does_nothing():
    with joined() as (channel, chief):
        chief.close()
        assert reason(channel) == "has ended"
    channel.rest()
    channel.resume()
    assert channel.fault(1.0).details["reason"] == "has ended"


def test_unreachable_computers_are_told_from_ended_processes():
    connection = Connection(Seal(b"", CHIEF))
    assert connection.explain_end(3.0) == "has ended"
    connection.connection_lost(TimeoutError(110, "Connection timed out"))
    assert connection.explain_end(3.0) == "has not answered for 3 s"
