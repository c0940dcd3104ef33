"""Strangers at the control channel: real connections that say what no worker of theirs says.

Whatever they send, and whenever: the workers who know the secret start, train and end as if nobody
else had been there.
"""

import resource
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from channels import PATIENCE_S, SECRET, Peer, free_address, make_spec
from strangers import JOINED, PLAIN, UNFINISHED, close_connections, connect, join, recorded, say

from gpukeras.core.errors import ClusterError
from gpukeras.distributed.channel import members, protocol
from gpukeras.distributed.channel.channel import open_channel
from gpukeras.distributed.channel.protocol import CHIEF
from gpukeras.distributed.credentials import Credentials


@pytest.fixture(autouse=True)
def close_all():
    yield
    close_connections()


@contextmanager
def started(size=2, work=None, **options):
    """A chief that waits, and a function that lets the others come and gives all outcomes."""
    control, outcomes, notes = free_address(), [None] * size, []

    def run(index):
        spec = make_spec(control, size, index, options.get("timeout_s", 5.0))
        try:
            with open_channel(spec, {}, None, 20) as channel:
                notes.extend(channel.notes)
                told = channel.exchange("joined", {"index": index})
                outcomes[index] = work(channel) if work else told
        except Exception as error:
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(size)]
    threads[0].start()

    def finish():
        for thread in threads[1:]:
            if thread.ident is None:
                thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        return outcomes, notes

    yield control, finish
    finish()


def wait_until_ended(connection):
    connection.settimeout(PATIENCE_S)
    try:
        while connection.recv(2**16):
            pass
    except ConnectionResetError:
        pass


# Before all have come ----------------------------------------------------------------------------


@pytest.mark.parametrize("attack", PLAIN)
def test_what_a_stranger_says_does_not_end_a_start(attack):
    with started() as (control, finish):
        strangers = [connect(control) for _ in range(2)]
        for stranger in strangers:
            stranger.sendall(PLAIN[attack])
        outcomes, notes = finish()
        for stranger in strangers:
            stranger.close()
    assert outcomes == JOINED
    if attack not in UNFINISHED:
        assert any("connections were sent away" in note or "A conn" in note for note in notes)


@pytest.mark.parametrize("secret", [b"", b"a secret of somebody else"])
@pytest.mark.parametrize("index", [0, 1])
def test_a_well_formed_hello_without_the_secret_is_sent_away(secret, index):
    with started() as (control, finish):
        stranger = Peer(connect(control), secret)
        stranger.greet(index, 2)
        assert stranger.hear() is None
        outcomes, notes = finish()
    assert outcomes == JOINED
    assert notes == [
        "A connection was sent away that did not prove to be a worker's, from 127.0.0.1."
    ]


@pytest.mark.parametrize(
    "more",
    [
        {"index": True},
        {"index": 10**4299},
        {"index": -1},
        {"index": 1.0},
        {"index": None},
        {"description": []},
    ],
    ids=["true", "4300 digits", "negative", "float", "none", "no record"],
)
def test_one_who_knows_the_secret_and_says_nonsense_is_sent_away_too(more):
    with started() as (control, finish):
        odd = Peer(connect(control))
        odd.greet(1, 2, **more)
        assert odd.hear() is None
        outcomes, _ = finish()
    assert outcomes == JOINED


def test_a_hello_of_an_earlier_connection_is_none_of_this():
    """All that a worker has sent, once more: other nonces, other keys."""
    control = free_address()
    with recorded(control) as (front, sent):
        specs = [make_spec(control, 2, 0), make_spec(front, 2, 1)]
        assert join(specs) == JOINED
    assert len(sent[0]) > 100
    with started() as (control, finish):
        again = connect(control)
        again.sendall(bytes(sent[0]))
        wait_until_ended(again)
        assert finish()[0] == JOINED


def test_what_the_chief_says_does_not_prove_who_says_it_back():
    with started() as (control, finish):
        mirror = connect(control)
        mirror.settimeout(1)
        mirror.sendall(mirror.recv(4096))
        wait_until_ended(mirror)
        assert finish()[0] == JOINED


def test_a_greeting_that_goes_on_for_ever_is_ended():
    with started() as (control, finish):
        stranger = connect(control)
        with pytest.raises(OSError, match=r"reset|pipe"):
            stranger.sendall(b"x" * 10**8)
        assert finish()[0] == JOINED


def test_a_worker_with_another_secret_says_what_may_be_wrong():
    with started() as (control, finish):
        spec = make_spec(control, 2, 1, 5.0, Credentials(b"another secret than theirs"))
        with pytest.raises(
            ClusterError, match="its secret or its TLS may be others than"
        ) as caught:
            open_channel(spec, {}, None, 1.0)
        assert caught.value.details["worker"] == 1
        outcomes, notes = finish()
    assert outcomes == JOINED
    assert "did not prove to be a worker's, from 127.0.0.1" in notes[0]


def test_a_chief_that_waits_in_vain_tells_of_strangers():
    control = free_address()

    def come():
        stranger = Peer(connect(control), b"x" * 16)
        stranger.greet(1, 2)
        assert stranger.hear() is None

    stranger = threading.Thread(target=come)
    stranger.start()
    with pytest.raises(ClusterError, match="Worker 2 .* has not come within 2 s") as caught:
        open_channel(make_spec(control, 2, 0), {}, None, 2.0)
    stranger.join()
    assert "did not prove to be a worker's, from 127.0.0.1." in caught.value.hint


