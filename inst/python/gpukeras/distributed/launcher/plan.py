"""Plans a launch: each worker's command, environment variables and GPUs; starts nothing."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpukeras.core.errors import SpecError
from gpukeras.core.options import (
    Spec,
    check_count,
    check_flag,
    check_number,
    refused_value,
)
from gpukeras.distributed.addresses import LOOPBACK
from gpukeras.distributed.cluster_config import (
    CONTROL,
    TF_CONFIG,
    TIMEOUT_S,
    ClusterSpec,
    parse_workers,
)
from gpukeras.distributed.credentials import SECRET

MOST_WORKERS = 1000  # larger numbers are typing errors
VISIBLE, NO_GPU = "CUDA_VISIBLE_DEVICES", "-1"
LIBRARIES = "LD_LIBRARY_PATH"
DEFAULT_FOLDER = re.compile(r"(/usr)?/lib(64)?(/[^/]+-linux-gnu[^/]*)?/?")
NAMED = re.compile(r"\bworker (\d+) \(", re.IGNORECASE)  # in messages of the control channel


@dataclass(frozen=True)
class LaunchSpec(Spec):
    """The options of a launch.

    Args:
        args: Arguments of the script.
        log_dir: Folder of the workers' logs; "" for a new temporary one.
        timeout_s: Seconds that the others have to end by themselves once a worker has failed.
        start: Whether workers of this computer are started, or only their commands returned.
        rscript: The program that runs R scripts.
        python: The Python that runs Python scripts; "" for this one.
        variables: Environment variables of the workers, in addition to this process's.
    """

    args: tuple[str, ...] = ()
    log_dir: str = ""
    timeout_s: float = TIMEOUT_S
    start: bool = True
    rscript: str = "Rscript"
    python: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        args = self.args if isinstance(self.args, (list, tuple)) else (self.args,)
        if not all(isinstance(value, str) for value in args):
            raise SpecError("`args` must be texts, the script's arguments.", arg="args")
        if self.log_dir is not None and not isinstance(self.log_dir, str):
            raise refused_value("log_dir", self.log_dir, "a folder")
        if self.variables is not None and not isinstance(self.variables, Mapping):
            raise refused_value("variables", self.variables, "texts by name")
        self._set(
            args=tuple(args),
            log_dir=self.log_dir or "",
            timeout_s=check_number("timeout", self.timeout_s, 0.0),
            start=check_flag("start", self.start),
            variables=dict(self.variables or {}),
        )


@dataclass(frozen=True)
class WorkerPlan:
    """The plan of one worker.

    Args:
        worker: Its number, from 1.
        address: Its address.
        command: Its program and arguments.
        variables: Environment variables that set its role.
        here: Whether it is started on this computer.
        line: The shell command that starts it by hand.
    """

    worker: int
    address: str
    command: tuple[str, ...]
    variables: Mapping[str, str]
    here: bool
    line: str

    @property
    def gpus(self) -> str:
        """Its value of CUDA_VISIBLE_DEVICES; "" where that is left unchanged."""
        return self.variables.get(VISIBLE, "")


def check_workers(workers: Any) -> int | list[str]:
    """Checks a number of workers on this computer, or their addresses.

    Raises:
        SpecError: if it is neither.
    """
    if isinstance(workers, (int, float)) or workers is None:
        return check_count("workers", workers, 1, MOST_WORKERS)
    return list(map(str, parse_workers(workers)))


def plan_local(ports: Sequence[int]) -> ClusterSpec:
    """Returns a cluster on this computer alone; the last port is the control channel's."""
    addresses = [f"{LOOPBACK}:{port}" for port in ports]
    return ClusterSpec(tuple(addresses[:-1]), 0, addresses[-1])


def plan_workers(
    cluster: ClusterSpec,
    script: str,
    spec: LaunchSpec,
    *,
    here: Sequence[bool],
    shares: Sequence[str | None],
    python: str,
    secret: str,
) -> list[WorkerPlan]:
    """Plans each worker of a launch.

    Args:
        cluster: The workers.
        script: The script's path as the user gave it.
        spec: The options.
        here: Which workers are started on this computer.
        shares: CUDA_VISIBLE_DEVICES of each; None leaves it unchanged.
        python: The Python that runs Python scripts.
        secret: The workers' shared secret, see `credentials`.
    """
    is_r = choose_language(script) == "R"
    command = (spec.rscript if is_r else python, script, *spec.args)
    typed = ("Rscript" if is_r else "python", script, *spec.args)
    plans = []
    for index, address in enumerate(cluster.workers):
        config = json.dumps(replace(cluster, index=index).tf_config(), separators=(",", ":"))
        variables = {TF_CONFIG: config, CONTROL: cluster.control, SECRET: secret}
        share = shares[index]
        if share is not None:
            variables[VISIBLE] = share
        assigned = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        line = " ".join([*assigned, shlex.join(typed)])
        plans.append(WorkerPlan(index + 1, address, command, variables, here[index], line))
    return plans


def choose_language(script: str) -> str:
    """Returns the language of a script, "R" or "Python", from its file name extension.

    Raises:
        SpecError: if it is neither.
    """
    end = script.rpartition(".")[2].lower() if isinstance(script, str) else ""
    if end not in ("r", "py"):
        expected = "the path of an R script (.R) or Python script (.py)"
        raise refused_value("script", script, expected)
    return "R" if end == "r" else "Python"


def choose_shares(gpus: Sequence[str], workers: int) -> tuple[list[str | None], str]:
    """Returns the GPUs of each worker of this computer, and a sentence about them, or "".

    All workers get the same number, because TensorFlow's collectives require that. Workers cannot
    share a GPU (NCCL refuses that): with fewer GPUs than workers, no worker gets any.

    Args:
        gpus: The CUDA_VISIBLE_DEVICES names of the GPUs of this computer that may be used.
        workers: Number of workers started here.
    """
    if not gpus or not workers:
        return [None] * workers, ""
    each = len(gpus) // workers
    if not each:
        note = f"There are {workers} workers here, more than GPUs ({len(gpus)}): workers cannot "
        return [NO_GPU] * workers, f"{note}share one, so all train on the CPU."
    shares = [",".join(gpus[i * each : (i + 1) * each]) for i in range(workers)]
    left = len(gpus) - each * workers
    note = f"Each worker gets {each} of {len(gpus)} GPUs, and {left} {'is' if left == 1 else 'are'}"
    return list(shares), f"{note} not used: all must have the same number." if left else ""


def choose_first(ends: Mapping[int, tuple[float, str]]) -> int:
    """Returns the worker that failed first.

    A failing worker sends its error to the others before it ends, so they may end before it: a
    worker whose error names another failed worker is not the first.

    Args:
        ends: The time at which each worker ended, and its error.
    """
    first, seen = min(ends, key=lambda worker: ends[worker][0]), set[int]()
    while first not in seen:
        seen.add(first)
        named = [int(number) for number in NAMED.findall(ends[first][1])]
        first = next((other for other in named if other in ends and other != first), first)
    return first


def without_default_folders(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment for a Python program that is started from R on Linux.

    R puts the system's folders into LD_LIBRARY_PATH, where they come before those that a Python
    names itself (RUNPATH): one that is not the system's then loads the system's libpython. They are
    searched anyway, but last (ld.so(8)).
    """
    kept = dict(environment)
    folders = [folder for folder in kept.get(LIBRARIES, "").split(":") if folder]
    left = [folder for folder in folders if not DEFAULT_FOLDER.fullmatch(folder)]
    if left != folders:
        kept[LIBRARIES] = ":".join(left)
    return kept
