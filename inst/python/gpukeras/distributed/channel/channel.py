"""The control channel: how workers agree, and how each learns that another is lost.

It carries what is said about a training, not its gradients: those go through TensorFlow's own
collectives, which wait for ever for a worker that is gone.  The chief (worker 0 here, worker 1
for users) collects and decides; so all workers hear the same.  Each message is proved by the
secret that workers share, see `authentication`; with TLS it is encrypted too.

A worker whose process is stopped, or whose Python lock is held for longer than the time-out, is
taken for lost: its thread cannot beat.  R code holds that lock in older versions of reticulate,
so a session rests the channel (`rest()`) whenever it goes back to R.  A forked copy of a worker's
process keeps its connection open: then its end is noticed by its silence only.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpukeras.core.errors import ClusterError, SpecError
from gpukeras.core.options import check_number
from gpukeras.distributed.channel.collectives import BROADCAST, EXCHANGE, GATHER, Call
from gpukeras.distributed.channel.coordinator import CHIEF, Coordinator
from gpukeras.distributed.channel.errors import (
    ALIKE,
    explain_differences,
    explain_failure,
    explain_fault,
)
from gpukeras.distributed.channel.rendezvous import Cluster, gather_workers, reach_chief
from gpukeras.distributed.channel.worker import Worker

JOIN_S = 300.0  # workers of a batch system may start minutes apart
LEAVE_S = 5.0  # seconds that `close()` waits for workers that still work


def open_channel(
    spec: Cluster,
    description: Mapping[str, Any],
    on_loss: Callable[[str], None] | None = None,
    join_timeout_s: float = JOIN_S,
) -> Channel:
    """Joins all workers of a cluster; returns on all of them, or fails on all with one error.

    Args:
        spec: The cluster, and which of its workers this is.
        description: What must be alike on all workers, nested records of plain values, such as
            versions of packages.
        on_loss: Called once, in the channel's thread, with a sentence, when another worker is
            lost or all cannot go on; not when this one leaves.  It may be called before this
            function has returned.
        join_timeout_s: Seconds to wait until all are there.

    Raises:
        ClusterError: if a worker differs from the chief, comes twice or does not come.
    """
    note = ""
    description = json.loads(json.dumps(description))  # what JSON cannot say fails here
    if spec.index == CHIEF:
        links, note = gather_workers(spec, description, join_timeout_s)
        watch: Coordinator | Worker = Coordinator(spec.workers, spec.timeout_s, links, on_loss)
    else:
        link = reach_chief(spec, description, join_timeout_s)
        watch = Worker(spec.workers, spec.index, spec.timeout_s, link, on_loss)
    watch.start()
    return Channel(watch, [note] if note else [])


class Channel:
    """One worker's end of the control channel; made by `open_channel()`.

    Every worker must make the same calls in the same order.  A call waits until all have come
    to it.  After a fault (a worker is lost, failed, left, or is at another call) every call
    raises the same `ClusterError`; the fault stays.

    Args:
        watch: The thread that owns the connections, started.
        notes: Sentences about how the workers came together.

    Attributes:
        index: This worker's number, from 0.
        size: Number of workers.
        notes: Those sentences.
    """

    def __init__(self, watch: Coordinator | Worker, notes: Sequence[str] = ()) -> None:
        """Closed at the latest when Python ends."""
        self.notes = tuple(notes)
        self.index, self.size = watch.own, len(watch.workers)
        self._watch = watch
        self._number = 0  # of the next call
        self._turn = threading.Lock()  # one call at a time
        self._closed = False
        self._process = os.getpid()  # a forked copy of it has no part in the channel
        atexit.register(self.close)

    def __enter__(self) -> Channel:
        """The channel itself."""
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Closes it; tells the others of an error."""
        self.close() if error is None else self.fail(error)

    def exchange(
        self, kind: str, values: Mapping[str, Any], timeout_s: float | None = None
    ) -> list[dict[str, Any]]:
        """Gives a record, and gets those of all workers in their order.

        Args:
            kind: What it is about, such as "epoch"; must be the same on all.
            values: Plain values.
            timeout_s: Seconds to wait for the others; None: for as long as they live.

        Raises:
            ClusterError: if the workers are at different places, one does not come or is lost.
        """
        parts = self._call(EXCHANGE, kind, json.dumps(values).encode(), timeout_s)
        return [json.loads(bytes(part)) for part in parts]

    def broadcast(self, data: bytes | None = None, timeout_s: float | None = None) -> bytes:
        """Bytes from the chief to all workers.

        Args:
            data: The chief's; that of others is not looked at.
            timeout_s: As for `exchange()`.

        Raises:
            ClusterError: as for `exchange()`.
            SpecError: if the chief gives none.
        """
        if self.index == CHIEF and data is None:
            raise SpecError("`data` must be bytes on the chief, not NULL.", arg="data")
        given = data if self.index == CHIEF and data is not None else b""
        return bytes(self._call(BROADCAST, "", given, timeout_s)[0])

    def gather(self, data: bytes, timeout_s: float | None = None) -> list[bytes]:
        """Gives bytes, and gets those of all workers, on every worker, in their order.

        Args:
            data: This worker's.
            timeout_s: As for `exchange()`.

        Raises:
            ClusterError: as for `exchange()`.
        """
        return [bytes(part) for part in self._call(GATHER, "", data, timeout_s)]

    def compare(
        self, description: Mapping[str, Any], hint: str = ALIKE, timeout_s: float | None = None
    ) -> None:
        """Fails on all workers alike where one differs from the chief.  The channel lives on.

        Args:
            description: What must be alike, nested records of plain values.
            hint: What to do where it is not.
            timeout_s: As for `exchange()`.

        Raises:
            ClusterError: that names the first worker that differs, and in what; or as for
                `exchange()`.
        """
        told = self.exchange("compare", description, timeout_s)
        if error := explain_differences(told, self._watch.workers, hint):
            raise error

    def fault(self, wait_s: float = 0.0) -> ClusterError | None:
        """Why the cluster cannot go on, or None if nothing is known.

        Args:
            wait_s: Seconds to wait for it: when TensorFlow's collectives fail, the reason may be
                known only a moment later, or `timeout_s` later where a worker hangs.
        """
        fault = self._watch.mailbox.wait_fault(wait_s)
        return None if fault is None else explain_fault(fault, self._watch.workers, self.index)

    def rest(self) -> None:
        """From now on this worker's silence means nothing: its Python will not run for a while.

        Its process is still missed when it ends, and its computer when it cannot be reached.
        """
        self._watch.set_rest(True)

    def resume(self) -> None:
        """Ends a rest: this worker beats again."""
        self._watch.set_rest(False)

    def fail(self, error: BaseException) -> None:
        """Tells the others why this worker leaves, and leaves; never raises.

        Where another worker was at fault before, that stays the reason for all.
        """
        self._leave(explain_failure(error), 0.0)

    def close(self, wait_s: float = LEAVE_S) -> None:
        """Leaves.  For those that still count on it this worker "has left"; never raises.

        Args:
            wait_s: Seconds to wait until all others have finished too.
        """
        self._leave("has left", wait_s)

    def _leave(self, reason: str, wait_s: float) -> None:
        if self._closed or os.getpid() != self._process:
            return
        self._closed = True
        atexit.unregister(self.close)
        watch = self._watch
        try:
            if wait_s > 0:
                watch.bye()
                watch.mailbox.wait_end(wait_s)
        finally:  # after an interrupt too
            watch.leave(reason)
            watch.end()

    def _call(
        self, operation: int, kind: str, data: bytes, timeout_s: float | None
    ) -> list[memoryview]:
        with self._turn:
            self._check()
            number, self._number = self._number, self._number + 1
            limit_s = math.inf if timeout_s is None else check_number("timeout_s", timeout_s, 0.0)
            self._watch.call(Call(number, operation, kind, limit_s, data))
            parts = self._watch.mailbox.wait_result(number)
        if parts is None:
            self._check()
            raise _explain_closed()
        return parts

    def _check(self) -> None:
        if error := self.fault():
            raise error
        if self._closed:
            raise _explain_closed()


def _explain_closed() -> ClusterError:
    return ClusterError("The channel to the other workers is closed.", reason="closed")
