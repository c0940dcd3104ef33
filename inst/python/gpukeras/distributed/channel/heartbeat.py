"""The thread of a channel: it owns all connections, sends heartbeats, and detects silent workers.

Callers post their requests as functions that run in this thread, so that its state has one writer;
results return through a `ResultQueue`.
"""

from __future__ import annotations

import math
import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from gpukeras.distributed.channel.authentication import AuthenticationError
from gpukeras.distributed.channel.errors import Fault, explain_fault
from gpukeras.distributed.channel.mailboxes import ResultQueue
from gpukeras.distributed.channel.protocol import Frame, FrameKind
from gpukeras.distributed.channel.transport import LAST_WORD_S, Link, finish_links

BEAT_S = 1.0  # seconds between two heartbeats
REST_LIMIT_S = 86400.0  # silence after which a resting worker is lost too: a day
REST_S = 2.0  # seconds that `rest()` waits until the announcement is sent


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


class HeartbeatThread(ABC):
    """The thread, without the parts in which the chief and the other workers differ.

    Args:
        workers: All addresses.
        own: This worker's number, from 0.
        timeout_s: Silence after which a worker is lost.
        links: Connections by the number of the worker at the other end.
        on_loss: Called once with a sentence, in this thread, when the collective work cannot
            continue.
    """

    def __init__(
        self,
        workers: Sequence[str],
        own: int,
        timeout_s: float,
        links: dict[int, Link],
        on_loss: Callable[[str], None] | None = None,
    ) -> None:
        """Prepares the thread; `start()` starts it."""
        self.workers, self.own, self.timeout_s = tuple(workers), own, timeout_s
        self.mailbox = ResultQueue()
        self.thread = threading.Thread(target=self._run, name="gpukeras-channel", daemon=True)
        self._links = links
        self._resting: set[int] = set()
        self._at_rest = self._leaving = self._ending = False
        self._on_loss = on_loss
        self._beat_s = min(BEAT_S, timeout_s / 4)
        self._clock = Clock(max(2 * self._beat_s, timeout_s / 4))
        self._beaten = 0.0
        self._posted: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._waker_lock = threading.Lock()  # a closed socket's number may belong to another file
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    # Methods for other threads.

    def start(self) -> None:
        """Starts the thread."""
        self._selector.register(self._woken, selectors.EVENT_READ)
        for worker, link in self._links.items():
            link.trust(self.timeout_s)
            link.heard = self._clock.now
            self._selector.register(link, selectors.EVENT_READ, worker)
        self.thread.start()

    def post(self, command: Callable[[], None]) -> None:
        """Schedules a function to run in the thread; it does not run if the thread has ended."""
        self._posted.append(command)
        with self._waker_lock, suppress(OSError):  # full: it wakes anyway; closed: it has ended
            self._waker.send(b"!")

    def post_and_wait(self, command: Callable[[], None], limit_s: float) -> None:
        """Runs a function in the thread and waits until it returns, up to `limit_s` seconds."""
        done = threading.Event()

        def run() -> None:
            command()
            done.set()

        self.post(run)
        if threading.current_thread() is not self.thread and self.thread.is_alive():
            done.wait(limit_s)

    def end(self, limit_s: float = 2 * LAST_WORD_S) -> None:
        """Ends the thread after it has sent its last message, and waits for that."""
        self.post(self._end)
        if threading.current_thread() is not self.thread:
            self.thread.join(limit_s)

    def set_rest(self, at_rest: bool) -> None:
        """Announces whether this worker rests, so that its silence does not count."""
        self.post_and_wait(lambda: self._tell_rest(at_rest), REST_S)

    def bye(self) -> None:
        """Announces that this worker has finished."""
        self.post(self._start_leaving)

    def leave(self, reason: str) -> None:
        """Leaves; the others receive the reason, unless all have finished."""
        self.post(lambda: self._leave(reason))

    # Methods in which the chief and the other workers differ.

    @abstractmethod
    def _start_leaving(self) -> None:
        """Sends that this worker has finished."""

    @abstractmethod
    def _leave(self, reason: str) -> None:
        """Sends why this worker leaves, and ends."""

    @abstractmethod
    def _take(self, worker: int, frame: Frame) -> None:
        """Handles a received message."""

    @abstractmethod
    def _lose(self, worker: int, reason: str) -> None:
        """Handles the loss of the worker at the other end of a link."""

    @abstractmethod
    def _tick(self, now: float) -> None:
        """Handles the passing of time."""

    def _wake_s(self, now: float) -> float:
        return math.inf

    # Methods that run in the thread.

    def _run(self) -> None:
        try:
            while not self._ending:
                self._turn()
        except BaseException as error:  # noqa: B036  callers must not wait for a dead thread
            self._note(Fault(self.own, f"lost its channel: {type(error).__name__}: {error}"))
        finally:
            self.mailbox.put_dead()
            finish_links(self._links.values(), LAST_WORD_S)
            self._selector.close()
            with self._waker_lock:
                self._woken.close()
                self._waker.close()

    def _turn(self) -> None:
        unread = [worker for worker, link in self._links.items() if link.unread]
        wait_s = 0.0 if unread else min(self._beat_s, self._wake_s(self._clock.now))
        ready = [key.data for key, _ in self._selector.select(wait_s)]
        now = self._clock.tick(time.monotonic())
        for worker in dict.fromkeys([*ready, *unread]):
            if worker is None:
                self._sleep_again()
            elif worker in self._links:  # an earlier message may have closed it
                self._hear(worker, self._links[worker], now)
        while self._posted:
            self._posted.popleft()()
        self._beat(now)
        self._judge(now)
        self._tick(now)
        self._write()

    def _sleep_again(self) -> None:
        with suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass

    def _hear(self, worker: int, link: Link, now: float) -> None:
        frames = link.receive(now)
        try:
            for frame in frames:
                if frame.kind is FrameKind.REST:
                    self._note_rest(worker, frame.record().get("rests") is True, now)
                elif frame.kind is not FrameKind.BEAT:
                    self._take(worker, frame)
        except AuthenticationError:
            link.ended = link.stranger = True
        if link.ended:
            self._drop(worker, link)

    def _drop(self, worker: int, link: Link) -> None:
        self._selector.unregister(link)
        del self._links[worker]
        link.close()
        self._lose(worker, explain_end(link, self.timeout_s))

    def _note_rest(self, worker: int, rests: bool, now: float) -> None:
        self._links[worker].heard = now
        (self._resting.add if rests else self._resting.discard)(worker)

    def _tell_rest(self, at_rest: bool) -> None:
        if at_rest != self._at_rest:
            self._at_rest = at_rest
            self._send(self._links.values(), FrameKind.REST, {"rests": at_rest})

    def _beat(self, now: float) -> None:
        if now - self._beaten < self._beat_s:
            return
        self._beaten = now
        for worker, link in self._links.items():
            # Bytes on their way are a sign of life; a resting worker reads none.
            if not link.waiting and worker not in self._resting:
                link.send(FrameKind.BEAT)

    def _judge(self, now: float) -> None:
        for worker, link in list(self._links.items()):
            limit_s = REST_LIMIT_S if worker in self._resting else self.timeout_s
            if now - link.heard > max(limit_s, self.timeout_s):
                link.silent = True
                self._lose(worker, f"has not answered for {limit_s:g} s")

    def _write(self) -> None:
        for worker, link in self._links.items():
            link.flush()
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.waiting else 0)
            if self._selector.get_key(link).events != events:
                self._selector.modify(link, events, worker)

    def _end(self) -> None:
        self._ending = True

    def _send(self, links: Iterable[Link], kind: FrameKind, record: dict[str, object]) -> None:
        for link in links:
            link.send_record(kind, record)

    def _note(self, fault: Fault) -> bool:
        # Returns whether the fault is new; `on_loss` is not called for a worker that leaves.
        if not self.mailbox.put_fault(fault):
            return False
        if self._on_loss is not None and not self._leaving:
            with suppress(Exception):  # every call of the channel raises the fault itself
                self._on_loss(explain_fault(fault, self.workers, self.own).message)
        return True


def explain_end(link: Link, timeout_s: float) -> str:
    """Returns why a connection has ended, to follow a worker's name."""
    if link.stranger:
        return "sent what is no message of this program"
    return f"has not answered for {timeout_s:g} s" if link.unreachable else "has ended"
