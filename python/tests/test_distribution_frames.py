import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.distribution.frames import (
    HEADER,
    MAGIC,
    Frame,
    FrameKind,
    FrameReader,
    StrangerError,
    pack_frame,
    pack_record,
    parse_header,
)

BODIES = st.lists(st.binary(max_size=40), max_size=4)


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
    data = b"".join(bytes(p) for kind, parts in messages for p in pack_frame(kind, *parts))
    expected = [Frame(kind, bytearray(b"".join(parts))) for kind, parts in messages]
    assert feed(FrameReader(), data, chunks) == expected


def test_long_messages_come_back():
    parts = [b"short", b"x" * 70000, b"end", b"y" * 70000]
    data = b"".join(bytes(piece) for piece in pack_frame(FrameKind.RESULT, *parts))
    expected = [Frame(FrameKind.RESULT, bytearray(b"".join(parts)))]
    assert feed(FrameReader(), data, [1000, 7]) == expected


def test_long_parts_are_not_copied():
    part = bytearray(10**5)
    pieces = pack_frame(FrameKind.CALL, b"short", part, b"end")
    assert [piece.nbytes for piece in pieces] == [HEADER.size + 5, 10**5, 3]
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
    with pytest.raises(StrangerError):
        parse_header(header, limit=10)


def test_records_come_back():
    [piece] = pack_record(FrameKind.HELLO, {"index": 1, "alike": {"a": [1.5, None]}})
    [frame] = feed(FrameReader(), bytes(piece), [7])
    assert frame.record() == {"index": 1, "alike": {"a": [1.5, None]}}


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff", b"[" * 10**5])
def test_body_that_is_no_record(body):
    with pytest.raises(StrangerError):
        Frame(FrameKind.HELLO, bytearray(body)).record()
