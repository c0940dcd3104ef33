"""Reports failures between workers: a failing worker sends its error, the others name it.

TensorFlow reports that an operation was aborted, not which worker was lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpukeras.backend import runtime
from gpukeras.core.errors import ClusterError
from gpukeras.core.messages import find_reason
from gpukeras.distributed import session
from gpukeras.distributed.channel.errors import LostConnectionError

HEARING_S = 5.0  # seconds to wait for the channel's fault once TensorFlow has failed
# Errors of TensorFlow that other workers cause: by their class, and by a part of their text.
OF_OTHERS = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
TOLD_BY_OTHERS = ("Collective ops is aborted by", "from remote target", "[_Derived_]")


@contextmanager
def propagate_failures() -> Iterator[None]:
    """A context for the collective work of a cluster's workers.

    Raises:
        ClusterError: if a worker has been lost, or TensorFlow's connection to it, in place of the
            error that this caused.
    """
    cluster = session.current()
    if cluster is None:
        yield
        return
    try:
        yield
    except ClusterError:
        raise
    except BaseException as error:
        if getattr(error, "told", False):
            raise
        cause = find_cause(error)
        of_others = cause is not None and is_of_others(cause)
        # A worker that hangs is known to be lost after the time-out only.
        wait_s = (HEARING_S if cause else 0.0) + (cluster.spec.timeout_s if of_others else 0.0)
        if (loss := cluster.channel.fault(wait_s)) is not None:
            raise loss from error
        if cause is not None and of_others:
            lost = LostConnectionError(find_reason(cause))
            cluster.channel.fail(lost)
            raise lost from error
        cluster.channel.fail(error)
        raise


def find_cause(error: BaseException) -> BaseException | None:
    """Returns TensorFlow's error that another was raised from, or that it is itself, or None."""
    kind, link = runtime.tensorflow().errors.OpError, error
    while link is not None and not isinstance(link, kind):
        link = link.__cause__  # type: ignore[assignment]
    return link


def is_of_others(error: BaseException) -> bool:
    """Whether an error of TensorFlow tells of other workers, and not of what this one computes."""
    text = str(error)
    return type(error).__name__ in OF_OTHERS or any(part in text for part in TOLD_BY_OTHERS)
