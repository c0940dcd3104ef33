"""The chief's side of a channel: it collects all calls, and decides which worker is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpukeras.distributed.channel.authentication import AuthenticationError
from gpukeras.distributed.channel.collectives import (
    BROADCAST,
    Call,
    Rounds,
    pack_result,
    parse_call,
)
from gpukeras.distributed.channel.errors import Fault, parse_fault
from gpukeras.distributed.channel.heartbeat import HeartbeatThread
from gpukeras.distributed.channel.protocol import Frame, FrameKind
from gpukeras.distributed.channel.transport import Link

CHIEF = 0


class Coordinator(HeartbeatThread):
    """Worker 0's channel: a link to every other worker.

    Args:
        workers: All addresses.
        timeout_s: Silence after which a worker is lost.
        links: Connections to workers 1, 2, ...
        on_loss: See `HeartbeatThread`.
    """

    def __init__(
        self,
        workers: Sequence[str],
        timeout_s: float,
        links: dict[int, Link],
        on_loss: Callable[[str], None] | None = None,
    ) -> None:
        """Starts without calls; no worker has left."""
        super().__init__(workers, CHIEF, timeout_s, links, on_loss)
        self._rounds = Rounds(len(workers))
        self._left: set[int] = set()  # workers that have finished

    def call(self, call: Call) -> None:
        """Adds the chief's own part of a round."""
        self.post(lambda: self._take_call(CHIEF, call))

    def _start_leaving(self) -> None:
        self._leaving = True
        self._take_bye(CHIEF)

    def _leave(self, reason: str) -> None:
        self._leaving = True
        self._declare(Fault(CHIEF, reason))
        self._end()

    def _take(self, worker: int, frame: Frame) -> None:
        if frame.kind is FrameKind.CALL:
            self._take_call(worker, parse_call(frame.body))
        elif frame.kind is FrameKind.BYE:
            self._take_bye(worker)
        elif frame.kind is FrameKind.FAIL:
            self._declare(parse_fault({**frame.record(), "worker": worker}, len(self.workers)))
        elif frame.kind is FrameKind.FAULT:
            self._declare(parse_fault(frame.record(), len(self.workers)))
        else:
            raise AuthenticationError("a message that only the chief sends")

    def _take_call(self, worker: int, call: Call) -> None:
        self._rounds.add(worker, call, self._clock.now)
        while calls := self._rounds.complete():
            self._answer(calls)
        if fault := self._rounds.mismatch():
            self._declare(fault)
        self._check_left()

    def _answer(self, calls: Sequence[Call]) -> None:
        one = calls[CHIEF].operation == BROADCAST
        parts = [call.data for call in (calls[:1] if one else calls)]
        for worker, link in self._links.items():
            link.send(FrameKind.RESULT, *pack_result(calls[worker].number, parts))
        self.mailbox.put_result(calls[CHIEF].number, [memoryview(part) for part in parts])

    def _take_bye(self, worker: int) -> None:
        self._left.add(worker)
        if len(self._left) < len(self.workers):
            self._check_left()
            return
        self._send(self._links.values(), FrameKind.OVER, {})
        self.mailbox.put_over()

    def _check_left(self) -> None:
        # Calls that wait for a finished worker would wait for ever.
        gone = [worker for worker in self._rounds.missing() if worker in self._left]
        if gone:
            self._declare(Fault(gone[0], "has left"))

    def _lose(self, worker: int, reason: str) -> None:
        finished = worker in self._left and reason == "has ended"
        self._declare(Fault(worker, "has left" if finished else reason))

    def _declare(self, fault: Fault) -> None:
        # The fault is sent first, because `on_loss` may take long.
        if self.mailbox.working:
            self._send(self._links.values(), FrameKind.FAULT, fault.record())
            self._note(fault)

    def _tick(self, now: float) -> None:
        if fault := self._rounds.overdue(now):
            self._declare(fault)

    def _wake_s(self, now: float) -> float:
        return self._rounds.wake_s(now) + 0.001 if self.mailbox.working else self._beat_s
