"""Worker processes: started when they are needed, replaced where one dies, ended with this process.

with open_pool(plan, data) as pool:
    for job, result in pool.run(jobs, stops): ...
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import devices, runtime
from gpukeras.backend.jax_backend import find_share
from gpukeras.core.attached_process import AttachedProcess
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.core.messages import find_reason, system_reason
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.many.fits import Fitted, ModelHistory
from gpukeras.many.futures import JobFiles
from gpukeras.many.jobs import Job, JobResult
from gpukeras.many.step import PARTS
from gpukeras.many.workers.plan import WorkerResources, WorkersError, WorkersPlan
from gpukeras.many.workers.rows import write_rows
from gpukeras.models.clone import has_settings
from gpukeras.models.identity import describe_own_code
from gpukeras.system.environment import current_variables

PROGRAM = "gpukeras.many.workers.main"
POLL_S = 0.05  # seconds between two looks at the workers
STOP_S = 10.0
KILLED = "killed by SIGKILL"


class TransferError(Exception):
    """A model cannot cross to another process; the text says why."""


class JobWorker(ABC):
    """A process that trains what it is given.

    Attributes:
        ready: Whether it has started.
        job: What it does, or None.
        model: The file of the model that it was given last, or "".
    """

    ready = False
    job: Job | None = None
    model = ""
    _read = 0  # bytes of its answers so far

    def submit(self, job: Job, message: Mapping[str, Any]) -> None:
        """Gives it a job; a worker that has died shows that later."""
        self.job = job
        self.model = message["model"]
        with suppress(OSError):
            # NumPy arrays and numbers as JSON has them
            self.write(json.dumps(message, default=lambda each: each.tolist()).encode() + b"\n")

    def poll(self) -> dict[str, Any] | None:
        """Returns its next answer, if there is one."""
        while True:
            said = self.read(self._read, 2**24)
            line, end, _ = said.partition(b"\n")
            if not end:
                return None
            self._read += len(line) + 1
            told = json.loads(line)
            if "ready" not in told:
                return dict(told)
            self.ready = True

    @abstractmethod
    def write(self, line: bytes) -> None:
        """Sends it a line."""

    @abstractmethod
    def read(self, place: int, size: int) -> bytes:
        """Returns what it has said from a place on, of at most a size."""

    @abstractmethod
    def explain_end(self) -> str:
        """Says how it ended."""


class Worker(JobWorker, AttachedProcess):
    """A worker that is a child of this process.

    Args:
        resources: What it gets.
        folder: The folder of rows and models.
    """

    def __init__(self, resources: WorkerResources, folder: Path) -> None:
        """Starts the process and waits for nothing."""
        arguments = "-m", PROGRAM, str(folder), json.dumps(make_setup(resources))
        super().__init__(sys.executable, arguments, make_environment(resources), STOP_S)

    def _await(self) -> None:
        """Returns at once: workers start side by side."""

    def write(self, line: bytes) -> None:
        """Sends it a line."""
        pipe = self._child.stdin
        assert pipe is not None
        pipe.write(line)
        pipe.flush()

    def read(self, place: int, size: int) -> bytes:
        """Returns what it has said from a place on, of at most a size."""
        return self._out.read(place, size)

    def explain_end(self) -> str:
        """Says how it ended."""
        status = self._status()
        if status == KILLED:
            return f"its worker was {status}, as Linux does where memory runs out"
        return f"its worker ended, {self._explain_end()}"


class FutureWorker(JobFiles, JobWorker):
    """A worker that an engine of R's has started."""


