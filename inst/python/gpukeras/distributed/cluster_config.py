"""Reads the configuration of a cluster: the workers, and the index of this process.

    read_cluster(options, environment) --> ClusterSpec

The user's options take precedence over TF_CONFIG, TensorFlow's own variable, and TF_CONFIG over
Slurm's variables. A worker is a process; the first is the chief, which alone writes files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpukeras.core.errors import SpecError
from gpukeras.core.messages import list_names
from gpukeras.core.options import Spec, check_count, check_number, describe
from gpukeras.distributed.addresses import LAST_PORT, Address, parse_address
from gpukeras.distributed.credentials import SECRET, Credentials, read_credentials
from gpukeras.distributed.slurm import parse_slurm

CONTROL = "GPUKERAS_CONTROL"  # the variable that gives the control channel's address
GIVEN, TF_CONFIG, SLURM = "as given", "TF_CONFIG", "SLURM"
TIMEOUT_S = 60.0  # network faults last seconds; a lost computer is lost for minutes
OPTIONS = ("workers", "index", "timeout_s", "control", "secret", "tls")
LAUNCH_HINT = "To start workers on this computer use gpu_launch()."


@dataclass(frozen=True)
class ClusterSpec(Spec):
    """The workers of a training, and the index of this process.

    Args:
        workers: Their addresses, "host:port", the chief's first; all different. IPv6 in brackets.
        index: This process's index among them, counted from 0.
        control: Address of the chief's control channel; "" for the chief's host and the port
            after the highest that a worker has there.
        timeout_s: Seconds of silence after which a worker counts as lost, at least 1.
        source: Where the configuration comes from: "as given", "TF_CONFIG" or "SLURM".
        credentials: The secret and the certificates that authenticate workers.
    """

    workers: tuple[str, ...]
    index: int = 0
    control: str = ""
    timeout_s: float = TIMEOUT_S
    source: str = GIVEN
    credentials: Credentials = field(default_factory=Credentials)

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        arg = "workers" if self.source == GIVEN else self.source
        index_arg = "index" if self.source == GIVEN else self.source
        addresses = parse_workers(self.workers, arg)
        control = (
            parse_address(self.control, "control") if self.control else choose_control(addresses)
        )
        _check_reachable(addresses, control, arg)
        self._set(
            workers=tuple(map(str, addresses)),
            index=check_count(index_arg, self.index, 0, len(addresses) - 1),
            control=str(control),
            timeout_s=check_number("timeout", self.timeout_s, 1.0),
        )

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.workers)

    @property
    def own(self) -> str:
        """This worker's address."""
        return self.workers[self.index]

    @property
    def loopback(self) -> bool:
        """Whether no other computer can reach any of the workers."""
        return all(parse_address(text).is_loopback for text in (*self.workers, self.control))

    def tf_config(self) -> dict[str, Any]:
        """Returns the content of TensorFlow's variable TF_CONFIG, before it is written as JSON."""
        task = {"type": "worker", "index": self.index}
        return {"cluster": {"worker": list(self.workers)}, "task": task}


def read_cluster(options: Mapping[str, Any] | None, environment: Mapping[str, str]) -> ClusterSpec:
    """Reads the cluster from the options or, failing these, from the environment.

    Args:
        options: `workers` (addresses), `index` (counted from 1), `timeout_s`, `control`, `secret`
            and `tls` (see `credentials`); None and missing keys count as not given.
        environment: The process's variables: TF_CONFIG, those of Slurm, GPUKERAS_CONTROL for
            `control`, and GPUKERAS_SECRET for `secret`.

    Raises:
        SpecError: if nothing describes a cluster, the description is wrong, or workers on several
            computers have no secret and no certificates.
    """
    named = {name: value for name, value in dict(options or {}).items() if value is not None}
    _check_options(named)
    taken = (
        _take_workers(named)
        or parse_tf_config(environment.get(TF_CONFIG, ""))
        or _take_slurm(environment)
    )
    if taken is None:
        raise SpecError(
            "Nothing says who the workers are.",
            hint="Give `workers` and `index`, or set TF_CONFIG, or start this by Slurm's srun. "
            + LAUNCH_HINT,
            arg="workers",
        )
    workers, index, source = taken
    control = named.get("control") or environment.get(CONTROL, "")
    credentials = read_credentials(named.get("secret"), named.get("tls"), environment)
    timeout_s = named.get("timeout_s", TIMEOUT_S)
    spec = ClusterSpec(workers, index, control, timeout_s, source, credentials)
    _check_known(spec)
    return spec


def _check_options(named: Mapping[str, Any]) -> None:
    unknown = [name for name in named if name not in OPTIONS]
    if unknown:
        hint = f"Options are {list_names(OPTIONS)}."
        raise SpecError(f"Unknown option `{unknown[0]}`.", hint=hint, arg=unknown[0])
    if "index" in named and "workers" not in named:
        hint = "Give both, or neither where TF_CONFIG or Slurm says who the workers are."
        raise SpecError("`index` needs `workers`.", hint=hint, arg="index")


def _take_workers(named: Mapping[str, Any]) -> tuple[tuple[str, ...], int, str] | None:
    if "workers" not in named:
        return None
    workers = tuple(map(str, parse_workers(named["workers"])))
    if "index" not in named:
        message = f"`index` must say which of the {len(workers)} workers this process is."
        raise SpecError(message, hint="The first, which is the chief, is 1.", arg="index")
    return workers, check_count("index", named["index"], 1, len(workers)) - 1, GIVEN


