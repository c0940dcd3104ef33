"""Worker processes: started when they are needed, replaced where one dies, ended with this process.

with open_pool(plan, data) as pool:
    name = pool.keep_model(model)
    for task, result in pool.run(tasks, stops): ...
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import devices, runtime
from gpukeras.core.attached_server import AttachedServer
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.core.messages import find_reason, system_reason
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.many.alone import Job
from gpukeras.many.fits import Fitted, Ran
from gpukeras.many.histories import ModelHistory
from gpukeras.many.step import PARTS
from gpukeras.many.workers.plan import WorkerResources, WorkersPlan
from gpukeras.many.workers.rows import RowsError, write_rows
from gpukeras.models.identity import describe_own_code
from gpukeras.system.environment import current_variables

PROGRAM = "gpukeras.many.workers.main"
POLL_S = 0.05  # seconds between two looks at the workers
STOP_S = 10.0
SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
KILLED = "killed by SIGKILL"


class WorkersError(Exception):
    """No worker could be started; the text says why."""


class TransferError(Exception):
    """A model cannot cross to another process; the text says why."""


@dataclass(frozen=True)
class WorkerTask:
    """A training that a worker is to do.

    Args:
        number: A number that tells it from others.
        model: What `WorkerPool.keep_model()` returned.
        job: The training.
    """

    number: int
    model: str
    job: Job


@dataclass(frozen=True)
class TaskResult:
    """What came of a task.

    Args:
        fitted: What the model has become; None if the training failed.
        error: Why it failed, a sentence without its period, or "".
        seconds: Seconds that it took.
    """

    fitted: Fitted | None
    error: str = ""
    seconds: float = 0.0


class Worker(AttachedServer):
    """A worker process.

    Args:
        resources: What it gets.
        folder: The folder of rows and models.

    Attributes:
        ready: Whether it has started.
        task: What it does, or None.
    """

    def __init__(self, resources: WorkerResources, folder: Path) -> None:
        """Starts the process and waits for nothing."""
        self.ready, self._read = False, 0
        self.task: WorkerTask | None = None
        arguments = "-m", PROGRAM, str(folder), json.dumps(make_setup(resources))
        super().__init__(sys.executable, arguments, make_environment(resources), STOP_S)

    def _await(self) -> None:
        """Returns at once: workers start side by side."""

    def submit(self, task: WorkerTask, message: Mapping[str, Any]) -> None:
        """Gives it a task; a worker that has died shows that later."""
        self.task = task
        pipe = self._child.stdin
        assert pipe is not None
        with suppress(OSError):
            pipe.write(json.dumps(message, default=_as_plain).encode() + b"\n")
            pipe.flush()

    def poll(self) -> dict[str, Any] | None:
        """Returns its next answer, if there is one."""
        while True:
            said = self._out.read(self._read, 2**24)
            line, end, _ = said.partition(b"\n")
            if not end:
                return None
            self._read += len(line) + 1
            told = json.loads(line)
            if "ready" not in told:
                return dict(told)
            self.ready = True

    def explain_end(self) -> str:
        """Says how it ended."""
        status = self._status()
        if status == KILLED:
            return f"its worker was {status}, as Linux does where memory runs out"
        return ": ".join(filter(None, (f"its worker ended, {status}", self._last_words())))


class WorkerPool:
    """Workers and the folder that they share.

    Args:
        plan: What each worker gets.
        folder: A folder with the rows.
    """

    def __init__(self, plan: WorkersPlan, folder: Path) -> None:
        """Starts nothing."""
        self._folder, self._models = folder, 0
        self._resources = list(plan.workers)
        self._workers: list[Worker | None] = [None] * len(plan.workers)
        self._any_ready = False

    def keep_model(self, model: Model) -> str:
        """Writes a model for the workers; returns its name.

        Raises:
            TransferError: if it cannot cross.
        """
        if describe_own_code(model):
            raise TransferError("models have functions or classes of your own")
        self._models += 1
        name = f"model-{self._models}.keras"
        try:
            runtime.keras().saving.save_model(model, self._folder / name)
        except (*REFUSALS, OSError) as error:
            raise TransferError(f"models cannot be saved: {find_reason(error)}") from error
        return name

    def drop_model(self, name: str) -> None:
        """Deletes a model that no further task names."""
        (self._folder / name).unlink(missing_ok=True)

    def run(
        self, tasks: Iterable[WorkerTask], stops: Callable[[], bool]
    ) -> Iterator[tuple[WorkerTask, TaskResult]]:
        """Yields what came of each task, as soon as it is known; fewer if `stops()` was true.

        Raises:
            WorkersError: if the first workers end before they have started.
        """
        waiting, busy = iter(tasks), True
        while busy:
            for place in range(len(self._resources)):
                self._fill_slot(place, waiting)
            busy = any(worker and worker.task for worker in self._workers)
            heard = [found for found in map(self._hear, range(len(self._resources))) if found]
            yield from heard
            if stops():
                self.close()
                return
            if busy and not heard:
                time.sleep(POLL_S)

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            if worker is not None:
                worker.stop()
        self._workers = [None] * len(self._resources)

    def _fill_slot(self, place: int, waiting: Iterator[WorkerTask]) -> None:
        """Gives an idle worker the next task, and starts one where there is none."""
        worker = self._workers[place]
        if worker is not None and worker.task is not None:
            return
        task = next(waiting, None)
        if task is None:
            return
        if worker is not None and not worker.runs:  # it died with nothing to do
            worker.stop()
            worker = None
        if worker is None:
            worker = self._workers[place] = Worker(self._resources[place], self._folder)
        worker.submit(task, self._describe(task))

    def _describe(self, task: WorkerTask) -> dict[str, Any]:
        job, number = task.job, task.number
        np.savez(self._folder / f"rows-of-{number}.npz", train=job.train, held_out=job.held_out)
        how = {
            name: value for name, value in vars(job).items() if name not in ("train", "held_out")
        }
        rows, arrays = f"rows-of-{number}.npz", f"arrays-of-{number}.npz"
        return {"job": number, "model": task.model, "rows": rows, "arrays": arrays, "how": how}

    def _hear(self, place: int) -> tuple[WorkerTask, TaskResult] | None:
        worker = self._workers[place]
        if worker is None or worker.task is None:
            return None
        runs, task = worker.runs, worker.task
        told = worker.poll()  # after `runs`: what it said last is not lost
        self._any_ready |= worker.ready
        if told is not None:
            worker.task = None
            return task, self._read(task, told)
        if runs:
            return None
        why = worker.explain_end()
        self._workers[place] = None
        worker.stop()
        if not self._any_ready:
            raise WorkersError(why.replace("its worker", "a worker"))
        return task, TaskResult(None, why)

    def _read(self, task: WorkerTask, told: Mapping[str, Any]) -> TaskResult:
        """Reads an answer, and deletes its files."""
        (self._folder / f"rows-of-{task.number}.npz").unlink(missing_ok=True)
        if "error" in told:
            return TaskResult(None, told["error"], told["seconds"])
        history = ModelHistory(**told["history"])
        state, outputs = _read_arrays(self._folder / f"arrays-of-{task.number}.npz")
        fitted = Fitted(history, state, outputs, ran=Ran(**told["ran"]))
        return TaskResult(fitted, seconds=told["seconds"])


def _as_plain(value: Any) -> Any:
    """Returns what JSON can hold of a NumPy array or number."""
    return value.tolist()


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
        RowsError: if the rows cannot cross.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="gpukeras-workers-", ignore_cleanup_errors=True)
    except OSError as error:
        raise RowsError(f"rows could not be written: {system_reason(error)}") from error
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
        variables[SHARE] = f"{resources.memory_mib / resources.total_mib:.3f}"
    return variables