# A stranger in the chief's place -----------------------------------------------------------------


@contextmanager
def false_chief(talk):
    """Something that listens where the chief should, and says something to the first who comes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run():
        connection, _ = listener.accept()
        talk(connection)
        connection.close()
        listener.close()

    thread = threading.Thread(target=run)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    thread.join(PATIENCE_S)


def refuse_chief(talk, words, limit_s=1.0, timeout_s=5.0):
    """No worker joins what talks in the chief's place."""
    with false_chief(talk) as control, pytest.raises(ClusterError, match=words):
        open_channel(make_spec(control, 2, 1, timeout_s), {}, None, limit_s)


def test_a_chief_that_falls_silent_is_not_waited_for():
    def talk(connection):
        chief = Peer(connection, SECRET, CHIEF)
        assert chief.hear().kind == protocol.HELLO
        chief.send(protocol.BEAT)
        assert chief.hear() is None

    refuse_chief(talk, "has not been found .*: it has not decided", 0.4, timeout_s=0.5)


@pytest.mark.parametrize("kind", [protocol.RESULT, protocol.CALL, "no kind"])
def test_a_chief_that_answers_a_hello_with_something_else_is_none(kind):
    def talk(connection):
        chief = Peer(connection, SECRET, CHIEF)
        assert chief.hear().kind == protocol.HELLO
        chief.send(kind)
        assert chief.hear() is None

    refuse_chief(talk, "what answers there is no chief", 0.05)


@pytest.mark.parametrize("secret", [b"", b"what nobody here shares"])
def test_values_of_a_stranger_in_the_chiefs_place_reach_no_worker(secret):
    def talk(connection):
        chief = Peer(connection, secret, CHIEF)
        chief.send(protocol.WELCOME)
        chief.send(protocol.RESULT, {"number": 0}, [b'{"a":1}'])
        assert chief.hear() is None

    refuse_chief(talk, "has not been found")


def test_plain_messages_of_a_stranger_in_the_chiefs_place_are_none():
    def talk(connection):
        connection.sendall(
            say(protocol.BEAT, {}) + say(protocol.WELCOME, {}) + say(protocol.RESULT, {})
        )
        time.sleep(0.3)

    refuse_chief(talk, "has not been found")


# After all have come -----------------------------------------------------------------------------


@contextmanager
def odd_worker(timeout_s=2.0):
    """A chief at work, and a worker in the test's hands who knows the secret."""
    control, faults = free_address(), []

    def run():
        with open_channel(make_spec(control, 2, 0, timeout_s), {}, None, 20) as channel:
            try:
                channel.exchange("epoch", {"index": 0})
            except ClusterError as error:
                faults.append(error.message)

    thread = threading.Thread(target=run)
    thread.start()
    worker = Peer(connect(control))
    worker.greet(1, 2)
    assert worker.hear().kind == protocol.WELCOME
    yield worker, faults
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    worker.close()


NO_MESSAGE = ["Worker 2 (127.0.0.1:2002) sent what is no message of this program."]


NONSENSE = {
    "NaN": (protocol.CALL, b'{"number": 0, "place": "x", "limit_s": NaN}'),
    "a negative limit": (protocol.CALL, b'{"number": 0, "place": "x", "limit_s": -1.0}'),
    "no limit": (protocol.CALL, b'{"number": 0, "place": "x"}'),
    "true for a worker": (protocol.FAULT, b'{"worker": true, "reason": "has ended"}'),
    "4300 digits": (protocol.FAULT, b'{"worker": 1' + b"0" * 4298 + b', "reason": "has ended"}'),
    "NaN for a worker": (protocol.FAULT, b'{"worker": NaN, "reason": "has ended"}'),
    "a number for a reason": (protocol.FAULT, b'{"worker": 1, "reason": 7}'),
    "an infinite rest": (protocol.BEAT, b'{"rests": Infinity}'),
    "a welcome": (protocol.WELCOME, b"{}"),
    "no kind": ("no kind", b"{}"),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_of_a_worker_is_told_and_ends_the_work(what):
    with odd_worker() as (worker, faults):
        worker.send(*NONSENSE[what])
    assert faults == NO_MESSAGE


def test_64_gib_that_are_announced_take_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with odd_worker() as (worker, faults):
        worker.send_record(b"{}", b"x" * 10**6, announced=2**35)
        time.sleep(0.3)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        worker.connection.shutdown(socket.SHUT_WR)
    assert faults == ["Worker 2 (127.0.0.1:2002) has ended."]
    assert grown < 2**17  # KiB: 128 MiB


def test_silence_after_a_rest_ends_too(monkeypatch):
    monkeypatch.setattr(members, "REST_LIMIT_S", 1.5)
    with odd_worker(timeout_s=1.0) as (worker, faults):
        worker.send(protocol.BEAT, {"rests": True})
    assert faults == ["Worker 2 (127.0.0.1:2002) has not answered for 1.5 s."]


def test_a_bit_that_is_changed_on_the_way_is_noticed():
    control = free_address()
    with recorded(control, spoil_after=1000) as (front, _):
        specs = [make_spec(control, 2, 0), make_spec(front, 2, 1)]
        told = join(specs, lambda channel: [channel.exchange("e", {}) for _ in range(1000)])
    assert all(isinstance(one, ClusterError) for one in told)
    assert "sent what is no message of this program" in told[0].message, told
