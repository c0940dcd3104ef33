"""Worker processes: started when they are needed, replaced where one dies, ended with this process.

with open_pool(plan, data) as pool:
    name = pool.keep_model(model)
    for task, answer in pool.run(tasks, stops): ...
"""

from __future__ import annotations

import json
import os
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
from gpukeras.backend.env_vars import child_environment
from gpukeras.core.attached_server import AttachedServer
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.core.messages import find_reason
from gpukeras.data.dataset import MapDataset
from gpukeras.engine.own_code import describe_own_code
from gpukeras.many.alone import Job
from gpukeras.many.fits import Fitted
from gpukeras.many.histories import ModelHistory
from gpukeras.many.step import PARTS
from gpukeras.many.workers.plan import Seat, WorkersPlan
from gpukeras.many.workers.rows import write_rows

PROGRAM = "gpukeras.many.workers.main"
POLL_S = 0.05  # seconds between two looks at the workers
STOP_S = 10.0
SHARE = "XLA_PYTHON_CLIENT_MEM_FRACTION"
KILLED = "killed by SIGKILL"


class WorkersError(Exception):
    """No worker could be started; the text says why."""


class CrossingError(Exception):
    """A model cannot cross to another process; the text says why."""


@dataclass(frozen=True)
class Order:
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
class Answer:
    """What came of an order.

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
        seat: What it gets.
        folder: The folder of rows and models.

    Attributes:
        ready: Whether it has started.
        order: What it does, or None.
    """

    def __init__(self, seat: Seat, folder: Path) -> None:
        """Starts the process and waits for nothing."""
        self.ready, self._read = False, 0
        self.order: Order | None = None
        arguments = "-m", PROGRAM, str(folder), json.dumps(make_setup(seat))
        super().__init__(sys.executable, arguments, make_environment(seat), STOP_S)

    def _await(self) -> None:
        """Returns at once: workers start side by side."""

    def give(self, order: Order, message: Mapping[str, Any]) -> None:
        """Gives it an order; a worker that has died shows that later."""
        self.order = order
        pipe = self._child.stdin
        assert pipe is not None
        with suppress(OSError):
            pipe.write(json.dumps(message, default=_as_plain).encode() + b"\n")
            pipe.flush()

    def hear(self) -> dict[str, Any] | None:
        """Returns its next answer, if there is one."""
        while True:
            said = os.pread(self._out.fileno(), 2**24, self._read)
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
        self._seats = list(plan.seats)
        self._workers: list[Worker | None] = [None] * len(plan.seats)
        self._any_ready = False

    def keep_model(self, model: Model) -> str:
        """Writes a model for the workers; returns its name.

        Raises:
            CrossingError: if it cannot cross.
        """
        if describe_own_code(model):
            raise CrossingError("models have functions or classes of your own")
        self._models += 1
        name = f"model-{self._models}.keras"
        try:
            runtime.keras().saving.save_model(model, self._folder / name)
        except (*REFUSALS, OSError) as error:
            raise CrossingError(f"models cannot be saved: {find_reason(error)}") from error
        return name

    def drop_model(self, name: str) -> None:
        """Deletes a model that no further order names."""
        (self._folder / name).unlink(missing_ok=True)

    def run(
        self, orders: Iterable[Order], stops: Callable[[], bool]
    ) -> Iterator[tuple[Order, Answer]]:
        """Yields what came of each order, as soon as it is known; fewer if `stops()` was true.

        Raises:
            WorkersError: if the first workers end before they have started.
        """
        waiting, busy = iter(orders), True
        while busy:
            for place in range(len(self._seats)):
                self._occupy(place, waiting)
            busy = any(worker and worker.order for worker in self._workers)
            heard = [found for found in map(self._hear, range(len(self._seats))) if found]
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
        self._workers = [None] * len(self._seats)

    def _occupy(self, place: int, waiting: Iterator[Order]) -> None:
        """Gives an idle worker the next order, and starts one where there is none."""
        worker = self._workers[place]
        if worker is not None and worker.order is not None:
            return
        order = next(waiting, None)
        if order is None:
            return
        if worker is not None and not worker.runs:  # it died with nothing to do
            worker.stop()
            worker = None
        if worker is None:
            worker = self._workers[place] = Worker(self._seats[place], self._folder)
        worker.give(order, self._describe(order))

    def _describe(self, order: Order) -> dict[str, Any]:
        job, number = order.job, order.number
        np.savez(self._folder / f"rows-of-{number}.npz", train=job.train, held_out=job.held_out)
        how = {
            name: value for name, value in vars(job).items() if name not in ("train", "held_out")
        }
        rows, arrays = f"rows-of-{number}.npz", f"arrays-of-{number}.npz"
        return {"job": number, "model": order.model, "rows": rows, "arrays": arrays, "how": how}

    def _hear(self, place: int) -> tuple[Order, Answer] | None:
        worker = self._workers[place]
        if worker is None or worker.order is None:
            return None
        runs, order = worker.runs, worker.order
        told = worker.hear()  # after `runs`: what it said last is not lost
        self._any_ready |= worker.ready
        if told is not None:
            worker.order = None
            return order, self._read(order, told)
        if runs:
            return None
        why = worker.explain_end()
        self._workers[place] = None
        worker.stop()
        if not self._any_ready:
            raise WorkersError(why.replace("its worker", "a worker"))
        return order, Answer(None, why)

    def _read(self, order: Order, told: Mapping[str, Any]) -> Answer:
        """Reads an answer, and deletes its files."""
        (self._folder / f"rows-of-{order.number}.npz").unlink(missing_ok=True)
        if "error" in told:
            return Answer(None, told["error"], told["seconds"])
        history = ModelHistory(
            metrics=told["metrics"], stopped=told["stopped"], best_epoch=told["best_epoch"]
        )
        state, outputs = _read_arrays(self._folder / f"arrays-of-{order.number}.npz")
        return Answer(Fitted(history, state, outputs), seconds=told["seconds"])


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
    with tempfile.TemporaryDirectory(
        prefix="gpukeras-workers-", ignore_cleanup_errors=True
    ) as name:
        write_rows(data, Path(name))
        pool = WorkerPool(plan, Path(name))
        try:
            yield pool
        finally:
            pool.close()


# Settings ----------------------------------------------------------------------------------------


def make_setup(seat: Seat) -> dict[str, Any]:
    """Returns the arguments of `devices.setup()` in a worker: those of this process, and its seat.

    JAX takes a share of a card's memory by a variable, see `make_environment()`.
    """
    here, backend = devices.current(), runtime.backend()
    limited = seat.memory_mib is not None and backend != "jax"
    return {
        "device": seat.device,
        "memory": seat.memory_mib if limited else "growth",
        "precision": here.precision,
        "jit": here.jit,
        "threads": seat.threads if backend == "tensorflow" else None,
        "seed": here.seed,
        "deterministic": here.deterministic,
        "tf32": bool(runtime.tensor_float_32()),
        "backend": backend,
    }


def make_environment(seat: Seat) -> dict[str, str]:
    """Returns the variables of a worker's process."""
    variables = {**child_environment(), "KERAS_BACKEND": runtime.backend()}
    if runtime.backend() == "jax" and seat.memory_mib is not None and seat.total_mib:
        variables[SHARE] = f"{seat.memory_mib / seat.total_mib:.3f}"
    return variables
