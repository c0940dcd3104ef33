"""Collective calls: what each worker sent, and whether all workers made the same call."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gpukeras.core.options import is_number
from gpukeras.distributed.channel.errors import Fault
from gpukeras.distributed.channel.protocol import AuthenticationError, Bytes, Message

AHEAD = 64  # calls of one worker that may wait for the others; interrupted calls put it ahead


@dataclass(frozen=True)
class Call:
    """One worker's part of a collective call.

    Args:
        place: The worker's place in its program, for messages; the same on all workers.
        limit_s: Seconds to wait for the others; None for as long as they live.
        data: The bytes that the worker sends.
    """

    place: str
    limit_s: float | None
    data: Bytes


def parse_call(message: Message) -> Call:
    """Parses a received call; its data is a view of the message.

    Raises:
        AuthenticationError: if it is no call.
    """
    place, limit_s = message.values.get("place"), message.values.get("limit_s")
    timed = limit_s is None or (is_number(limit_s) and limit_s >= 0)
    if not timed or not isinstance(place, str) or len(message.parts) != 1:
        raise AuthenticationError("a call that is none")
    return Call(place, limit_s, message.parts[0])


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
        places = {worker: calls[0][1].place for worker, calls in enumerate(self._calls) if calls}
        first = next(iter(places), 0)
        for worker, place in places.items():
            if place != places[first]:
                other = "the chief" if first == 0 else f"worker {first + 1}"
                return Fault(worker, f"is at {place} where {other} is at {places[first]}")
        return None

    def overdue(self, now: float) -> Fault | None:
        """Returns the first worker that another has waited for longer than its limit."""
        absent = self.missing()
        for arrived, call in (calls[0] for calls in self._calls if calls):
            if absent and call.limit_s is not None and now - arrived > call.limit_s:
                return Fault(absent[0], f"has not come to {call.place} for {call.limit_s:g} s")
        return None
