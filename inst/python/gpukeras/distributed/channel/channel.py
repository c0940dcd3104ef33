"""The control channel: workers agree over it, and detect the loss of another worker.

It carries control messages, no gradients: those go through TensorFlow's own collectives, which
wait for ever for a lost worker.  The chief (worker 0 here, worker 1 for users) collects all
messages and decides, so that all workers receive the same result.  Each message is authenticated
with the workers' shared secret, see `authentication`; with TLS it is encrypted too.

A worker whose process is stopped, or whose Python lock is held for longer than the time-out,
counts as lost, because its thread sends no heartbeats.  R code holds that lock in older versions of
reticulate, so a session calls `rest()` whenever it returns to R.  A forked copy of a worker's
process keeps its connection open: the end of such a worker is detected by its silence only.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from gpukeras.core.errors import ClusterError, SpecError
from gpukeras.core.options import check_number
from gpukeras.distributed.channel.collectives import BROADCAST, GATHER, Call
from gpukeras.distributed.channel.errors import explain_failure, explain_fault
from gpukeras.distributed.channel.members import CHIEF, Chief, Worker
from gpukeras.distributed.cluster_config import ClusterSpec

JOIN_S = 300.0  # workers of a batch system may start minutes apart
LEAVE_S = 5.0  # seconds that `close()` waits for workers that still work


def open_channel(
    spec: ClusterSpec,
    description: Mapping[str, Any],
    on_loss: Callable[[str], None] | None = None,
    join_timeout_s: float = JOIN_S,
) -> Channel:
    """Joins all workers of a cluster; returns on all of them, or fails on all with one error.

    Args:
        spec: The cluster, and the index of this worker.
        description: Nested records of plain values that must agree on all workers, such as
            versions of packages.
        on_loss: Called once, in the channel's thread, with a sentence, when another worker is
            lost or no worker can continue; not when this worker leaves.  It may be called before
            this function has returned.
        join_timeout_s: Seconds to wait for all workers.

    Raises:
        ClusterError: if a worker differs from the chief, joins twice or does not join.
    """
    described = json.loads(json.dumps(description))  # fails for values that JSON does not have
    member = (Chief if spec.index == CHIEF else Worker)(spec, on_loss)
    member.join(described, join_timeout_s)
    return Channel(member)


class Channel:
    """One worker's end of the control channel; made by `open_channel()`.

    Every worker must make the same calls in the same order.  A call waits until all workers have
    made it.  After a fault (a worker is lost, failed, left, or made another call) every call
    raises the same `ClusterError`; the fault is permanent.

    Args:
        member: This worker's end, which has joined.

    Attributes:
        index: This worker's number, from 0.
        size: Number of workers.
        notes: Sentences about how the workers joined.
    """

    def __init__(self, member: Chief | Worker) -> None:
        """Registers `close()` to run when Python exits."""
        self.notes = (member.note,) if member.note else ()
        self.index = member.spec.index
        self.size = len(member.spec.workers)
        self._member = member
        self._number = 0  # of the next call
        self._turn = threading.Lock()  # one call at a time
        self._closed = False
        self._process = os.getpid()  # a forked copy of the process must not use the channel
        atexit.register(self.close)

    def __enter__(self) -> Channel:
        """Returns the channel itself."""
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Closes the channel; sends an error, if there is one, to the other workers."""
        self.close() if error is None else self.fail(error)

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

    def broadcast(self, data: bytes | None = None, timeout_s: float | None = None) -> bytes:
        """Sends bytes from the chief to all workers, and returns them.

        Args:
            data: The chief's bytes; those of other workers are ignored.
            timeout_s: As for `exchange()`.

        Raises:
            ClusterError: as for `exchange()`.
            SpecError: if the chief passes None.
        """
        if self.index == CHIEF and data is None:
            raise SpecError("`data` must be bytes on the chief, not NULL.", arg="data")
        given = data if self.index == CHIEF and data is not None else b""
        return bytes(self._call(BROADCAST, given, timeout_s)[0])

    def gather(self, data: bytes, timeout_s: float | None = None) -> list[bytes]:
        """Sends bytes, and returns those of all workers, on every worker, in order.

        Args:
            data: This worker's bytes.
            timeout_s: As for `exchange()`.

        Raises:
            ClusterError: as for `exchange()`.
        """
        return [bytes(part) for part in self._call(GATHER, data, timeout_s)]

    def fault(self, wait_s: float = 0.0) -> ClusterError | None:
        """Returns why the cluster cannot continue, or None if no fault is known.

        Args:
            wait_s: Seconds to wait for a fault: when TensorFlow's collectives fail, the reason may
                be known only a moment later, or `timeout_s` later where a worker hangs.
        """
        self._member.wait_ended(wait_s)
        fault = self._member.fault
        return (
            None if fault is None else explain_fault(fault, self._member.spec.workers, self.index)
        )

    def rest(self) -> None:
        """Announces that this worker sends no heartbeats while its Python does not run.

        The others still detect that its process ends, or that its computer is unreachable.
        """
        self._member.set_rest(True)

    def resume(self) -> None:
        """Ends a rest: this worker sends heartbeats again."""
        self._member.set_rest(False)

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
        self._member.leave(reason, wait_s)

    def _call(self, place: str, data: bytes, timeout_s: float | None) -> list[Any]:
        with self._turn:
            self._check()
            number = self._number
            self._number += 1
            limit_s = math.inf if timeout_s is None else check_number("timeout_s", timeout_s, 0.0)
            parts = self._member.call(Call(number, place, limit_s, data))
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
