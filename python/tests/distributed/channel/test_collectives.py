import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.distributed.channel.collectives import (
    AHEAD,
    BROADCAST,
    EXCHANGE,
    GATHER,
    Call,
    Rounds,
    pack_call,
    pack_result,
    parse_call,
    parse_result,
)
from gpukeras.distributed.channel.errors import Fault
from gpukeras.distributed.channel.protocol import AuthenticationError


def call(kind="epoch", operation=EXCHANGE, limit_s=math.inf, number=0):
    return Call(number, operation, kind, limit_s, b"")


@settings(max_examples=50)
@given(
    st.builds(
        Call,
        st.integers(0, 2**63),
        st.sampled_from([EXCHANGE, BROADCAST, GATHER]),
        st.text(max_size=20),
        st.floats(0) | st.just(math.inf),
        st.binary(max_size=50),
    )
)
def test_calls_travel(given_call):
    assert parse_call(bytearray(b"".join(pack_call(given_call)))) == given_call


@settings(max_examples=50)
@given(st.integers(0, 2**63), st.lists(st.binary(max_size=20), min_size=1, max_size=5))
def test_results_travel(number, parts):
    body = bytearray(b"".join(bytes(piece) for piece in pack_result(number, parts)))
    assert parse_result(body, len(parts)) == (number, parts)
    if len(parts) > 1:
        with pytest.raises(AuthenticationError):
            parse_result(body, len(parts) + 1)


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_bytes_that_are_neither_are_refused_or_parsed(body):
    for parse in (parse_call, lambda given: parse_result(given, 2)):
        try:
            parse(bytearray(body))
        except AuthenticationError:
            continue


@pytest.mark.parametrize("limit_s", [math.nan, -1.0, -math.inf])
def test_a_wait_that_is_no_time_is_refused(limit_s):
    body = bytearray(b"".join(bytes(part) for part in pack_call(call(limit_s=limit_s))))
    with pytest.raises(AuthenticationError):
        parse_call(body)


def test_calls_without_end_are_refused():
    rounds = Rounds(2)
    for number in range(AHEAD):
        rounds.add(1, call(number=number), 0.0)
    with pytest.raises(AuthenticationError):
        rounds.add(1, call(number=AHEAD), 0.0)


@pytest.mark.parametrize("body", [b"", b"\0" * 18, b"\0" * 8 + b"\x07" + b"\0" * 20])
def test_bytes_that_are_no_call(body):
    with pytest.raises(AuthenticationError):
        parse_call(bytearray(body))


def test_a_round_is_complete_when_all_have_called():
    rounds = Rounds(3)
    for worker, missing in ((2, [0, 1]), (0, [1])):
        rounds.add(worker, call(number=worker), 0.0)
        assert rounds.complete() is None
        assert rounds.missing() == missing
    rounds.add(1, call(number=1), 0.0)
    assert [c.number for c in rounds.complete()] == [0, 1, 2]
    assert rounds.complete() is None
    assert rounds.missing() == []


def test_a_worker_may_be_a_call_ahead():
    rounds = Rounds(2)
    rounds.add(1, call("a", number=0), 0.0)
    rounds.add(1, call("b", number=1), 0.0)
    rounds.add(0, call("a"), 0.0)
    assert [c.kind for c in rounds.complete()] == ["a", "a"]
    assert rounds.missing() == [0]


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ({0: call("a"), 2: call("b")}, Fault(2, 'is at "b" where the chief is at "a"')),
        ({1: call("a"), 2: call("b")}, Fault(2, 'is at "b" where worker 2 is at "a"')),
        (
            {0: call("", BROADCAST), 1: call("", GATHER)},
            Fault(1, "is at a gathering where the chief is at a broadcast"),
        ),
        ({0: call("a"), 1: call("a")}, None),
        ({}, None),
    ],
)
def test_workers_at_different_places(calls, fault):
    rounds = Rounds(3)
    for worker, given_call in calls.items():
        rounds.add(worker, given_call, 0.0)
    assert rounds.mismatch() == fault


def test_who_waits_too_long_names_the_first_that_is_missing():
    rounds = Rounds(3)
    rounds.add(0, call(), 1.0)
    rounds.add(2, call(limit_s=2.0), 5.0)
    assert rounds.wake_s(6.0) == 1.0
    assert rounds.overdue(7.0) is None
    assert rounds.overdue(7.1) == Fault(1, 'has not come to "epoch" for 2 s')
    assert rounds.wake_s(9.0) == 0.0


def test_nobody_is_overdue_where_nobody_waits():
    assert Rounds(2).overdue(1e9) is None
    assert Rounds(2).wake_s(0.0) == math.inf
