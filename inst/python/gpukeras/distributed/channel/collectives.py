"""Collective calls: what each worker sent, and whether all workers made the same call."""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from gpukeras.distributed.channel.authentication import AuthenticationError
from gpukeras.distributed.channel.errors import Fault

EXCHANGE, BROADCAST, GATHER = range(3)
AHEAD = 64  # calls of one worker that may wait for the others; interrupted calls put it ahead
CALL_FORM = struct.Struct("!QBdH")  # number, operation, limit in s, bytes of the kind
_RESULT = struct.Struct("!QI")  # number, parts
_LENGTH = struct.Struct("!Q")


@dataclass(frozen=True)
class Call:
    """One worker's part of a collective call.

    Args:
        number: The number of the call, from 0.
        operation: EXCHANGE, BROADCAST or GATHER.
        kind: The purpose of an exchange, such as "epoch"; "" for other operations.
        limit_s: Seconds to wait for the others; infinite for as long as they live.
        data: The bytes that the worker sends.
    """

    number: int
    operation: int
    kind: str
    limit_s: float
    data: bytes | memoryview

    @property
    def place(self) -> str:
        """The worker's place in its program, for messages."""
        return (f'"{self.kind}"', "a broadcast", "a gathering")[self.operation]


def pack_call(call: Call) -> list[bytes | memoryview]:
    """Packs a call for sending."""
    kind = call.kind.encode()
    return [CALL_FORM.pack(call.number, call.operation, call.limit_s, len(kind)), kind, call.data]


def parse_call(body: bytearray) -> Call:
    """Parses a received call; its data is a view of `body`.

    Raises:
        AuthenticationError: if it is no call.
    """
    view = memoryview(body)
    try:
        number, operation, limit_s, length = CALL_FORM.unpack_from(view)
        kind = bytes(view[CALL_FORM.size : CALL_FORM.size + length]).decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise AuthenticationError("a call that is none") from error
    known = operation in (EXCHANGE, BROADCAST, GATHER) and limit_s >= 0  # false for NaN
    if not known or CALL_FORM.size + length > len(view):
        raise AuthenticationError("a call that is none")
    return Call(number, operation, kind, limit_s, view[CALL_FORM.size + length :])


def pack_result(number: int, parts: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Packs the result of a call, the parts of all workers, for sending."""
    lengths = b"".join(_LENGTH.pack(len(part)) for part in parts)
    return [_RESULT.pack(number, len(parts)) + lengths, *parts]


def parse_result(body: bytearray, size: int) -> tuple[int, list[memoryview]]:
    """Returns the number of a call, and the parts of all `size` workers as views of `body`.

    Raises:
        AuthenticationError: if it is no result.
    """
    view = memoryview(body)
    try:
        number, count = _RESULT.unpack_from(view)
        if count not in (1, size):  # 1 for a broadcast
            raise AuthenticationError("a result of others")
        lengths = [
            _LENGTH.unpack_from(view, _RESULT.size + _LENGTH.size * part)[0]
            for part in range(count)
        ]
    except struct.error as error:
        raise AuthenticationError("a result that is none") from error
    start = _RESULT.size + _LENGTH.size * count
    if start + sum(lengths) != len(view):
        raise AuthenticationError("a result that is none")
    parts = []
    for length in lengths:
        parts.append(view[start : start + length])
        start += length
    return number, parts


class Rounds:
    """The calls that the chief has received and not yet answered; a round is one call per worker.

    A worker may be ahead by some calls: those that were interrupted while it waited for the others.

    Args:
        size: Number of workers.
    """

    def __init__(self, size: int) -> None:
        """Starts without calls."""
        self._calls: list[deque[tuple[float, Call]]] = [deque() for _ in range(size)]

    def add(self, worker: int, call: Call, now: float) -> None:
        """Adds a worker's call that arrived at `now`.

        Args:
            worker: The worker's number.
            call: Its call.
            now: The time of arrival, in seconds.

        Raises:
            AuthenticationError: if it is further ahead than a worker can be.
        """
        if len(self._calls[worker]) >= AHEAD:
            raise AuthenticationError("calls without end")
        self._calls[worker].append((now, call))

    def missing(self) -> list[int]:
        """Returns the workers that others wait for."""
        absent = [worker for worker, calls in enumerate(self._calls) if not calls]
        return absent if len(absent) < len(self._calls) else []

    def complete(self) -> list[Call] | None:
        """Removes and returns a complete round, in order of workers; None if there is none."""
        if not all(self._calls) or self.mismatch():
            return None
        return [calls.popleft()[1] for calls in self._calls]

    def mismatch(self) -> Fault | None:
        """Returns the first worker whose call differs from that of the workers before it."""
        first = None
        for worker, calls in enumerate(self._calls):
            if not calls:
                continue
            call = calls[0][1]
            if first is None:
                first, before = call, worker
            elif (call.operation, call.kind) != (first.operation, first.kind):
                other = "the chief" if before == 0 else f"worker {before + 1}"
                return Fault(worker, f"is at {call.place} where {other} is at {first.place}")
        return None

    def overdue(self, now: float) -> Fault | None:
        """Returns the first worker that another has waited for longer than its limit."""
        for calls in self._calls:
            if calls and now - calls[0][0] > calls[0][1].limit_s and (absent := self.missing()):
                call = calls[0][1]
                return Fault(absent[0], f"has not come to {call.place} for {call.limit_s:g} s")
        return None

    def wake_s(self, now: float) -> float:
        """Returns the seconds until a call may be overdue; infinite if none can."""
        waits = [calls[0][0] + calls[0][1].limit_s - now for calls in self._calls if calls]
        return max(0.0, min(waits, default=math.inf))
