import pytest

from gpukeras.core.errors import DataError
from gpukeras.distributed.channel import errors
from gpukeras.distributed.channel.protocol import AuthenticationError

WORKERS = ("a:1", "b:2", "c:3")


@pytest.mark.parametrize(
    ("worker", "own", "message"),
    [
        (1, 0, "Worker 2 (b:2) has ended."),
        (0, 1, "The chief, worker 1 (a:1), has ended."),
        (1, 1, "This worker, worker 2 (b:2), has ended."),
        (0, 0, "This worker, the chief, worker 1 (a:1), has ended."),
    ],
)
def test_faults_name_the_worker(worker, own, message):
    error = errors.explain_fault(errors.Fault(worker, "has ended"), WORKERS, own)
    assert error.message == message
    assert error.hint
    details = {"worker": worker + 1, "address": WORKERS[worker], "reason": "has ended"}
    assert error.details == details


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DataError("`x` is empty.", hint="Fill it."), "has failed: DataError: `x` is empty"),
        (ValueError("first\nsecond"), "has failed: ValueError: first"),
        (RuntimeError(""), "has failed: RuntimeError"),
        (KeyboardInterrupt(), "was interrupted"),
        (ValueError("x" * 1000), "has failed: ValueError: " + "x" * 200),
        (DataError("x" * 1000), ("has failed: DataError: " + "x" * 1000)[:500]),
        (
            ValueError("Graph execution error:\n\nDetected at node f\nSocket closed"),
            "has failed: ValueError: Socket closed",
        ),
        (
            errors.LostConnectionError("Socket closed"),
            "has left: TensorFlow lost its connection to another worker: Socket closed",
        ),
    ],
)
def test_failures_in_one_line(error, reason):
    assert errors.explain_failure(error) == reason


@pytest.mark.parametrize(
    ("own", "other", "reason"),
    [
        ({"tf": "2.21"}, {"tf": "2.20"}, "has tf 2.20, the chief has 2.21"),
        ({"tf": "2.21"}, {}, "has no tf, the chief has 2.21"),
        ({}, {"tf": "2.20"}, "has tf 2.20, the chief has none"),
        ({"a": 1}, {"a": True}, "has a true, the chief has 1"),
        ({"a": 1}, {"a": "1\x1b"}, "has a 1\\u001b, the chief has 1"),
        ({"a": [1, 2]}, {"a": [1]}, "has a [1], the chief has [1, 2]"),
        ({"h": "0" * 99}, {"h": "1"}, f"has h 1, the chief has {'0' * 57}..."),
    ],
)
def test_differences_in_words(own, other, reason):
    error = errors.explain_difference(2, "c:3", own, other)
    assert error.message == f"Worker 3 (c:3) {reason}."
    assert error.details["reason"] == reason


def test_many_differences_are_counted():
    own = {name: 1 for name in "abcde"}
    error = errors.explain_difference(1, "b:2", own, {name: 2 for name in "abcde"})
    assert error.message.endswith("; c 2, the chief has 1; 2 more differ.")
    assert error.details["differences"] == list("abcde")


@pytest.mark.parametrize("record", [{}, {"a": {"b": [1, {"c": None}]}}, {"a": float("nan")}])
def test_alike_is_no_difference(record):
    assert errors.explain_difference(1, "b:2", record, dict(record)) is None


@pytest.mark.parametrize(
    "record", [{}, {"worker": 3, "reason": "x"}, {"worker": -1, "reason": "x"}, {"worker": 0}]
)
def test_fault_that_names_nobody(record):
    with pytest.raises(AuthenticationError):
        errors.parse_fault(record, 3)


def test_fault_travels():
    assert errors.parse_fault({"worker": 2, "reason": "has left"}, 3) == errors.Fault(2, "has left")
