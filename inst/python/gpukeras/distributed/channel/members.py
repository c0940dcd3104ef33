"""One worker's end of the control channel: all its connections, in one event loop.

It joins the cluster, sends heartbeats, detects silent workers, and carries calls. All of it runs in
the loop of the channel's thread, so its state has one writer.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpukeras.distributed.channel.collectives import Call, Rounds, parse_call
from gpukeras.distributed.channel.connection import LAST_WORD_S, Connection, finish_connections
from gpukeras.distributed.channel.errors import Fault, explain_fault, parse_fault
from gpukeras.distributed.channel.protocol import (
    BEAT,
    BYE,
    CALL,
    FAULT,
    RESULT,
    AuthenticationError,
    Message,
)
from gpukeras.distributed.channel.rendezvous import JoinGate, beat_interval, reach_chief
from gpukeras.distributed.cluster_config import ClusterSpec

CHIEF = 0
REST_LIMIT_S = 86400.0  # silence after which a resting worker is lost too: a day


class Clock:
    """A clock that counts the seconds during which this thread was awake.

    While a computer sleeps, a process is stopped or the Python lock is held, messages of the other
    workers wait in the socket: that time must not count as their silence.

    Args:
        longest_s: Most seconds that one gap between two ticks counts.
    """

    def __init__(self, longest_s: float) -> None:
        """Starts at 0."""
        self.now = 0.0
        self._longest_s = longest_s
        self._seen = math.nan

    def tick(self, real: float) -> float:
        """Returns the awake time, given the time of the real clock."""
        if not math.isnan(self._seen):
            self.now += min(max(0.0, real - self._seen), self._longest_s)
        self._seen = real
        return self.now


class Member(ABC):
    """A worker's end of the channel, without the parts in which the chief and the others differ.

    Args:
        spec: The cluster, and the index of this worker.
        on_loss: Called once with a sentence, in the loop's thread, when the collective work cannot
            continue.

    Attributes:
        fault: The first fault, which is permanent, or None.
        note: A sentence about how the workers joined, or "".
    """

    def __init__(self, spec: ClusterSpec, on_loss: Callable[[str], None] | None) -> None:
        """Joins nothing yet."""
        self.fault: Fault | None = None
        self.note = ""
        self._spec = spec
        self._on_loss = on_loss
        self._beat_s = beat_interval(spec.timeout_s)
        self._clock = Clock(max(2 * self._beat_s, spec.timeout_s / 4))
        self._connections: dict[int, Connection] = {}  # by the worker at the other end
        self._tasks: list[asyncio.Task[None]] = []
        self._resting: set[int] = set()
        self._at_rest = False
        self._is_leaving = False
        self._results: deque[asyncio.Future[list[Any] | None]] = deque()  # of calls, in order
        self._ended = asyncio.Event()  # a fault, or all have finished: nothing to wait for

    # What the channel asks for.

    async def join(self, description: Mapping[str, Any], limit_s: float) -> None:
        """Waits until all workers have joined.

        Raises:
            ClusterError: if a worker differs from the chief, joins twice or does not join.
        """
        self._connections = await self._meet(description, limit_s)
        self._start(self._beat())
        for worker, connection in self._connections.items():
            connection.trust(self._spec.timeout_s)
            self._start(self._listen(worker, connection))

    async def call(self, call: Call) -> list[Any] | None:
        """Makes a collective call; returns the parts of all workers, None if none will arrive."""
        if self._ended.is_set():
            return None
        result = asyncio.get_running_loop().create_future()
        self._results.append(result)
        self._send_call(call)
        return await result

    async def set_rest(self, at_rest: bool) -> None:
        """Announces whether this worker rests, so that its silence does not count."""
        if at_rest != self._at_rest:
            self._at_rest = at_rest
            self._send_all(BEAT, rests=at_rest)
            await asyncio.sleep(1e-6)  # connections write in the loop's next turn

    async def wait_ended(self, limit_s: float) -> None:
        """Waits up to `limit_s` seconds until there is nothing left to wait for."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), limit_s)

    async def leave(self, reason: str, wait_s: float) -> None:
        """Leaves the cluster, and stops the loop; the others learn why, unless all have finished.

        Args:
            reason: Follows this worker's name.
            wait_s: Seconds to wait until all others have finished too.
        """
        self._is_leaving = True
        try:
            if wait_s > 0:
                self._say_bye()
                await self.wait_ended(wait_s)
        finally:  # after an interrupt too
            self._declare(Fault(self._spec.index, reason))
            self._start(self._end())

    # Methods in which the chief and the other workers differ.

    @abstractmethod
    async def _meet(self, description: Mapping[str, Any], limit_s: float) -> dict[int, Connection]:
        """Joins; returns the connections by the index of the worker at the other end."""

    @abstractmethod
    def _send_call(self, call: Call) -> None:
        """Makes this worker's part of a call."""

    @abstractmethod
    def _say_bye(self) -> None:
        """Tells the others that this worker has finished."""

    @abstractmethod
    def _take(self, worker: int, message: Message) -> None:
        """Handles a received message."""

    def _lose(self, worker: int, reason: str) -> None:
        """Handles the loss of the worker at the other end of a connection."""
        self._declare(Fault(worker, reason))

    def _find_overdue(self, now: float) -> Fault | None:
        """Returns the fault of a worker that is overdue; only the chief knows."""
        return None

    # What both do.

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._check_task)
        self._tasks.append(task)

    def _check_task(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            text = f"lost its channel: {type(error).__name__}: {error}"
            self._declare(Fault(self._spec.index, text))

    async def _end(self) -> None:
        await finish_connections([*self._connections.values()], LAST_WORD_S)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        asyncio.get_running_loop().stop()

    async def _listen(self, worker: int, connection: Connection) -> None:
        while (message := await connection.receive()) is not None:
            try:
                if message.kind != BEAT:
                    self._take(worker, message)
                elif message.values.get("rests"):
                    self._resting.add(worker)
                else:
                    self._resting.discard(worker)
            except AuthenticationError:
                connection.stranger = True
                break
        connection.abort()
        del self._connections[worker]
        self._lose(worker, connection.explain_end(self._spec.timeout_s))

    async def _beat(self) -> None:
        self._clock.tick(time.monotonic())
        while True:
            before = self._clock.now
            await asyncio.sleep(self._beat_s)
            now = self._clock.tick(time.monotonic())
            for worker, connection in list(self._connections.items()):
                # Bytes on their way are a sign of life; a resting worker reads none.
                if not connection.waiting and worker not in self._resting:
                    connection.send(BEAT, rests=self._at_rest)
                self._judge_silence(worker, connection, now - before)
            if fault := self._find_overdue(now):
                self._declare(fault)

    def _judge_silence(self, worker: int, connection: Connection, passed_s: float) -> None:
        timeout_s = self._spec.timeout_s
        limit_s = REST_LIMIT_S if worker in self._resting else timeout_s
        connection.silent_s += passed_s
        if connection.silent_s > max(limit_s, timeout_s):
            connection.silent = True
            self._lose(worker, f"has not answered for {limit_s:g} s")

    def _send_all(self, kind: str, parts: Sequence[Any] = (), **values: Any) -> None:
        for connection in self._connections.values():
            connection.send(kind, parts, **values)

    def _end_call(self, parts: list[Any] | None) -> None:
        # A call that was interrupted has a result as well, which nobody waits for.
        if self._results and not (result := self._results.popleft()).done():
            result.set_result(parts)

    def _finish(self) -> None:
        self._ended.set()
        while self._results:
            self._end_call(None)

    def _declare(self, fault: Fault) -> None:
        # The fault is sent first, because `on_loss` may take long. A chief that was stopped learns
        # by it on waking that the others have continued without it.
        if not self._ended.is_set():
            self._send_all(FAULT, worker=fault.worker, reason=fault.reason)
            self._record(fault)

    def _record(self, fault: Fault) -> None:
        if self._ended.is_set():
            return
        self.fault = fault
        self._finish()
        if self._on_loss is not None and not self._is_leaving:
            with suppress(Exception):  # every call of the channel raises the fault itself
                self._on_loss(explain_fault(fault, self._spec.workers, self._spec.index).message)


class Worker(Member):
    """The end of worker 1, 2, ...: one connection, to the chief."""

    async def _meet(self, description: Mapping[str, Any], limit_s: float) -> dict[int, Connection]:
        return {CHIEF: await reach_chief(self._spec, description, limit_s)}

    def _send_call(self, call: Call) -> None:
        self._send_all(CALL, [call.data], place=call.place, limit_s=call.limit_s)

    def _say_bye(self) -> None:
        self._send_all(BYE)

    def _take(self, worker: int, message: Message) -> None:
        size = len(self._spec.workers)
        if message.kind == RESULT and len(message.parts) == size:
            self._end_call(list(message.parts))
        elif message.kind == FAULT:
            self._record(parse_fault(message.values, size))
        elif message.kind == BYE:
            self._finish()
        else:
            raise AuthenticationError("a message that no chief sends")


class Chief(Member):
    """Worker 0's end: a connection to every other worker; collects all calls, and decides."""

    def __init__(self, spec: ClusterSpec, on_loss: Callable[[str], None] | None) -> None:
        """Starts without calls; no worker has left."""
        super().__init__(spec, on_loss)
        self._rounds = Rounds(len(spec.workers))
        self._left: set[int] = set()  # workers that have finished

    async def _meet(self, description: Mapping[str, Any], limit_s: float) -> dict[int, Connection]:
        if len(self._spec.workers) == 1:
            return {}
        gate = JoinGate(self._spec, description, limit_s)
        connections = await gate.admit_all()
        self.note = gate.explain_strangers()
        return connections

    def _send_call(self, call: Call) -> None:
        self._take_call(CHIEF, call)

    def _say_bye(self) -> None:
        self._take_bye(CHIEF)

    def _take(self, worker: int, message: Message) -> None:
        if message.kind == CALL:
            self._take_call(worker, parse_call(message))
        elif message.kind == BYE:
            self._take_bye(worker)
        elif message.kind == FAULT:
            self._declare(parse_fault(message.values, len(self._spec.workers)))
        else:
            raise AuthenticationError("a message that only the chief sends")

    def _take_call(self, worker: int, call: Call) -> None:
        self._rounds.add(worker, call, self._clock.tick(time.monotonic()))
        while calls := self._rounds.complete():
            parts = [call.data for call in calls]
            self._send_all(RESULT, parts)
            self._end_call(parts)
        if fault := self._rounds.mismatch():
            self._declare(fault)
        self._check_left()

    def _take_bye(self, worker: int) -> None:
        self._left.add(worker)
        if len(self._left) < len(self._spec.workers):
            self._check_left()
            return
        self._send_all(BYE)
        self._finish()

    def _check_left(self) -> None:
        # Calls that wait for a finished worker would wait for ever.
        gone = [worker for worker in self._rounds.missing() if worker in self._left]
        if gone:
            self._declare(Fault(gone[0], "has left"))

    def _lose(self, worker: int, reason: str) -> None:
        finished = worker in self._left and reason == "has ended"
        self._declare(Fault(worker, "has left" if finished else reason))

    def _find_overdue(self, now: float) -> Fault | None:
        return self._rounds.overdue(now)
