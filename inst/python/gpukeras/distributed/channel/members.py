"""One worker's thread of the control channel: an event loop that owns all its connections.

It joins the cluster, sends heartbeats, detects silent workers, and carries calls. Its state has one
writer: other threads post functions to the loop, and wait for futures.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYetError
from contextlib import suppress
from typing import Any, TypeVar

from gpukeras.distributed.channel.authentication import AuthenticationError
from gpukeras.distributed.channel.collectives import BROADCAST, Call, Rounds, parse_call
from gpukeras.distributed.channel.connection import (
    LAST_WORD_S,
    Connection,
    explain_end,
    finish_connections,
)
from gpukeras.distributed.channel.errors import Fault, explain_fault, parse_fault
from gpukeras.distributed.channel.protocol import (
    BEAT,
    BYE,
    CALL,
    FAULT,
    RESULT,
    Message,
)
from gpukeras.distributed.channel.rendezvous import (
    beat_interval,
    gather_workers,
    reach_chief,
)
from gpukeras.distributed.cluster_config import ClusterSpec

CHIEF = 0
REST_LIMIT_S = 86400.0  # silence after which a resting worker is lost too: a day
REST_S = 2.0  # seconds that `set_rest()` waits until the announcement is sent
POLL_S = 0.2  # longest delay of an interrupt where waiting for a lock cannot be interrupted
Result = TypeVar("Result")


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
        ended: Set when there is nothing left to wait for: a fault, or all have finished.
        note: A sentence about how the workers joined, or "".
    """

    def __init__(self, spec: ClusterSpec, on_loss: Callable[[str], None] | None = None) -> None:
        """Prepares the thread; `join()` starts it."""
        self.spec = spec
        self.fault: Fault | None = None
        self.ended = threading.Event()
        self.note = ""
        self._on_loss = on_loss
        self._beat_s = beat_interval(spec.timeout_s)
        self._clock = Clock(max(2 * self._beat_s, spec.timeout_s / 4))
        self._connections: dict[int, Connection] = {}
        self._resting: set[int] = set()
        self._at_rest = False
        self._is_leaving = False
        self._results: dict[int, Future[list[Any] | None]] = {}
        self._started = threading.Event()
        self._joined: Future[None] = Future()
        self._end = asyncio.Event()

    # Methods for other threads.

    def join(self, description: Mapping[str, Any], limit_s: float) -> None:
        """Starts the thread, and waits until all workers have joined.

        Raises:
            ClusterError: if a worker differs from the chief, joins twice or does not join.
        """
        self.thread = threading.Thread(
            target=self._run, args=(description, limit_s), name="gpukeras-channel", daemon=True
        )
        self.thread.start()
        self._started.wait()
        try:
            self._wait(self._joined)
        except BaseException:
            self.post(lambda: self._main.cancel())
            self.thread.join(2 * LAST_WORD_S)
            raise

    def call(self, call: Call) -> list[Any] | None:
        """Makes a collective call; returns the parts of all workers, None if none will arrive."""
        future: Future[list[Any] | None] = Future()
        self.post(lambda: self._begin_call(call, future))
        return self._wait(future)

    def set_rest(self, at_rest: bool) -> None:
        """Announces whether this worker rests, so that its silence does not count."""
        sent = threading.Event()

        def announce() -> None:
            if at_rest != self._at_rest:
                self._at_rest = at_rest
                self._send_all(BEAT, rests=at_rest)
            # Connections write in the loop's next turn; this is set in the one after that.
            self._loop.call_later(0, self._loop.call_soon, sent.set)

        self.post(announce)
        if self._may_wait():
            sent.wait(REST_S)

    def leave(self, reason: str, wait_s: float) -> None:
        """Leaves the cluster; the others receive the reason, unless all have finished.

        Args:
            reason: Follows this worker's name.
            wait_s: Seconds to wait until all others have finished too.
        """
        try:
            if wait_s > 0:
                self.post(self._say_bye)
                self.wait_ended(wait_s)
        finally:  # after an interrupt too
            self.post(lambda: self._leave(reason))
            self.post(self._end.set)
            if self._may_wait():
                self.thread.join(2 * LAST_WORD_S)

    def wait_ended(self, limit_s: float) -> None:
        """Waits up to `limit_s` seconds until there is nothing left to wait for."""
        deadline = time.monotonic() + limit_s
        while (left_s := deadline - time.monotonic()) > 0 and self._may_wait():
            if self.ended.wait(min(left_s, POLL_S)):
                return

    def post(self, function: Callable[[], object]) -> None:
        """Runs a function in the loop; nothing if that has ended."""

        def run() -> None:
            try:
                function()
            except Exception as error:
                self._fail(error)

        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(run)

    def _wait(self, future: Future[Result]) -> Result | None:
        while not future.done() and self.thread.is_alive():
            with suppress(NotYetError):
                future.exception(POLL_S)
        return future.result(0) if future.done() else None

    def _may_wait(self) -> bool:
        return threading.current_thread() is not self.thread and self.thread.is_alive()

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

    # Methods that run in the loop.

    def _run(self, description: Mapping[str, Any], limit_s: float) -> None:
        try:
            asyncio.run(self._serve(description, limit_s))
        except BaseException as error:  # noqa: B036  callers must not wait for a dead thread
            if self._joined.done():
                self._fail(error)
            else:
                self._joined.set_exception(error)
        finally:
            self._started.set()
            self._finish()

    async def _serve(self, description: Mapping[str, Any], limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._main = asyncio.ensure_future(self._meet(description, limit_s))
        self._started.set()
        self._connections = await self._main
        tasks = [asyncio.ensure_future(self._beat())]
        for worker, connection in self._connections.items():
            connection.trust(self.spec.timeout_s)
            tasks.append(asyncio.ensure_future(self._listen(worker, connection)))
        for task in tasks:
            task.add_done_callback(self._check_task)
        self._joined.set_result(None)
        await self._end.wait()
        await finish_connections([*self._connections.values()], LAST_WORD_S)

    def _check_task(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

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
        self._lose(worker, explain_end(connection, self.spec.timeout_s))

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
        timeout_s = self.spec.timeout_s
        limit_s = REST_LIMIT_S if worker in self._resting else timeout_s
        connection.silent_s += passed_s
        if connection.silent_s > max(limit_s, timeout_s):
            connection.silent = True
            self._lose(worker, f"has not answered for {limit_s:g} s")

    def _send_all(self, kind: str, parts: Sequence[Any] = (), **values: Any) -> None:
        for connection in self._connections.values():
            connection.send(kind, parts, **values)

    def _begin_call(self, call: Call, future: Future[list[Any] | None]) -> None:
        if self.ended.is_set():
            future.set_result(None)
            return
        self._results[call.number] = future
        self._send_call(call)

    def _end_call(self, number: int, parts: list[Any] | None) -> None:
        if future := self._results.pop(number, None):
            future.set_result(parts)

    def _finish(self) -> None:
        self.ended.set()
        for number in list(self._results):
            self._end_call(number, None)

    def _leave(self, reason: str) -> None:
        self._is_leaving = True
        self._declare(Fault(self.spec.index, reason))

    def _fail(self, error: BaseException) -> None:
        text = f"lost its channel: {type(error).__name__}: {error}"
        self._record(Fault(self.spec.index, text))
        self._end.set()

    def _declare(self, fault: Fault) -> None:
        # The fault is sent first, because `on_loss` may take long. A chief that was stopped learns
        # by it on waking that the others have continued without it.
        if not self.ended.is_set():
            self._send_all(FAULT, worker=fault.worker, reason=fault.reason)
            self._record(fault)

    def _record(self, fault: Fault) -> None:
        if self.ended.is_set():
            return
        self.fault = fault
        self._finish()
        if self._on_loss is not None and not self._is_leaving:
            with suppress(Exception):  # every call of the channel raises the fault itself
                self._on_loss(explain_fault(fault, self.spec.workers, self.spec.index).message)


class Worker(Member):
    """The end of worker 1, 2, ...: one connection, to the chief."""

    async def _meet(self, description: Mapping[str, Any], limit_s: float) -> dict[int, Connection]:
        return {CHIEF: await reach_chief(self.spec, description, limit_s)}

    def _send_call(self, call: Call) -> None:
        self._send_all(CALL, [call.data], **call.values())

    def _say_bye(self) -> None:
        self._is_leaving = True
        self._send_all(BYE)

    def _take(self, worker: int, message: Message) -> None:
        if message.kind == RESULT:
            number = message.values.get("number")
            # A broadcast has one part.
            if len(message.parts) not in (1, len(self.spec.workers)) or type(number) is not int:
                raise AuthenticationError("a result of others")
            self._end_call(number, list(message.parts))
        elif message.kind == FAULT:
            self._record(parse_fault(message.values, len(self.spec.workers)))
        elif message.kind == BYE:
            self._finish()
        else:
            raise AuthenticationError("a message that no chief sends")


class Chief(Member):
    """Worker 0's end: a connection to every other worker; collects all calls, and decides."""

    def __init__(self, spec: ClusterSpec, on_loss: Callable[[str], None] | None = None) -> None:
        """Starts without calls; no worker has left."""
        super().__init__(spec, on_loss)
        self._rounds = Rounds(len(spec.workers))
        self._left: set[int] = set()  # workers that have finished

    async def _meet(self, description: Mapping[str, Any], limit_s: float) -> dict[int, Connection]:
        connections, self.note = await gather_workers(self.spec, description, limit_s)
        return connections

    def _send_call(self, call: Call) -> None:
        self._take_call(CHIEF, call)

    def _say_bye(self) -> None:
        self._is_leaving = True
        self._take_bye(CHIEF)

    def _take(self, worker: int, message: Message) -> None:
        if message.kind == CALL:
            self._take_call(worker, parse_call(message))
        elif message.kind == BYE:
            self._take_bye(worker)
        elif message.kind == FAULT:
            self._declare(parse_fault(message.values, len(self.spec.workers)))
        else:
            raise AuthenticationError("a message that only the chief sends")

    def _take_call(self, worker: int, call: Call) -> None:
        self._rounds.add(worker, call, self._clock.tick(time.monotonic()))
        while calls := self._rounds.complete():
            self._answer(calls)
        if fault := self._rounds.mismatch():
            self._declare(fault)
        self._check_left()

    def _answer(self, calls: Sequence[Call]) -> None:
        chiefs = calls[CHIEF].place == BROADCAST
        parts = [call.data for call in (calls[:1] if chiefs else calls)]
        for worker, connection in self._connections.items():
            connection.send(RESULT, parts, number=calls[worker].number)
        self._end_call(calls[CHIEF].number, parts)

    def _take_bye(self, worker: int) -> None:
        self._left.add(worker)
        if len(self._left) < len(self.spec.workers):
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
