"""Strangers at the control channel: real connections that say what no worker of theirs says.

Whatever they send, and whenever: the workers who know the secret start, train and end as if nobody
else had been there.
"""

import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import threading
import time
from contextlib import contextmanager, suppress

import channels
import pytest
from channels import PATIENCE_S, SECRET, Peer, free_address, make_spec, run_threads

from gpukeras.distribution import watching
from gpukeras.distribution.calls import CALL_FORM, GATHER
from gpukeras.distribution.channel import open_channel
from gpukeras.distribution.credentials import Credentials
from gpukeras.distribution.frames import HEADER, MAGIC, FrameKind
from gpukeras.distribution.seals import CHIEF, WORKER, StrangerError
from gpukeras.errors import ClusterError

JOINED = [[{"index": 0}, {"index": 1}]] * 2


opened = []


@pytest.fixture(autouse=True)
def close_all():
    yield
    while opened:
        opened.pop().close()


def connect(control):
    opened.append(channels.connect(control))
    return opened[-1]


def say(kind, record):
    """A message of the first protocol, which had no tags."""
    body = record if isinstance(record, bytes) else json.dumps(record).encode()
    return HEADER.pack(MAGIC, kind, len(body)) + body


def hello(index, **alike):
    workers = list(make_spec("127.0.0.1:1", 2, 1).workers)
    return {"index": index, "alike": {"protocol": 1, "workers": workers, **alike}}


LONG = b'{"index": ' + b"9" * 4300 + b', "alike": {}}'
PLAIN = {
    "a hello with other versions": say(1, hello(1, tensorflow="0.1")),
    "a hello of the chief's place": say(1, hello(0)),
    "a hello of no place": say(1, hello(7)),
    "an index of 4300 digits": say(1, LONG),
    "true for an index": say(1, hello(True)),
    "64 GiB announced": HEADER.pack(MAGIC, 1, 2**36) + b"x" * 1000,
    "1 MiB announced": HEADER.pack(MAGIC, 1, 2**20) + b"x" * 1000,
    "a nested record": say(1, b"[" * 10**5),
    "NaN": say(1, b'{"index": NaN, "alike": {}}'),
    "half a greeting": b"GPUK\x02\x02",
}


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
    if attack != "half a greeting":
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
        {"alike": []},
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
            stranger.sendall(b"x" * 10**9)
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


@pytest.mark.parametrize(
    "limit", [b"NaN", b"Infinity", b"1e300", b"9" * 400, b"true", b"-1", b'"long"', b"null"]
)
def test_a_wait_without_an_end_is_not_waited(limit):
    def talk(connection):
        chief = Peer(connection, SECRET, CHIEF)
        assert chief.hear().kind is FrameKind.HELLO
        chief.link.send(FrameKind.WAIT, b'{"limit_s": ' + limit + b"}")
        time.sleep(0.3)

    with false_chief(talk) as control, pytest.raises(ClusterError, match="has not been found"):
        open_channel(make_spec(control, 2, 1), {}, None, 1.0)


@pytest.mark.parametrize("secret", [b"", b"what nobody here shares"])
def test_values_of_a_stranger_in_the_chiefs_place_reach_no_worker(secret):
    def talk(connection):
        chief = Peer(connection, secret, CHIEF)
        for kind, body in (
            (FrameKind.WELCOME, b"{}"),
            (FrameKind.RESULT, b"\0" * 8 + struct.pack("!IQ", 1, 7) + b'{"a":1}'),
        ):
            chief.link.send(kind, body)
        with pytest.raises((AssertionError, StrangerError)):
            assert chief.hear(1.0) is not None

    with false_chief(talk) as control, pytest.raises(ClusterError, match="has not been found"):
        open_channel(make_spec(control, 2, 1), {}, None, 1.0)


def test_plain_messages_of_a_stranger_in_the_chiefs_place_are_none():
    def talk(connection):
        connection.sendall(say(2, {"limit_s": 1e9}) + say(3, {}) + say(7, b"\0" * 20))
        time.sleep(0.3)

    with (
        false_chief(talk) as control,
        pytest.raises(ClusterError, match="has not been found"),
    ):
        open_channel(make_spec(control, 2, 1), {}, None, 1.0)


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
    assert [worker.hear().kind for _ in range(2)] == [FrameKind.WAIT, FrameKind.WELCOME]
    yield worker, faults
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    worker.close()


