"""Reports failures between workers: a failing worker sends its error, the others name it.

TensorFlow reports that an operation was aborted, not which worker was lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpukeras.backend import runtime
from gpukeras.core.errors import ClusterError
from gpukeras.distributed import session

HEARING_S = 5.0  # seconds to wait for the channel's fault once TensorFlow has failed


@contextmanager
def propagate_failures() -> Iterator[None]:
    """A context for the collective work of a cluster's workers.

    Raises:
        ClusterError: if a worker has been lost, in place of the error that this caused.
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
        noticed = isinstance(error, runtime.tensorflow().errors.OpError)
        loss = cluster.channel.fault(HEARING_S if noticed else 0.0)
        if loss is not None:
            raise loss from error
        cluster.channel.fail(error)
        raise
