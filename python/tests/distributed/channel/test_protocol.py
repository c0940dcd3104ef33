import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.distributed.channel.authentication import (
    CHIEF,
    TAG,
    WORKER,
    AuthenticationError,
    Seal,
)
from gpukeras.distributed.channel.protocol import (
    HEADER,
    MAGIC,
    ROOM,
    Frame,
    FrameKind,
    FrameReader,
    is_place,
    pack_frame,
    parse_header,
)

BODIES = st.lists(st.binary(max_size=40), max_size=4)


def meet(secret=b"shared"):
    """Two seals that have met: the chief's and a worker's."""
    chief, worker = Seal(secret, CHIEF), Seal(secret, WORKER)
    chief.complete_handshake(worker.greeting)
    worker.complete_handshake(chief.greeting)
    return chief, worker


def make_reader(limit=10**6):
    """A reader that has taken the greeting, and the seal of who sends to it."""
    chief, worker = Seal(b"shared", CHIEF), Seal(b"shared", WORKER)
    reader = FrameReader(worker, limit)
    assert feed(reader, chief.greeting, [7]) == []
    chief.complete_handshake(worker.greeting)
    return reader, chief


def feed(reader, data, chunks):
    """Gives the reader its bytes in pieces of the given sizes."""
    frames, place = [], 0
    while place < len(data):
        room = reader.room()
        assert len(room)
        count = min(len(room), len(data) - place, chunks[place % len(chunks)])
        room[:count] = data[place : place + count]
        place += count
        frame = reader.took(count)
        frames += [frame] if frame else []
    return frames


@settings(max_examples=60)
@given(
    messages=st.lists(st.tuples(st.sampled_from(FrameKind), BODIES), max_size=4),
    chunks=st.lists(st.integers(1, 100), min_size=1, max_size=3),
)
def test_messages_come_back_however_they_are_cut(messages, chunks):
    reader, seal = make_reader()
    data = b"".join(bytes(p) for kind, parts in messages for p in pack_frame(seal, kind, *parts))
    expected = [Frame(kind, bytearray(b"".join(parts))) for kind, parts in messages]
    assert feed(reader, data, chunks) == expected


def test_long_messages_come_back():
    reader, seal = make_reader(10**7)
    parts = [b"short", b"x" * 70000, b"end", b"y" * 3 * ROOM]
    data = b"".join(bytes(piece) for piece in pack_frame(seal, FrameKind.RESULT, *parts))
    expected = [Frame(FrameKind.RESULT, bytearray(b"".join(parts)))]
    assert feed(reader, data, [10**5, 7]) == expected


def test_long_parts_are_not_copied():
    part = bytearray(10**5)
    pieces = pack_frame(meet()[0], FrameKind.CALL, b"short", part, b"end")
    assert [piece.nbytes for piece in pieces] == [HEADER.size + TAG + 5, 10**5, 3 + TAG]
    part[0] = 7
    assert pieces[1][0] == 7


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\n",
        HEADER.pack(b"GPUX", 5, 0),
        HEADER.pack(MAGIC, 0, 0),
        HEADER.pack(MAGIC, 99, 0),
        HEADER.pack(MAGIC, 5, 11),
        HEADER.pack(MAGIC, 5, 2**63),
    ],
)
def test_what_no_worker_sends_is_refused(header):
    with pytest.raises(AuthenticationError):
        parse_header(header, limit=10)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_bit_anywhere_is_found(data):
    reader, seal = make_reader()
    kinds = (FrameKind.BEAT, FrameKind.CALL)
    whole = b"".join(
        bytes(piece)
        for kind in kinds
        for piece in pack_frame(seal, kind, b"" if kind == 5 else b"x")
    )
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(AuthenticationError):
        feed(reader, bytes(changed), [len(whole)])


def test_no_memory_is_taken_for_what_is_only_announced():
    """Who knows the secret may announce 64 GiB; room is given as bytes come."""
    reader, seal = make_reader(2**36)
    header = HEADER.pack(MAGIC, FrameKind.CALL, 2**36)
    assert feed(reader, header + seal.sign_header(header), [10**3]) == []
    assert len(reader.room()) <= ROOM
    feed(reader, b"x" * (5 * ROOM), [2**16])
    assert len(reader.room()) <= 4 * ROOM


def test_what_was_said_once_is_not_said_again_nor_to_who_said_it():
    chief, worker = meet()
    reader = FrameReader(worker)
    reader._expect(reader._take_header, HEADER.size + TAG)
    one = b"".join(bytes(piece) for piece in pack_frame(chief, FrameKind.CALL, b"x"))
    assert len(feed(reader, one, [len(one)])) == 1
    with pytest.raises(AuthenticationError):
        feed(reader, one, [len(one)])
    own = FrameReader(chief)
    own._expect(own._take_header, HEADER.size + TAG)
    with pytest.raises(AuthenticationError):
        feed(own, one, [len(one)])


def test_one_meets_neither_oneself_nor_another_protocol():
    seal = Seal(b"", CHIEF)
    later = bytearray(Seal(b"", WORKER).greeting)
    later[4] += 1
    for greeting in (seal.greeting, bytes(later), b"GET / HTTP/1.1\r\n".ljust(40)):
        with pytest.raises(AuthenticationError):
            seal.complete_handshake(greeting)
        assert not seal.ready


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, -1, 3, 10**4299, float("nan")])
def test_what_is_no_place_among_three(value):
    assert not is_place(value, 3)
    assert is_place(2, 3)


@pytest.mark.parametrize(
    "body",
    [b"", b"[1]", b"{", b"\xff", b"[" * 10**5, b'{"a": NaN}', b'{"a": -Infinity}', b"1" * 4301],
)
def test_body_that_is_no_record(body):
    with pytest.raises(AuthenticationError):
        Frame(FrameKind.HELLO, bytearray(body)).record()