NO_MESSAGE = ["Worker 2 (127.0.0.1:2002) sent what is no message of this program."]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FrameKind.CALL, CALL_FORM.pack(0, GATHER, float("nan"), 0)),
        (FrameKind.CALL, CALL_FORM.pack(0, GATHER, -1.0, 0)),
        (FrameKind.CALL, CALL_FORM.pack(0, GATHER, 1.0, 2**15) + b"short"),
        (FrameKind.FAULT, b'{"worker": true, "reason": "has ended"}'),
        (FrameKind.FAULT, b'{"worker": 1' + b"0" * 4298 + b', "reason": "has ended"}'),
        (FrameKind.FAULT, b'{"worker": NaN, "reason": "has ended"}'),
        (FrameKind.FAIL, b'{"reason": 7}'),
        (FrameKind.REST, b'{"rests": Infinity}'),
        (FrameKind.WELCOME, b"{}"),
    ],
    ids=["NaN", "negative", "short", "true", "digits", "NaN worker", "number", "rest", "welcome"],
)
def test_nonsense_of_a_worker_is_told_and_ends_the_work(kind, body):
    with odd_worker() as (worker, faults):
        worker.link.send(kind, body)
    assert faults == NO_MESSAGE


def test_64_gib_that_are_announced_take_no_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with odd_worker() as (worker, faults):
        header = HEADER.pack(MAGIC, FrameKind.CALL, 2**36)
        tag = worker.link._seal.sign_header(header)
        worker.link.connection.setblocking(True)
        worker.link.connection.sendall(header + tag + b"x" * 10**6)
        time.sleep(0.3)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        worker.link.connection.shutdown(socket.SHUT_WR)
    assert faults == ["Worker 2 (127.0.0.1:2002) has ended."]
    assert grown < 2**17  # KiB: 128 MiB


def test_silence_after_a_rest_ends_too(monkeypatch):
    monkeypatch.setattr(watching, "REST_LIMIT_S", 1.5)
    with odd_worker(timeout_s=1.0) as (worker, faults):
        worker.link.send_record(FrameKind.REST, {"rests": True})
    assert faults == ["Worker 2 (127.0.0.1:2002) has not answered for 1.5 s."]


def test_a_bit_that_is_changed_on_the_way_is_noticed():
    control = free_address()
    with recorded(control, spoil_after=1000) as (front, _):
        specs = [make_spec(control, 2, 0), make_spec(front, 2, 1)]
        told = join(specs, lambda channel: [channel.exchange("e", {}) for _ in range(1000)])
    assert all(isinstance(one, ClusterError) for one in told)
    assert "sent what is no message of this program" in told[0].message, told