def _take_slurm(environment: Mapping[str, str]) -> tuple[tuple[str, ...], int, str] | None:
    parsed = parse_slurm(environment)
    return None if parsed is None else (tuple(parsed[0]), parsed[1], SLURM)


def parse_workers(workers: Any, arg: str = "workers") -> list[Address]:
    """Parses the addresses of workers: a list of strings, or a single string.

    Raises:
        SpecError: if there are none, one is no address, or two are the same.
    """
    if isinstance(workers, (int, float)) and not isinstance(workers, bool):
        message = f'`{arg}` must be addresses "host:port", not a number.'
        raise SpecError(message, hint=LAUNCH_HINT, arg=arg)
    texts = list(workers) if isinstance(workers, (list, tuple)) else [workers]
    if not texts:
        raise SpecError(f"`{arg}` must have at least one address.", arg=arg)
    addresses = [parse_address(text, arg) for text in texts]
    for place, address in enumerate(addresses):
        if address in addresses[:place]:
            message = f"`{arg}` has {address} twice, as {addresses.index(address) + 1} and "
            raise SpecError(f"{message}{place + 1}: each worker has a port of its own.", arg=arg)
    return addresses


def parse_tf_config(text: str) -> tuple[tuple[str, ...], int, str] | None:
    """Returns the workers, the index from 0 and the source; None if TF_CONFIG names no cluster.

    Raises:
        SpecError: if it is no JSON, lacks a field, or has tasks other than workers.
    """
    if not text.strip():
        return None
    try:
        config = json.loads(text)
    except ValueError as error:
        raise SpecError(f"TF_CONFIG is not JSON: {error}.", arg=TF_CONFIG) from error
    jobs = config.get("cluster") if isinstance(config, Mapping) else config
    if not jobs and isinstance(config, Mapping):
        return None
    if not isinstance(jobs, Mapping) or not isinstance(config.get("task"), Mapping):
        hint = 'Such as {"cluster": {"worker": ["a:2222", "b:2222"]}, '
        hint += '"task": {"type": "worker", "index": 0}}.'
        raise SpecError("TF_CONFIG must have `cluster` and `task`.", hint=hint, arg=TF_CONFIG)
    return _take_tf_config(jobs, config["task"])


def _take_tf_config(
    jobs: Mapping[str, Any], task: Mapping[str, Any]
) -> tuple[tuple[str, ...], int, str]:
    kind, others = task.get("type"), [name for name, tasks in jobs.items() if tasks]
    unknown = [name for name in (*others, kind) if name not in ("chief", "worker")]
    if unknown:
        raise SpecError(
            f"TF_CONFIG has tasks of the type {describe(unknown[0])}; only workers train here, "
            'the types "chief" and "worker".',
            hint="Leave parameter servers and evaluators out: gpu_evaluate() runs on all workers.",
            arg=TF_CONFIG,
        )
    chiefs, workers = (_list_tasks(jobs.get(name)) for name in ("chief", "worker"))
    if len(chiefs) > 1:
        raise SpecError(f"TF_CONFIG has {len(chiefs)} chiefs instead of one.", arg=TF_CONFIG)
    own = chiefs if kind == "chief" else workers
    index = check_count(TF_CONFIG, task.get("index"), 0, max(0, len(own) - 1)) if own else -1
    if index < 0:
        raise SpecError(f'TF_CONFIG has no task of its own type "{kind}".', arg=TF_CONFIG)
    return (*chiefs, *workers), index + (len(chiefs) if kind == "worker" else 0), TF_CONFIG


def _list_tasks(tasks: Any) -> tuple[str, ...]:
    if tasks is not None and not isinstance(tasks, list):
        message = "TF_CONFIG must have the addresses of a kind of tasks as an array."
        raise SpecError(message, arg=TF_CONFIG)
    return tuple(map(str, parse_workers(tasks, TF_CONFIG))) if tasks else ()


# Rules --------------------------------------------------------------------------------------------


def choose_control(workers: list[Address]) -> Address:
    """Returns the default address of the control channel: the chief's host, another port."""
    host = workers[0].host
    taken = {worker.port for worker in workers if worker.host == host}
    ports = (max(taken) + 1, *range(LAST_PORT, 0, -1))
    return Address(host, next(port for port in ports if port <= LAST_PORT and port not in taken))


def _check_known(spec: ClusterSpec) -> None:
    if spec.loopback or spec.size == 1 or spec.credentials.given:
        return
    raise SpecError(
        f"Workers of several computers need a secret, and neither `secret` nor {SECRET} gives one: "
        "anybody who reaches the chief could take part.",
        hint=f"Before `srun`, write `export {SECRET}=$(openssl rand -hex 32)`; or give the path of "
        "a file with one, of mode 600, on each computer.",
        arg="secret",
    )


def _check_reachable(workers: list[Address], control: Address, arg: str) -> None:
    if control in workers:
        message = f"The control channel has the address {control}, which is a worker's."
        raise SpecError(message, hint="Give it a port of its own.", arg="control")
    near = [address for address in (*workers, control) if address.is_loopback]
    if near and len(near) <= len(workers):
        raise SpecError(
            f"`{arg}` has {near[0]}, which no other computer can reach, beside addresses of "
            "others.",
            hint="Give the address by which the others reach it.",
            arg=arg,
        )
