"""Starts the workers of a training as processes of this computer, and monitors them.

    start_launch(script, workers, options) --> Launch.wait() / .look() / .stop() --> LaunchRecord

A worker reads its role from TF_CONFIG and GPUKERAS_CONTROL in its environment, and the secret of
this launch from GPUKERAS_SECRET. It ends with this process at the latest. Workers of other
computers are not started: the record holds their commands.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpukeras.core.child_process import CORE
from gpukeras.core.errors import DataError, RuntimeMissingError, SpecError
from gpukeras.distributed.addresses import find_ports, parse_address, read_is_free, read_is_here
from gpukeras.distributed.cluster_config import ClusterSpec
from gpukeras.distributed.credentials import SECRET
from gpukeras.distributed.launcher.launch import TAIL_LINES, Launch
from gpukeras.distributed.launcher.plan import (
    VISIBLE,
    LaunchSpec,
    WorkerPlan,
    check_workers,
    choose_language,
    choose_shares,
    plan_local,
    plan_workers,
    without_default_folders,
)
from gpukeras.distributed.launcher.worker_process import WorkerProcess
from gpukeras.system import host
from gpukeras.system.environment import current_variables
from gpukeras.system.host import choose_visible

SECRET_BYTES = 32  # bytes of a secret that is made for one launch
_launches: list[Launch] = []  # kept: a launch that is freed ends its workers


# Starting -----------------------------------------------------------------------------------------


def start_launch(script: str, workers: Any = 2, options: Mapping[str, Any] | None = None) -> Launch:
    """Starts the workers of this computer; the record holds the commands of the others.

    Args:
        script: Path of an R script (.R) or Python script (.py), which each worker runs.
        workers: Number of workers on this computer's loopback address, at free ports; or the
            addresses of workers on any computers, "host:port".
        options: See `LaunchSpec`.

    Raises:
        SpecError: for options out of range, or a port that is in use.
        DataError: if the script or the folder does not exist or is none.
        RuntimeMissingError: on a system that is neither Linux nor macOS.
    """
    spec = LaunchSpec.from_dict(dict(options or {}))
    workers = check_workers(workers)
    _check_script(script)
    local = isinstance(workers, int)
    cluster = plan_local(find_ports(workers + 1)) if local else ClusterSpec(tuple(workers), 0)
    here = [spec.start and (local or _is_here(address)) for address in cluster.workers]
    shares, notes = _read_shares(here)
    python = spec.python or sys.executable
    secret = current_variables().get(SECRET) or secrets.token_hex(SECRET_BYTES)
    plans = plan_workers(
        cluster, script, spec, here=here, shares=shares, python=python, secret=secret
    )
    made = Launch(script, cluster, plans, spec.timeout_s, notes)
    if not any(here):
        return made
    _check_system()
    if not local:
        _check_ports([plan.address for plan in plans if plan.here])
    folder = _make_folder(spec.log_dir)
    made.log_dir = str(folder)
    made.processes = _start(plans, spec, folder, python)
    _launches[:] = [*(launch for launch in _launches if launch.runs), made]
    return made


def _check_script(script: Any) -> None:
    choose_language(script)
    path = Path(script)
    if not path.is_file():
        raise DataError(
            f"`script` is the file {path.name}, which is not there.",
            hint="A relative path starts at the working directory.",
            arg="script",
            path=str(path.absolute()),
        )


def _check_system() -> None:
    if os.name != "posix":
        raise RuntimeMissingError(
            "Workers can be started on Linux and macOS only.",
            hint="On Windows, use the Windows Subsystem for Linux.",
        )


def _is_here(address: str) -> bool:
    return read_is_here(parse_address(address).host)


def _check_ports(addresses: Sequence[str]) -> None:
    for address in addresses:
        if not read_is_free(parse_address(address)):
            message = f"`workers` has {address}, and that port of this computer is in use."
            raise SpecError(message, hint="Choose another port.", arg="workers")


def _read_shares(here: Sequence[bool]) -> tuple[list[str | None], list[str]]:
    """Returns CUDA_VISIBLE_DEVICES of each worker, and sentences about it."""
    count = sum(here)
    chosen, note = choose_shares(read_gpus(current_variables()) if count else [], count)
    shares = iter(chosen)
    return [next(shares) if started else None for started in here], [note] if note else []


def read_gpus(environment: Mapping[str, str]) -> list[str]:
    """Returns the CUDA_VISIBLE_DEVICES names of the NVIDIA GPUs that a process may use."""
    gpus, visible = host.read_nvml() or [], environment.get(VISIBLE)
    if visible is None:
        return [str(index) for index in range(len(gpus))]
    count = len(choose_visible([gpu.uuid for gpu in gpus], visible))
    return [token.strip() for token in visible.split(",")][:count]


def _make_folder(log_dir: str) -> Path:
    if not log_dir:
        return Path(tempfile.mkdtemp(prefix="gpukeras-launch-"))
    path = Path(os.path.abspath(os.path.expanduser(log_dir)))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"`log_dir` is {path.name}, which cannot be made a folder: {error.strerror}."
        raise DataError(message, arg="log_dir", path=str(path)) from error
    return path


def _start(
    plans: Sequence[WorkerPlan], spec: LaunchSpec, folder: Path, python: str
) -> dict[int, WorkerProcess]:
    inherited = _read_inherited(spec, choose_language(plans[0].command[1]))
    run, started = _next_run(folder), dict[int, WorkerProcess]()
    try:
        for plan in (plan for plan in plans if plan.here):
            log = folder / _name_log(plan.worker, run)
            environment = {**inherited, **plan.variables}
            started[plan.worker] = WorkerProcess(plan.command, environment, log, python)
    except OSError as error:
        raise DataError(
            f"Worker {len(started) + 1} cannot be started: {error.strerror}.",
            arg="log_dir",
            path=str(error.filename or folder),
        ) from error
    finally:
        if len(started) < sum(plan.here for plan in plans):  # after an interrupt too
            for process in started.values():
                process.stop()
    return started


def _read_inherited(spec: LaunchSpec, language: str) -> dict[str, str]:
    inherited = {**current_variables(), **spec.variables}
    if language == "R":
        return {**inherited, "R_TESTS": ""}  # R CMD check's file, unknown to workers
    # Python scripts find this package; their output is not buffered.
    paths = [str(CORE), *filter(None, [inherited.get("PYTHONPATH")])]
    python = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    return {**without_default_folders(inherited), **python}


def _name_log(worker: int | str, run: int) -> str:
    return f"worker-{worker}.log" if run == 1 else f"worker-{worker}-run-{run}.log"


def _next_run(folder: Path) -> int:
    """Returns the number of the next launch: logs of earlier ones in the folder are kept."""
    run = 1
    while any(folder.glob(_name_log("*", run))):  # the names of a launch's logs hold its number
        run += 1
    return run


# What R calls ------------------------------------------------------------------------------------


def launch(
    script: str, workers: Any = 2, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Starts workers; returns their record with a `handle` for the other functions.

    Args:
        script: See `start_launch()`.
        workers: See `start_launch()`.
        options: See `start_launch()`.
    """
    return _with_handle(start_launch(script, workers, options))


def launch_status(handle: Launch) -> dict[str, Any]:
    """Returns the current status of the workers, see `LaunchRecord`."""
    return _with_handle(handle)


def launch_wait(handle: Launch, timeout_s: float = 0.0) -> dict[str, Any]:
    """Waits until all workers have ended, or for `timeout_s` seconds; returns their record."""
    handle.wait(timeout_s)
    return _with_handle(handle)


def launch_stop(handle: Launch) -> dict[str, Any]:
    """Stops all workers; returns their record."""
    handle.stop()
    with suppress(ValueError):
        _launches.remove(handle)
    return _with_handle(handle)


def launch_log(handle: Launch, worker: int, lines: int = TAIL_LINES) -> list[str]:
    """Returns the last lines of a worker's log.

    Args:
        handle: The launch.
        worker: The worker's number, from 1.
        lines: Largest number of lines.
    """
    return handle.tail(worker, lines)


def _with_handle(made: Launch) -> dict[str, Any]:
    return {"handle": made, **vars(made.look())}