def join(specs, work=None):
    """What each of the workers gets, by threads."""
    outcomes = [None] * len(specs)

    def run(place, spec):
        try:
            with open_channel(spec, {}, None, 20) as channel:
                told = channel.exchange("joined", {"index": spec.index})
                outcomes[place] = work(channel) if work else told
        except Exception as error:
            outcomes[place] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(specs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    return outcomes


def pass_on(source, target, kept, spoil_after):
    with suppress(OSError):
        while data := source.recv(2**16):
            place = spoil_after - len(kept)
            kept.extend(data)
            changed = bytearray(data)
            if 0 <= place < len(data):
                changed[place] ^= 1
            target.sendall(changed)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def recorded(control, spoil_after=-1):
    """Someone between a worker and the chief, who keeps what the worker sends, or changes it."""
    listener = socket.create_server(("127.0.0.1", 0))
    sent, threads = [], []

    def run():
        while True:
            try:
                inner, _ = listener.accept()
            except OSError:
                return
            outer = connect(control)
            opened.append(inner)
            sent.append(bytearray())
            ways = (inner, outer, sent[-1], spoil_after), (outer, inner, bytearray(), -1)
            threads.extend(threading.Thread(target=pass_on, args=way, daemon=True) for way in ways)
            for thread in threads[-2:]:
                thread.start()

    threading.Thread(target=run, daemon=True).start()
    yield f"127.0.0.1:{listener.getsockname()[1]}", sent
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for thread in threads:
        thread.join(5)


# TLS ---------------------------------------------------------------------------------------------


def run_openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def make_authority(folder, name):
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    run_openssl(
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"),
        *("-keyout", str(key), "-out", str(cert)),
    )
    return cert, key


def make_certificate(folder, name, authority, address="IP:127.0.0.1"):
    cert, key, request = (folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
    (folder / f"{name}.ext").write_text(f"subjectAltName={address}\n")
    run_openssl(
        *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
        *("-keyout", str(key), "-out", str(request)),
    )
    run_openssl(
        *("x509", "-req", "-in", str(request), "-days", "2", "-CA", str(authority[0])),
        *("-CAkey", str(authority[1]), "-CAcreateserial", "-out", str(cert)),
        *("-extfile", str(folder / f"{name}.ext")),
    )
    os.chmod(key, 0o600)
    return Credentials(b"", (str(cert), str(key), str(authority[0])))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("there is no program openssl here, which makes certificates")
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = (make_authority(folder, name) for name in ("ours", "theirs"))
    return {
        "worker": make_certificate(folder, "worker", ours),
        "other host": make_certificate(folder, "other", ours, "IP:192.0.2.1"),
        "stranger": make_certificate(folder, "stranger", theirs),
    }


def test_workers_with_certificates_speak_over_tls(certificates):
    def work(channel):
        told = [channel.exchange(f"step {i}", {"of": channel.index}) for i in range(50)]
        assert told == [[{"of": w} for w in range(3)]] * 50
        much = bytes(range(256)) * 2**16
        assert channel.gather(much[: channel.index]) == [much[:w] for w in range(3)]
        return channel.broadcast(much if channel.index == 0 else None) == much

    assert run_threads(3, work, credentials=certificates["worker"], timeout_s=20.0) == [True] * 3


def test_nothing_is_said_in_the_clear_with_tls(certificates):
    control, known = free_address(), certificates["worker"]
    with recorded(control) as (front, sent):
        specs = [make_spec(control, 2, 0, 5.0, known), make_spec(front, 2, 1, 5.0, known)]
        assert join(specs) == JOINED
    assert len(sent[0]) > 100
    assert b"index" not in sent[0]
    assert MAGIC not in sent[0]


def test_strangers_without_a_certificate_of_ours_do_not_end_a_start(certificates):
    control, known = free_address(), certificates["worker"]
    specs = [make_spec(control, 2, index, 5.0, known) for index in range(2)]
    outcomes = []

    def run(spec):
        with open_channel(spec, {}, None, 20) as channel:
            outcomes.append(channel.exchange("joined", {"index": spec.index}))

    chief = threading.Thread(target=run, args=(specs[0],))
    chief.start()
    plain = connect(control)
    plain.sendall(PLAIN["a hello with other versions"])
    spec = make_spec(control, 2, 1, 5.0, certificates["stranger"])
    with pytest.raises(ClusterError, match="has not been found"):
        open_channel(spec, {}, None, 1.0)
    with pytest.raises(ClusterError, match="has not been found"):
        open_channel(make_spec(control, 2, 1), {}, None, 1.0)  # without TLS
    run(specs[1])
    chief.join(PATIENCE_S)
    plain.close()
    assert outcomes == JOINED


@pytest.mark.parametrize("chief", ["stranger", "other host"])
def test_a_chief_without_a_certificate_for_its_address_is_not_believed(certificates, chief):
    control = free_address()
    outcomes = []

    def run():
        with pytest.raises(ClusterError) as caught:
            open_channel(make_spec(control, 2, 0, 5.0, certificates[chief]), {}, None, 2.0)
        outcomes.append(caught.value.message)

    thread = threading.Thread(target=run)
    thread.start()
    with pytest.raises(ClusterError, match="has not been found at 127.0.0.1"):
        open_channel(make_spec(control, 2, 1, 5.0, certificates["worker"]), {}, None, 1.0)
    thread.join(PATIENCE_S)
    assert outcomes == ["Worker 2 (127.0.0.1:2002) has not come within 2 s."]


def test_sides_have_other_numbers():
    assert {CHIEF, WORKER} == {1, 2}
