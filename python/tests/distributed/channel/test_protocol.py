import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.distributed.channel.protocol import (
    BEAT,
    CALL,
    CHIEF,
    HEADER,
    RESULT,
    TAG,
    WORKER,
    AuthenticationError,
    Message,
    MessageReader,
    Seal,
    is_count,
    pack_message,
    parse_body,
)

PARTS = st.lists(st.binary(max_size=40), max_size=4)
VALUES = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)


def make_reader(limit=10**6):
    """A reader that has taken the greeting, its messages, and the seal of who sends to it."""
    chief, worker = Seal(b"shared", CHIEF), Seal(b"shared", WORKER)
    messages = []
    reader = MessageReader(worker, messages.append, limit)
    feed(reader, chief.greeting, [7])
    chief.complete_handshake(worker.greeting)
    return reader, messages, chief


def feed(reader, data, chunks):
    """Gives the reader its bytes in pieces of the given sizes."""
    place = 0
    while place < len(data):
        count = chunks[place % len(chunks)]
        reader.feed(data[place : place + count])
        place += count


def pack(seal, message):
    return b"".join(pack_message(seal, message.kind, message.values, message.parts))


@settings(max_examples=60)
@given(
    messages=st.lists(st.builds(Message, st.sampled_from([BEAT, CALL]), VALUES, PARTS), max_size=4),
    chunks=st.lists(st.integers(1, 100), min_size=1, max_size=3),
)
def test_messages_come_back_however_they_are_cut(messages, chunks):
    reader, taken, seal = make_reader()
    feed(reader, b"".join(pack(seal, message) for message in messages), chunks)
    assert taken == messages


def test_long_messages_come_back():
    reader, taken, seal = make_reader(10**7)
    sent = Message(RESULT, {"a": 1}, [b"short", b"x" * 70000, b"", b"end", b"y" * 3 * 2**20])
    feed(reader, pack(seal, sent), [10**5, 7])
    assert taken == [sent]


@pytest.mark.parametrize("sizes", [(5, 6), (11, 0), (5, 2**63)])
def test_what_is_announced_beyond_the_limit_is_refused(sizes):
    reader, _, seal = make_reader(limit=10)
    header = HEADER.pack(*sizes)
    with pytest.raises(AuthenticationError, match="too long"):
        reader.feed(header + seal.sign(header))


def test_what_no_worker_sends_is_refused():
    reader, _, _ = make_reader()
    with pytest.raises(AuthenticationError, match="without the secret"):
        reader.feed(b"GET / HTTP/1.1\r\n".ljust(HEADER.size + TAG))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_bit_anywhere_is_found(data):
    reader, _, seal = make_reader()
    whole = pack(seal, Message(BEAT, {})) + pack(seal, Message(CALL, {}, [b"x"]))
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(AuthenticationError):
        reader.feed(changed)


def test_messages_before_a_changed_bit_are_taken():
    reader, taken, seal = make_reader()
    with pytest.raises(AuthenticationError):
        reader.feed(pack(seal, Message(BEAT, {})) + bytes(HEADER.size + TAG))
    assert taken == [Message(BEAT, {}, [])]


def test_what_was_said_once_is_not_said_again_nor_to_who_said_it():
    reader, taken, seal = make_reader()
    once = pack(seal, Message(CALL, {}, [b"x"]))
    reader.feed(once)
    with pytest.raises(AuthenticationError):
        reader.feed(once)
    assert len(taken) == 1
    mirror = MessageReader(seal, taken.append)
    with pytest.raises(AuthenticationError):
        mirror.feed(seal.greeting)
    with pytest.raises(AuthenticationError):
        seal.check(once[HEADER.size : HEADER.size + TAG], once[: HEADER.size])


def test_one_meets_neither_oneself_nor_another_protocol():
    seal = Seal(b"", CHIEF)
    later = bytearray(Seal(b"", WORKER).greeting)
    later[4] += 1
    for greeting in (seal.greeting, bytes(later), b"GET / HTTP/1.1\r\n".ljust(40)):
        with pytest.raises(AuthenticationError):
            seal.complete_handshake(greeting)
        assert not seal.ready


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, -1, 3, 10**4299, float("nan")])
def test_what_is_no_count_below_three(value):
    assert not is_count(value, 3)
    assert is_count(2, 3)


@pytest.mark.parametrize(
    "record",
    [
        *(b"", b"[1]", b"{", b"\xff", b"[" * 10**5, b"1" * 4301, b"{}", b"null"),
        b'{"kind": "call", "values": {"a": NaN}, "lengths": []}',
        b'{"kind": "call", "values": {"a": -Infinity}, "lengths": []}',
        b'{"kind": "call", "values": [], "lengths": []}',
        b'{"kind": 7, "values": {}, "lengths": []}',
        b'{"kind": "call", "values": {}, "lengths": {}}',
        b'{"kind": "call", "values": {}, "lengths": [1]}',
    ],
)
def test_record_that_is_none(record):
    with pytest.raises(AuthenticationError):
        parse_body(len(record), memoryview(record))


@pytest.mark.parametrize("lengths", [[], [2], [4], [3, True], [-1, 4], [3.0], ["3"], [2**70]])
def test_parts_of_other_lengths(lengths):
    record = json.dumps({"kind": CALL, "values": {}, "lengths": lengths}).encode()
    with pytest.raises(AuthenticationError):
        parse_body(len(record), memoryview(record + b"abc"))