class WorkerPool:
    """Workers and the folder that they share.

    Args:
        plan: What each worker gets.
        folder: A folder with the rows.
    """

    def __init__(self, plan: WorkersPlan, folder: Path) -> None:
        """Starts nothing."""
        self._folder = folder
        self._resources = list(plan.workers)
        self._futures = plan.futures
        self._started = itertools.count()
        self._workers: list[Worker | FutureWorker | None] = [None] * len(plan.workers)
        self._any_ready = False
        self._files = 0  # models that were written
        self._last: tuple[Any, str] = (None, "")  # the last of them, and its file

    def run(
        self, jobs: Iterable[Job], stops: Callable[[], bool]
    ) -> Iterator[tuple[Job, JobResult]]:
        """Yields what came of each job, as soon as it is known; fewer if `stops()` was true.

        Args:
            jobs: The jobs; those of one model come one after another.
            stops: Whether to end.

        Raises:
            WorkersError: if the first workers end before they have started.
        """
        waiting = iter(jobs)
        busy = True
        while busy:
            told: list[tuple[Job, JobResult]] = []
            for place in range(len(self._resources)):
                told += self._fill_slot(place, waiting)
            busy = any(worker and worker.job for worker in self._workers)
            told += [answer for answer in map(self._hear, range(len(self._resources))) if answer]
            self._drop_models()
            yield from told
            if stops():
                self.close()
                return
            if busy and not told:
                time.sleep(POLL_S)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            if worker is not None:
                worker.stop()
        self._workers = [None] * len(self._resources)

    def _fill_slot(self, place: int, waiting: Iterator[Job]) -> Iterator[tuple[Job, JobResult]]:
        """Gives an idle worker the next job, and starts one; yields jobs that cannot cross."""
        worker = self._workers[place]
        if worker is not None and worker.job is not None:
            return
        for job in waiting:
            try:
                file = self._write_model(job.model)
            except TransferError as error:
                yield job, JobResult(None, str(error), crossed=False)
                continue
            if worker is not None and not worker.runs:  # it died with nothing to do
                worker.stop()
                worker = None
            if worker is None:
                worker = self._workers[place] = self._start(self._resources[place])
            worker.submit(job, self._describe(job, file))
            return

    def _start(self, resources: WorkerResources) -> Worker | FutureWorker:
        if self._futures is None:
            return Worker(resources, self._folder)
        setup, place = make_setup(resources), str(next(self._started))
        return FutureWorker(self._futures, self._folder, place, setup)

    def _write_model(self, model: Model) -> str:
        """Writes a model for the workers, unless it was the last one; returns its file.

        Raises:
            TransferError: if it cannot cross.
        """
        last, file = self._last
        if model is last:
            return file
        if describe_own_code(model):
            raise TransferError("models have functions or classes of your own")
        if has_settings(model):
            raise TransferError("models have settings of single variables")
        self._files += 1
        file = f"model-{self._files}.keras"
        try:
            runtime.keras().saving.save_model(model, self._folder / file)
        except (*REFUSALS, OSError) as error:
            raise TransferError(f"models cannot be saved: {find_reason(error)}") from error
        self._last = model, file
        return file

    def _drop_models(self) -> None:
        """Deletes models that no worker trains, and that no further job will name."""
        used = {worker.model for worker in self._workers if worker and worker.job}
        for path in self._folder.glob("model-*.keras"):
            if path.name not in {*used, self._last[1]}:
                path.unlink(missing_ok=True)

    def _describe(self, job: Job, file: str) -> dict[str, Any]:
        number = job.number
        rows, arrays = f"rows-of-{number}.npz", f"arrays-of-{number}.npz"
        np.savez(self._folder / rows, train=job.train, held_out=job.held_out)
        apart = ("number", "model", "train", "held_out")
        how = {name: value for name, value in vars(job).items() if name not in apart}
        return {"job": number, "model": file, "rows": rows, "arrays": arrays, "how": how}

    def _hear(self, place: int) -> tuple[Job, JobResult] | None:
        worker = self._workers[place]
        if worker is None or worker.job is None:
            return None
        runs, job = worker.runs, worker.job
        told = worker.poll()  # after `runs`: what it said last is not lost
        self._any_ready |= worker.ready
        if told is not None:
            worker.job = None
            return job, self._read(job, told)
        if runs:
            return None
        why = worker.explain_end()
        self._workers[place] = None
        worker.stop()
        if not self._any_ready:
            raise WorkersError(why.replace("its worker", "a worker"))
        return job, JobResult(None, why)

    def _read(self, job: Job, told: Mapping[str, Any]) -> JobResult:
        """Reads an answer, and deletes its files."""
        (self._folder / f"rows-of-{job.number}.npz").unlink(missing_ok=True)
        if told["error"]:
            return JobResult(None, told["error"], told["seconds"])
        history = ModelHistory(**told["history"])
        state, outputs = _read_arrays(self._folder / f"arrays-of-{job.number}.npz")
        return JobResult(Fitted(history, state, outputs), seconds=told["seconds"])


def _read_arrays(path: Path) -> tuple[dict[str, list[np.ndarray]], np.ndarray | None]:
    if not path.exists():
        return {}, None
    with np.load(path) as file:
        arrays = dict(file)
    path.unlink()
    outputs = arrays.pop("outputs", None)
    state: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
    for name, array in arrays.items():  # in the order in which they were written
        state[name.partition("-")[0]].append(array)
    return state, outputs


@contextmanager
def open_pool(plan: WorkersPlan, data: MapDataset) -> Iterator[WorkerPool]:
    """Yields workers for the rows of a dataset; ends them, and deletes their folder.

    Args:
        plan: What each worker gets.
        data: The rows.

    Raises:
        WorkersError: if the rows cannot cross.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="gpukeras-workers-", ignore_cleanup_errors=True)
    except OSError as error:
        raise WorkersError(f"rows could not be written: {system_reason(error)}") from error
    with folder as name:
        write_rows(data, Path(name))
        pool = WorkerPool(plan, Path(name))
        try:
            yield pool
        finally:
            pool.close()


# Settings ----------------------------------------------------------------------------------------


def make_setup(resources: WorkerResources) -> dict[str, Any]:
    """Returns the arguments of `devices.setup()` in a worker: this process' own, and its resources.

    JAX takes a share of a card's memory by a variable, see `make_environment()`.
    """
    here, backend = devices.current(), runtime.backend()
    limited = resources.memory_mib is not None and backend != "jax"
    return {
        "device": resources.device,
        "memory": resources.memory_mib if limited else "growth",
        "precision": here.precision,
        "jit": here.jit,
        "threads": resources.threads if backend == "tensorflow" else None,
        "seed": devices.read_seed(),
        "deterministic": here.deterministic,
        "tf32": bool(runtime.tensor_float_32()),
        "backend": backend,
    }


def make_environment(resources: WorkerResources) -> dict[str, str]:
    """Returns the variables of a worker's process."""
    variables = {**current_variables(), "KERAS_BACKEND": runtime.backend()}
    if runtime.backend() == "jax" and resources.memory_mib is not None and resources.total_mib:
        variables[find_share()] = f"{resources.memory_mib / resources.total_mib:.3f}"
    return variables
