"""A worker that fails tells the others; one that hears of it says who it was.

TensorFlow knows that an operation was ended, not by whom.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpukeras.backend import runtime
from gpukeras.core.errors import ClusterError
from gpukeras.distributed import session

HEARING_S = 5.0  # until the loss of a worker is told that TensorFlow has noticed already


@contextmanager
def propagate_failures() -> Iterator[None]:
    """Around what the workers of a cluster do together.

    Raises:
        ClusterError: if a worker has been lost, in place of what that led to.
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
