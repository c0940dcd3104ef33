"""A worker's side of a channel: one link, to the chief."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpukeras.distributed.channel.authentication import AuthenticationError
from gpukeras.distributed.channel.collectives import Call, pack_call, parse_result
from gpukeras.distributed.channel.errors import Fault, parse_fault
from gpukeras.distributed.channel.heartbeat import HeartbeatThread
from gpukeras.distributed.channel.protocol import Frame, FrameKind
from gpukeras.distributed.channel.transport import Link

CHIEF = 0


class Worker(HeartbeatThread):
    """The channel of worker 1, 2, ...

    Args:
        workers: All addresses.
        own: This worker's number, from 0.
        timeout_s: Silence after which the chief is lost.
        link: The connection to the chief.
        on_loss: See `HeartbeatThread`.
    """

    def __init__(
        self,
        workers: Sequence[str],
        own: int,
        timeout_s: float,
        link: Link,
        on_loss: Callable[[str], None] | None = None,
    ) -> None:
        """Keeps one link, to the chief."""
        super().__init__(workers, own, timeout_s, {CHIEF: link}, on_loss)

    def call(self, call: Call) -> None:
        """Sends this worker's part of a round."""
        self.post(lambda: self._say(FrameKind.CALL, *pack_call(call)))

    def _start_leaving(self) -> None:
        self._leaving = True
        self._say(FrameKind.BYE)

    def _leave(self, reason: str) -> None:
        self._leaving = True
        if self.mailbox.working:
            self._send(self._links.values(), FrameKind.FAIL, {"reason": reason})
            self._note(Fault(self.own, reason))
        self._end()

    def _say(self, kind: FrameKind, *parts: bytes | memoryview) -> None:
        for link in self._links.values():
            link.send(kind, *parts)

    def _take(self, worker: int, frame: Frame) -> None:
        if frame.kind is FrameKind.RESULT:
            self.mailbox.put_result(*parse_result(frame.body, len(self.workers)))
        elif frame.kind is FrameKind.FAULT:
            self._note(parse_fault(frame.record(), len(self.workers)))
        elif frame.kind is FrameKind.OVER:
            self.mailbox.put_over()
        else:
            raise AuthenticationError("a message that no chief sends")

    def _tick(self, now: float) -> None:
        """Does nothing: only the chief knows which workers are overdue."""

    def _lose(self, worker: int, reason: str) -> None:
        if self.mailbox.working:
            # A chief that was stopped learns on waking that the others have continued without it.
            self._send(self._links.values(), FrameKind.FAULT, Fault(CHIEF, reason).record())
            self._note(Fault(CHIEF, reason))
