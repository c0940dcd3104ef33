import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.distributed.channel import collectives
from gpukeras.distributed.channel.errors import Fault
from gpukeras.distributed.channel.protocol import CALL, AuthenticationError, Message


def call(place='"epoch"', limit_s=None, data=b""):
    return collectives.Call(place, limit_s, data)


def message(parts=(b"",), **values):
    return Message(CALL, {"place": '"epoch"', "limit_s": None, **values}, parts)


@settings(max_examples=50)
@given(
    st.builds(
        collectives.Call,
        st.text(max_size=20),
        st.floats(0, allow_infinity=False) | st.none(),
        st.binary(max_size=50),
    )
)
def test_calls_travel(given_call):
    values = {"place": given_call.place, "limit_s": given_call.limit_s}
    assert collectives.parse_call(message([given_call.data], **values)) == given_call


@pytest.mark.parametrize(
    "values",
    [
        *(
            {"limit_s": limit_s}
            for limit_s in (math.nan, -1.0, -math.inf, math.inf, True, "1", 10**400)
        ),
        *({"place": place} for place in (None, 7, ["epoch"])),
        *({"parts": parts} for parts in ((), (b"", b""))),
    ],
)
def test_what_is_no_call_is_refused(values):
    assert collectives.parse_call(message()) == call()
    with pytest.raises(AuthenticationError):
        collectives.parse_call(message(**values))


def test_calls_without_end_are_refused():
    rounds = collectives.Rounds(2)
    for _ in range(collectives.AHEAD):
        rounds.add(1, call(), 0.0)
    with pytest.raises(AuthenticationError):
        rounds.add(1, call(), 0.0)


def test_a_round_is_complete_when_all_have_called():
    rounds = collectives.Rounds(3)
    for worker, missing in ((2, [0, 1]), (0, [1])):
        rounds.add(worker, call(data=bytes([worker])), 0.0)
        assert rounds.complete() is None
        assert rounds.missing() == missing
    rounds.add(1, call(data=b"\1"), 0.0)
    assert [c.data for c in rounds.complete()] == [b"\0", b"\1", b"\2"]
    assert rounds.complete() is None
    assert rounds.missing() == []


def test_a_worker_may_be_a_call_ahead():
    rounds = collectives.Rounds(2)
    rounds.add(1, call("a"), 0.0)
    rounds.add(1, call("b"), 0.0)
    rounds.add(0, call("a"), 0.0)
    assert [c.place for c in rounds.complete()] == ["a", "a"]
    assert rounds.missing() == [0]


@pytest.mark.parametrize(
    ("calls", "fault"),
    [
        ({0: call("a"), 2: call("b")}, Fault(2, "is at b where the chief is at a")),
        ({1: call("a"), 2: call("b")}, Fault(2, "is at b where worker 2 is at a")),
        (
            {0: call('"epoch"'), 1: call("a gathering")},
            Fault(1, 'is at a gathering where the chief is at "epoch"'),
        ),
        ({0: call("a"), 1: call("a")}, None),
        ({}, None),
    ],
)
def test_workers_at_different_places(calls, fault):
    rounds = collectives.Rounds(3)
    for worker, given_call in calls.items():
        rounds.add(worker, given_call, 0.0)
    assert rounds.mismatch() == fault


def test_who_waits_too_long_names_the_first_that_is_missing():
    rounds = collectives.Rounds(3)
    rounds.add(0, call(), 1.0)
    rounds.add(2, call(limit_s=2.0), 5.0)
    assert rounds.overdue(7.0) is None
    assert rounds.overdue(7.1) == Fault(1, 'has not come to "epoch" for 2 s')


def test_nobody_is_overdue_where_nobody_waits():
    assert collectives.Rounds(2).overdue(1e9) is None
