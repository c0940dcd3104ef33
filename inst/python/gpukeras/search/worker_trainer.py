"""Trains trials in worker processes: those that do not stack, several models at a time.

The builder is called in this process, and the model crosses as a file. What cannot cross trains
one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from gpukeras.core.messages import count_of
from gpukeras.many.histories import ModelHistory
from gpukeras.many.plan import read_model_facts
from gpukeras.many.workers.plan import WorkersPlan, plan_workers, read_worker_facts
from gpukeras.many.workers.pool import (
    TaskResult,
    TransferError,
    WorkerPool,
    WorkersError,
    WorkerTask,
    open_pool,
)
from gpukeras.many.workers.rows import RowsError
from gpukeras.search.attempts import FailedError, attempt
from gpukeras.search.sequential_trainer import SequentialTrainer, check_end
from gpukeras.search.trials import Outcome, Trial, summarise


@dataclass
class WorkerTrainer:
    """A trainer of trials that do not stack.

    Args:
        sequential: Trains those that cannot cross, and all where there are no workers.
        asked: Workers that the user asked for, or "auto".
        resources: Holds the workers.

    Attributes:
        crossed: Numbers of the trials that workers trained.
    """

    sequential: SequentialTrainer
    asked: int | str
    resources: ExitStack
    crossed: set[int] = field(default_factory=set)
    _pool: WorkerPool | None = None
    _words: str = ""  # what the workers are, or why there are none
    _refused: bool = False
    _left: dict[int, str] = field(default_factory=dict)  # why trials did not cross

    @property
    def reason(self) -> str:
        """What workers did, or why there are none; "" where nobody asked."""
        if not self.crossed:
            return "" if self.asked == "auto" and not self._refused else self._words
        trials = count_of(len(self.crossed), "trial")
        why = next(iter(self._left.values()), "")
        rest = f", {len(self._left)} one after another: {why}" if self._left else ""
        return f"{trials} in {self._words}{rest}"

    def train(self, trials: Sequence[Trial], epochs: int) -> Iterator[Outcome]:
        """Yields an outcome a trial; ends early, with fewer, when the search is to end."""
        left, pool = list(trials), self._open(trials)
        if pool is not None:
            job = _Job(
                self.sequential, pool, epochs, {one.number: _Progress(one) for one in trials}
            )
            try:
                yield from job.run()
            except WorkersError as error:
                self._refused, self._words = True, str(error)
            self.crossed |= {number for number, one in job.progress.items() if one.done}
            self._left |= job.left
            left = [trial for trial in trials if not job.progress[trial.number].done]
        yield from self.sequential.train(left, epochs)

    def _open(self, trials: Sequence[Trial]) -> WorkerPool | None:
        """Returns the workers for trials; they start where the first of them are trained."""
        if self._refused or self.sequential.stopper.look() or not trials:
            return None
        plan = self._plan(trials)
        if self._pool is None:
            self._words = plan.reason
        if plan.workers and self._pool is None:
            try:
                self._pool = self.resources.enter_context(
                    open_pool(plan, self.sequential.joined[0])
                )
            except RowsError as error:
                self._refused, self._words = True, str(error)
        return self._pool if plan.workers else None

    def _plan(self, trials: Sequence[Trial]) -> WorkersPlan:
        data, built = self.sequential.data, self.sequential.built
        models = [built[one.number] for one in trials if one.number in built]
        size = data.spec.batch_size
        rows = 1 if isinstance(size, str) else size
        needs = [read_model_facts(model, data.row_bytes, rows).bytes for model in models]
        count = len(trials) * len(self.sequential.resamples)
        return plan_workers(read_worker_facts(self.asked, count, max(needs, default=0)))


@dataclass
class _Progress:
    """Where a trial stands.

    Args:
        trial: The trial.
        histories: The histories of its models so far, by resample.
        seconds: Seconds that they took.
        done: Whether its outcome is known.
        models: The names of its model for the workers, by resample.
    """

    trial: Trial
    histories: dict[int, ModelHistory] = field(default_factory=dict)
    seconds: float = 0.0
    done: bool = False
    models: list[str] = field(default_factory=list)


@dataclass
class _Job:
    """The training of trials by workers.

    Args:
        sequential: What makes models and their trainings.
        pool: The workers.
        epochs: Epochs that each trial is to have trained in all.
        progress: The trials, by number.

    Attributes:
        left: Why trials did not cross, by number.
    """

    sequential: SequentialTrainer
    pool: WorkerPool
    epochs: int
    progress: dict[int, _Progress]
    left: dict[int, str] = field(default_factory=dict)
    _places: dict[int, tuple[_Progress, int]] = field(default_factory=dict)  # by number of the task
    _failed: list[Outcome] = field(default_factory=list)  # before they came to a worker

    def run(self) -> Iterator[Outcome]:
        """Yields outcomes; fewer when the search is to end, and where models cannot cross."""
        stopper = self.sequential.stopper
        try:
            for task, result in self.pool.run(self._list_tasks(), self._stops):
                outcome = self._note(*self._places[task.number], result)
                if outcome is not None:
                    yield outcome
                yield from self._take_failed()
            yield from self._take_failed()
        except KeyboardInterrupt:
            stopper.interrupt()

    def _stops(self) -> bool:
        return self.sequential.stopper.emit({"kind": "waiting"})

    def _list_tasks(self) -> Iterator[WorkerTask]:
        """Yields the trainings of models that can cross."""
        for number, one in self.progress.items():
            if self.sequential.stopper.look():  # a builder was interrupted
                return
            kept = attempt(
                one.trial, self.epochs, self.sequential.stopper, partial(self._keep, one.trial)
            )
            if isinstance(kept, Outcome):
                one.done = True
                self._failed.append(kept)
            if not isinstance(kept, list) or not kept:
                continue
            self.sequential.built.pop(number, None)
            one.models = kept
            for place, name in enumerate(kept):
                if not one.done:  # where a resample failed, the others are not worth their time
                    number = len(self._places) + 1
                    self._places[number] = one, place
                    job = self.sequential.job(one.trial, place, self.epochs)
                    first = self.sequential.joined[1][place]
                    job = replace(job, train=job.train + first, held_out=job.held_out + first)
                    yield WorkerTask(number, name, job)

    def _keep(self, trial: Trial) -> list[str]:
        """Returns names of a trial's model for the workers, by resample; none if it cannot cross.

        It is one file where no resample teaches it anything.
        """
        names: dict[str, str] = {}
        learned = self.sequential.learn(trial)
        try:
            for one in learned:
                if repr(one) not in names:
                    model = self.sequential.model_on(trial, one)
                    names[repr(one)] = self.pool.keep_model(model)
        except TransferError as error:
            self.left[trial.number] = str(error)
            return []
        return [names[repr(one)] for one in learned]

    def _note(self, one: _Progress, place: int, result: TaskResult) -> Outcome | None:
        """Notes what came of a trial's model; returns the outcome once it is known."""
        one.seconds += result.seconds
        if one.done:
            return None
        number, why = one.trial.number, result.error
        if result.fitted is not None:
            try:
                one.histories[place] = check_end(result.fitted.history)
            except FailedError as error:
                why = str(error)
        one.done = bool(why) or len(one.histories) == len(self.sequential.resamples)
        if one.done:
            for name in set(one.models):
                self.pool.drop_model(name)
        if why:
            return Outcome(number, self.epochs, seconds=one.seconds, error=why)
        if not one.done:
            return None
        histories = [history.metrics for _, history in sorted(one.histories.items())]
        return summarise(number, self.epochs, histories, one.seconds)

    def _take_failed(self) -> Iterator[Outcome]:
        while self._failed:
            yield self._failed.pop(0)


@contextmanager
def open_worker_trainer(sequential: SequentialTrainer, asked: int | str) -> Iterator[WorkerTrainer]:
    """Yields a trainer of trials that do not stack; ends its workers.

    Args:
        sequential: See `WorkerTrainer`.
        asked: See `WorkerTrainer`.
    """
    with ExitStack() as resources:
        yield WorkerTrainer(sequential, asked, resources)
