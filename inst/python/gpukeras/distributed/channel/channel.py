"""The control channel: workers agree over it, and detect the loss of another worker.

It carries control messages, no gradients: those go through TensorFlow's own collectives, which
wait for ever for a lost worker.  The chief (worker 0 here, worker 1 for users) collects all
messages and decides, so that all workers receive the same result.  Each message is authenticated
with the workers' shared secret, see `protocol`; with TLS it is encrypted too.

A thread runs the event loop in which this worker's `Member` has all connections. This module is
what the other threads of a worker call. Below it are:

    join    rendezvous    the others connect to the chief's gate, and are compared with the chief
    agree   collectives   a round is one call of each worker; the chief answers it
    beat    members       heartbeats, and who has been silent for too long
    tell    errors        the fault that ends the work on all workers, in words
            connection    whole messages over one connection, and how it ends
            protocol      a message as signed bytes

A worker whose process is stopped, or whose Python lock is held for longer than the time-out,
counts as lost, because its thread sends no heartbeats.  R code holds that lock in older versions of
reticulate, so a session calls `rest()` whenever it returns to R.  A forked copy of a worker's
process keeps its connection open: the end of such a worker is detected by its silence only.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import TimeoutError as NotYetError
from contextlib import closing, suppress
from typing import Any, TypeVar

from gpukeras.core.errors import ClusterError
from gpukeras.core.options import check_number
from gpukeras.distributed.channel.collectives import Call
from gpukeras.distributed.channel.connection import LAST_WORD_S
from gpukeras.distributed.channel.errors import explain_failure, explain_fault
from gpukeras.distributed.channel.members import CHIEF, Chief, Worker
from gpukeras.distributed.cluster_config import ClusterSpec
from gpukeras.distributed.timeouts import JOIN_S

LEAVE_S = 5.0  # seconds that `close()` waits for workers that still work
REST_S = 2.0  # seconds that `rest()` waits until the announcement is sent
GATHER = "a gathering"  # its place in messages; that of an exchange is its kind in quotes
POLL_S = 0.2  # longest delay of an interrupt where waiting for a lock cannot be interrupted
Result = TypeVar("Result")


def open_channel(
    spec: ClusterSpec,
    description: Mapping[str, Any],
    on_loss: Callable[[str], None] | None = None,
    join_timeout_s: float = JOIN_S,
) -> Channel:
    """Joins all workers of a cluster; returns on all of them, or fails on all with one error.

    Args:
        spec: The cluster, and the index of this worker.
        description: Plain values by name that must agree on all workers, such as versions of
            packages.
        on_loss: Called once, in the channel's thread, with a sentence, when another worker is
            lost or no worker can continue; not when this worker leaves.  It may be called before
            this function has returned.
        join_timeout_s: Seconds to wait for all workers.

    Raises:
        ClusterError: if a worker differs from the chief, joins twice or does not join.
    """
    described = {"workers": spec.workers, **description}
    plain = json.loads(json.dumps(described))  # fails for values that JSON does not have
    channel = Channel(spec, on_loss)
    channel.join(plain, join_timeout_s)
    return channel


class Channel:
    """One worker's end of the control channel; made by `open_channel()`.

    Every worker must make the same calls in the same order.  A call waits until all workers have
    made it.  After a fault (a worker is lost, failed, left, or made another call) every call
    raises the same `ClusterError`; the fault is permanent.

    Args:
        spec: The cluster, and the index of this worker.
        on_loss: See `open_channel()`.

    Attributes:
        index: This worker's number, from 0.
        workers: The addresses of all workers.
    """

    def __init__(self, spec: ClusterSpec, on_loss: Callable[[str], None] | None) -> None:
        """Starts the thread; `close()` ends it, at the latest when Python exits."""
        self.index = spec.index
        self.workers = spec.workers
        self._member = (Chief if spec.index == CHIEF else Worker)(spec, on_loss)
        self._turn = threading.Lock()  # one call at a time
        self._closed = False
        self._process = os.getpid()  # a forked copy of the process must not use the channel
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="gpukeras-channel", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def join(self, description: Mapping[str, Any], limit_s: float) -> None:
        """Waits until all workers have joined; see `open_channel()`."""
        try:
            self._ask(self._member.join(description, limit_s))
        except BaseException:  # an interrupt too
            self.close(0.0)
            raise

    def __enter__(self) -> Channel:
        """Returns the channel itself."""
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Closes the channel; sends an error, if there is one, to the other workers."""
        self.close() if error is None else self.fail(error)

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.workers)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about how the workers joined."""
        return (self._member.note,) if self._member.note else ()

    def exchange(
        self, kind: str, values: Mapping[str, Any], timeout_s: float | None = None
    ) -> list[dict[str, Any]]:
        """Sends a record, and returns the records of all workers in order of their numbers.

        Args:
            kind: The purpose of the exchange, such as "epoch"; must be the same on all workers.
            values: Plain values.
            timeout_s: Seconds to wait for the others; None: as long as they live.

        Raises:
            ClusterError: if workers make different calls, one does not call in time or is lost.
        """
        parts = self._call(f'"{kind}"', json.dumps(values).encode(), timeout_s)
        return [json.loads(bytes(part)) for part in parts]

    def gather(self, data: bytes) -> list[bytes]:
        """Sends bytes, and returns those of all workers, on every worker, in order.

        Args:
            data: This worker's bytes.

        Raises:
            ClusterError: as for `exchange()`.
        """
        return [bytes(part) for part in self._call(GATHER, data, None)]

    def fault(self, wait_s: float = 0.0) -> ClusterError | None:
        """Returns why the cluster cannot continue, or None if no fault is known.

        Args:
            wait_s: Seconds to wait for a fault: when TensorFlow's collectives fail, the reason may
                be known only a moment later, or `timeout_s` later where a worker hangs.
        """
        if wait_s > 0:
            self._ask(self._member.wait_ended(wait_s))
        fault = self._member.fault
        return None if fault is None else explain_fault(fault, self.workers, self.index)

    def rest(self) -> None:
        """Announces that this worker sends no heartbeats while its Python does not run.

        The others still detect that its process ends, or that its computer is unreachable.
        """
        self._ask(self._member.set_rest(True), REST_S)

    def resume(self) -> None:
        """Ends a rest: this worker sends heartbeats again."""
        self._ask(self._member.set_rest(False), REST_S)

    def fail(self, error: BaseException) -> None:
        """Sends the reason why this worker leaves, and leaves; never raises.

        If another worker was at fault before, that remains the reason for all.
        """
        self._leave(explain_failure(error), 0.0)

    def close(self, wait_s: float = LEAVE_S) -> None:
        """Leaves the cluster; never raises.

        Workers that still wait for this one get the fault "has left".

        Args:
            wait_s: Seconds to wait until all others have finished too.
        """
        self._leave("has left", wait_s)

    def _leave(self, reason: str, wait_s: float) -> None:
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._ask(self._member.leave(reason, wait_s))
        finally:  # after an interrupt too
            if threading.current_thread() is not self._thread:
                self._thread.join(2 * LAST_WORD_S)

    def _call(self, place: str, data: bytes, timeout_s: float | None) -> list[Any]:
        limit_s = None if timeout_s is None else check_number("timeout_s", timeout_s, 0.0)
        with self._turn:
            self._check()
            parts = self._ask(self._member.call(Call(place, limit_s, data)))
        if parts is None:
            self._check()
            raise _explain_closed()
        return parts

    def _check(self) -> None:
        if error := self.fault():
            raise error
        if self._closed:
            raise _explain_closed()

    def _run(self) -> None:
        with closing(self._loop):
            self._loop.run_forever()

    def _ask(self, work: Coroutine[Any, Any, Result], limit_s: float = math.inf) -> Result | None:
        # Runs a coroutine in the loop. Returns its result, or None where the loop has ended, the
        # limit is over, or the loop's own thread (in `on_loss`) would wait for itself.
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # the loop has ended
            work.close()
            return None
        may_wait = threading.current_thread() is not self._thread
        deadline = time.monotonic() + limit_s
        try:
            while may_wait and self._thread.is_alive() and time.monotonic() < deadline:
                with suppress(NotYetError):
                    future.exception(POLL_S)
                    break
        except BaseException:  # an interrupt
            future.cancel()
            raise
        return future.result(0) if future.done() else None


def _explain_closed() -> ClusterError:
    return ClusterError("The channel to the other workers is closed.", reason="closed")
