"""Workers that were started together: their status, waiting for them and stopping them.

When a worker fails, the others receive the fault over their control channel and end by themselves.
Those that still run after a time-out are stopped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpukeras.core.errors import SpecError
from gpukeras.core.options import check_count
from gpukeras.distributed.cluster_config import ClusterSpec
from gpukeras.distributed.launcher.plan import WorkerPlan, choose_first
from gpukeras.distributed.launcher.worker_process import WorkerProcess, parse_error, read_log_end

POLL_S = 0.05
TAIL_LINES = 20
ERROR_LINES = 100  # lines of a log's end that are searched for an error with its traceback
RUNNING, ELSEWHERE = "running", "not started"


@dataclass(frozen=True)
class WorkerRecord:
    """The current status of a worker.

    Args:
        worker: Its number, from 1.
        address: Its address.
        status: "running", "done", "failed", "stopped", or "not started" (here).
        exit_status: Its exit status, minus a signal's number, or None.
        seconds: How long it ran, or None.
        log: Its log, or "".
        gpus: Its CUDA_VISIBLE_DEVICES, "" where that was left unchanged.
        command: The command that starts it by hand.
    """

    worker: int
    address: str
    status: str
    exit_status: int | None
    seconds: float | None
    log: str
    gpus: str
    command: str


@dataclass(frozen=True)
class Failure:
    """The worker that failed first.

    Args:
        worker: Its number, from 1.
        address: Where it listened.
        reason: How it ended, such as "exit status 1".
        error: The error at the end of its log, one line; "" where there is none.
        log: Its log.
    """

    worker: int
    address: str
    reason: str
    error: str
    log: str


@dataclass(frozen=True)
class LaunchRecord:
    """The current status of all workers of a launch.

    Args:
        script: The script.
        workers: The workers.
        control: Address of the control channel.
        log_dir: Folder of the logs, "" where nothing was started.
        running: Whether a worker runs.
        failure: The worker that failed first, or None.
        notes: Sentences.
    """

    script: str
    workers: tuple[WorkerRecord, ...]
    control: str
    log_dir: str
    running: bool
    failure: Failure | None
    notes: tuple[str, ...]


class Launch:
    """Workers that were started together; no dataclass, as R gets those as plain lists.

    Args:
        script: The script.
        cluster: The workers' addresses.
        plans: The workers.
        timeout_s: Seconds that the others have to end by themselves once one has failed.
        notes: Sentences.

    Attributes:
        log_dir: Folder of the logs, "" where nothing was started.
        processes: The processes that run here, by the worker's number.
    """

    def __init__(
        self,
        script: str,
        cluster: ClusterSpec,
        plans: Sequence[WorkerPlan],
        timeout_s: float,
        notes: Sequence[str],
    ) -> None:
        """Starts nothing."""
        self.log_dir = ""
        self.processes: Mapping[int, WorkerProcess] = {}
        self._script = script
        self._cluster = cluster
        self._plans = plans
        self._timeout_s = timeout_s
        self._notes = list(notes)
        self._hurried = False

    @property
    def runs(self) -> bool:
        """Whether a worker runs."""
        return any(process.look() is None for process in self.processes.values())

    def look(self) -> LaunchRecord:
        """Returns the status of all workers; stops those that still run long after a failure."""
        failure = self._find_failure()
        if failure is not None:
            self._hurry(failure)
        return LaunchRecord(
            self._script,
            tuple(map(self._record, self._plans)),
            self._cluster.control,
            self.log_dir,
            self.runs,
            failure,
            tuple(self._notes),
        )

    def wait(self, timeout_s: float | None = None) -> LaunchRecord:
        """Waits until all workers have ended, or for `timeout_s` seconds.

        After a worker's failure the others have the launch's `timeout_s` to end by themselves.

        Args:
            timeout_s: Seconds to wait; None waits without a limit.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while (record := self.look()).running:
            if deadline is not None and time.monotonic() >= deadline:
                break
            time.sleep(POLL_S)
        return record

    def stop(self) -> LaunchRecord:
        """Stops all workers; may be called again."""
        for process in self.processes.values():
            process.ask()
        for process in self.processes.values():
            process.stop()
        return self.look()

    def tail(self, worker: int, lines: int = TAIL_LINES) -> list[str]:
        """Returns the last lines of a worker's log.

        Args:
            worker: Its number, from 1.
            lines: Largest number of lines.

        Raises:
            SpecError: if there is no such worker, or it was not started here.
        """
        worker = check_count("worker", worker, 1, len(self._plans))
        if worker not in self.processes:
            message = f"Worker {worker} was not started on this computer: its log is not here."
            raise SpecError(message, arg="worker")
        return read_log_end(self.processes[worker].log, check_count("n", lines))

    def _record(self, plan: WorkerPlan) -> WorkerRecord:
        process = self.processes.get(plan.worker)
        end = None if process is None else process.look()
        status = ELSEWHERE if process is None else RUNNING if end is None else end.state
        seconds = end.seconds if end else process.seconds if process else None
        log = "" if process is None else str(process.log)
        exit_status = None if end is None else end.status
        told = (status, exit_status, seconds, log, plan.gpus, plan.line)
        return WorkerRecord(plan.worker, plan.address, *told)

    def _find_failure(self) -> Failure | None:
        ends = {number: process.look() for number, process in self.processes.items()}
        failed = {
            number: (end.ended, parse_error(read_log_end(self.processes[number].log, ERROR_LINES)))
            for number, end in ends.items()
            if end is not None and end.state == "failed"
        }
        if not failed:
            return None
        first = choose_first(failed)
        end = ends[first]
        reason = "" if end is None else end.reason
        address, log = self._cluster.workers[first - 1], str(self.processes[first].log)
        return Failure(first, address, reason, failed[first][1], log)

    def _hurry(self, failure: Failure) -> None:
        """Asks workers to end that still run longer than the time-out after the first failure."""
        ends = [process.look() for process in self.processes.values()]
        first = min(end.ended for end in ends if end is not None and end.state == "failed")
        if self._hurried or time.monotonic() - first < self._timeout_s:
            return
        self._hurried = True
        late = [number for number, process in self.processes.items() if process.look() is None]
        for number in late:
            self.processes[number].ask()
            self._notes.append(
                f"Worker {number} was stopped: it had not ended {self._timeout_s:g} s after "
                f"worker {failure.worker} failed."
            )
