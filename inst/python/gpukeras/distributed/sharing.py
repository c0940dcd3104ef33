"""Workers of a cluster read parts of the same files: the dataset's option `shard = "workers"`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpukeras.core.errors import SpecError
from gpukeras.data.builder import WorkerShard
from gpukeras.distributed import session
from gpukeras.distributed.failures import propagate_failures

WORKERS = "workers"


@contextmanager
def sharing_files(
    options: Mapping[str, Any],
) -> Iterator[tuple[dict[str, Any], WorkerShard | None]]:
    """Yields a dataset's options without "workers", and the place of this worker, if they share.

    An error while the files are read ends the calls of the other workers too.

    Args:
        options: Fields of `DatasetSpec`; `shard` may be "workers".

    Raises:
        SpecError: if this process has joined no cluster.
    """
    if options.get("shard") != WORKERS:
        yield dict(options), None
        return
    cluster = session.current()
    if cluster is None:
        raise SpecError(
            '`shard` = "workers" is for the workers of a cluster.',
            hint="Call gpu_cluster() first, or give c(1, 4) for the first of four.",
            arg="shard",
        )
    with propagate_failures():
        spec, exchange = cluster.spec, cluster.channel.exchange
        yield {**options, "shard": (1, 1)}, WorkerShard(spec.index, spec.size, exchange)
