"""The cluster that this process has joined, from joining it to leaving it.

TensorFlow connects workers when its strategy is created, and only before its devices have started;
so a process joins once, before its first model, and stays. The control channel (see `channel`) is
opened first: it compares the workers, and reports a lost worker, for which TensorFlow would wait
for ever, or report that an operation was aborted and not which worker was lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gpukeras.backend import devices, runtime
from gpukeras.backend.env_vars import sync_environment
from gpukeras.backend.features import require_feature
from gpukeras.checkpoint.fingerprint import read_versions
from gpukeras.core.errors import ClusterError, SpecError
from gpukeras.core.messages import find_reason
from gpukeras.data.builder import WorkerShard
from gpukeras.data.loader.sharding import BatchSharding
from gpukeras.distributed.addresses import Address, parse_address, read_is_taken
from gpukeras.distributed.channel.channel import Channel, open_channel
from gpukeras.distributed.channel.errors import LostConnectionError
from gpukeras.distributed.cluster_config import ClusterSpec, read_cluster
from gpukeras.distributed.keras_internals import open_multi_worker, require_versions
from gpukeras.distributed.listen_filter import confining
from gpukeras.distributed.timeouts import CALL, JOIN, ClusterTimes, open_times
from gpukeras.system import environment

HEARING_S = 5.0  # seconds to wait for the channel's fault once TensorFlow has failed
# Errors of TensorFlow that other workers cause: by their class, and by a part of their text.
OF_OTHERS = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
TOLD_BY_OTHERS = ("Collective ops is aborted by", "from remote target", "[_Derived_]")
WORKERS = "workers"  # the dataset's option `shard`: workers read parts of the same files


@dataclass
class Session:
    """A joined cluster.

    Args:
        spec: Its workers, and the index of this one.
        channel: The control channel.
        strategy: TensorFlow's strategy.
        shares: The batch sharding over the replicas of all workers.
        times: Observed times, from which time-outs are learned.
        notes: Notes for the user, sentences.
    """

    spec: ClusterSpec
    channel: Channel
    strategy: Any
    shares: BatchSharding
    times: ClusterTimes
    notes: list[str]

    def check(self) -> None:
        """Raises the fault of the channel, if a worker has been lost."""
        fault = self.channel.fault()
        if fault is not None:
            raise fault


_current: Session | None = None


def current() -> Session | None:
    """Returns the cluster that this process has joined, or None."""
    return _current


def join_cluster(options: Mapping[str, Any]) -> dict[str, Any]:
    """Joins the cluster that the options, TF_CONFIG or Slurm describe; see `cluster_config`.

    Raises:
        SpecError: if the description is invalid.
        ClusterError: if TensorFlow has started, a worker does not join or differs from the others.
    """
    global _current
    require_feature("cluster")
    spec = read_cluster(options, environment.current_variables())
    if _current is not None:
        if spec.workers != _current.spec.workers or spec.index != _current.spec.index:
            raise ClusterError(
                "This process is a worker of another cluster already.", hint="Start a new one."
            )
        _current.check()
        return _describe(_current)
    require_versions()
    if runtime.started():
        raise ClusterError(
            "TensorFlow has started: a process joins a cluster before its first model.",
            hint="Call gpu_cluster() first, after gpu_setup().",
        )
    sync_environment()
    _current = _join(spec)
    return _describe(_current)


def leave_cluster() -> None:
    """Leaves the cluster; workers that still wait for this one receive a fault."""
    if _current is not None:
        _current.channel.close()


def wake() -> None:
    """Resumes heartbeats when Python runs again."""
    if _current is not None:
        _current.channel.resume()


def rest() -> None:
    """Announces a rest: while R runs, Python's threads may stand still and send no heartbeats."""
    if _current is not None:
        _current.channel.rest()


@contextmanager
def resting() -> Iterator[None]:
    """A context for a call of an R function: rests the channel and resumes it afterwards."""
    rest()
    try:
        yield
    finally:
        wake()


# Collective work ---------------------------------------------------------------------------------


@contextmanager
def propagate_failures() -> Iterator[None]:
    """A context for the collective work of a cluster's workers.

    Raises:
        ClusterError: if a worker has been lost, or TensorFlow's connection to it, in place of the
            error that this caused.
    """
    cluster = _current
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
        cause = _find_cause(error)
        of_others = cause is not None and _is_of_others(cause)
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


def _find_cause(error: BaseException) -> BaseException | None:
    """Returns TensorFlow's error that another was raised from, or that it is itself, or None."""
    kind, link = runtime.tensorflow().errors.OpError, error
    while link is not None and not isinstance(link, kind):
        link = link.__cause__  # type: ignore[assignment]
    return link


def _is_of_others(error: BaseException) -> bool:
    """Whether an error of TensorFlow tells of other workers, and not of what this one computes."""
    text = str(error)
    return type(error).__name__ in OF_OTHERS or any(part in text for part in TOLD_BY_OTHERS)


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
    if _current is None:
        raise SpecError(
            '`shard` = "workers" is for the workers of a cluster.',
            hint="Call gpu_cluster() first, or give c(1, 4) for the first of four.",
            arg="shard",
        )
    with propagate_failures():
        channel = _current.channel
        shard = WorkerShard(channel.index, channel.size, channel.exchange)
        yield {**options, "shard": (1, 1)}, shard


# Joining ------------------------------------------------------------------------------------------


def _join(spec: ClusterSpec) -> Session:
    local = [devices.short_name(gpu) for gpu in runtime.visible_devices("GPU")] or ["CPU:0"]
    description = {**read_versions(), "devices of each worker": len(local)}
    times, began = open_times(spec.workers), time.monotonic()
    limit_s = times.timeout(JOIN).seconds
    channel = open_channel(spec, description, on_loss=_abort, join_timeout_s=limit_s)
    times.add(JOIN, time.monotonic() - began)
    own = parse_address(spec.own)
    try:
        _check_port(own)
        channel.exchange("start", {})  # waits until all workers have a free port
        with confining(own.port, own.host) as confined:
            strategy = _open_strategy(spec, local)
        channel.exchange("ready", {})  # a collective fails where a server does not listen yet
    except BaseException as error:
        channel.fail(error)
        raise
    shares = BatchSharding(spec.size * len(local), spec.index * len(local), tuple(local))
    session = Session(spec, channel, strategy, shares, times, list(channel.notes))
    session.check()
    if not confined.is_set():
        session.notes.append(
            f"TensorFlow listens on port {own.port} of all of this computer's addresses."
        )
    return session


def _check_port(own: Address) -> None:
    if read_is_taken(own.port):
        raise ClusterError(
            f"Port {own.port} of {own} is in use on this computer.",
            hint="Choose another port, or end the program that has it.",
            address=str(own),
        )


def _abort(message: str) -> None:
    """Aborts collectives that wait for a lost worker; runs in the channel's thread."""
    if runtime.imported() and runtime.started():
        runtime.abort_collectives(message)


def _open_strategy(spec: ClusterSpec, local: list[str]) -> Any:
    tf = runtime.tensorflow()
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(spec.workers)}),
        task_type="worker",
        task_id=spec.index,
        num_accelerators={"GPU": sum(name.startswith("GPU") for name in local)},
        rpc_layer="grpc",
    )
    kinds = tf.distribute.experimental.CommunicationImplementation
    kind = kinds.AUTO if local[0].startswith("GPU") else kinds.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=kind)
    try:
        return open_multi_worker(resolver, options)
    except tf.errors.OpError as error:
        reason = find_reason(error)
        message = f"TensorFlow cannot start a worker at {spec.own}: {reason}."
        raise ClusterError(message) from error


def _describe(session: Session) -> dict[str, Any]:
    spec = session.spec
    return {
        "workers": list(spec.workers),
        "index": spec.index + 1,
        "size": spec.size,
        "address": spec.own,
        "chief": spec.workers[0],
        "control": spec.control,
        "source": spec.source,
        "loopback": spec.loopback,
        "secret": bool(spec.credentials.secret),
        "tls": spec.credentials.tls is not None,
        "devices": list(session.shares.devices),
        "replicas": session.shares.replicas,
        "timeouts": [session.times.timeout(what) for what in (JOIN, CALL)],
        "notes": list(session.notes),
    }
