"""Trains trials whose models do not stack: in worker processes, or one model after another.

The builder is called in this process, and the model crosses as a file. What cannot cross trains
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from gpukeras.core.messages import count_of
from gpukeras.many.fits import ModelHistory
from gpukeras.many.futures import Futures
from gpukeras.many.jobs import Job, JobResult, run_job, try_job
from gpukeras.many.plan import read_model_facts
from gpukeras.many.workers.plan import (
    WorkersError,
    WorkersPlan,
    plan_workers,
    read_worker_facts,
)
from gpukeras.many.workers.pool import WorkerPool, open_pool
from gpukeras.search.trial_models import TrialModels
from gpukeras.search.trials import Outcome, Trial, summarise

# Yields what came of each job; ends early where its second argument says so.
Run = Callable[[Iterable[Job], Callable[[], bool]], Iterator[tuple[Job, JobResult]]]


class StoppedError(Exception):
    """The search ends before a trial has."""


@dataclass
class AloneTrainer:
    """A trainer of trials whose models do not stack.

    Args:
        models: Makes their models.
        asked: Workers that the user asked for, "auto", or an engine that starts them.
        resources: Holds the workers.

    Attributes:
        crossed: Numbers of the trials that workers trained.
    """

    models: TrialModels
    asked: int | str | Futures
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
        beside = _Jobs(self.models, epochs)
        try:
            pool = self._open(trials)
            if pool is not None:
                yield from beside.train(trials, pool.run)
        except WorkersError as error:
            self._refused, self._words = True, str(error)
        self.crossed |= beside.done
        self._left |= beside.left
        left = [trial for trial in trials if trial.number not in beside.done]
        yield from _Jobs(self.models, epochs).train(left, self._run_here)

    def _run_here(
        self, jobs: Iterable[Job], stops: Callable[[], bool]
    ) -> Iterator[tuple[Job, JobResult]]:
        """Yields what came of each job, which this process trains; see `WorkerPool.run()`."""
        data = self.models.joined[0]
        for job in jobs:
            yield job, try_job(partial(run_job, job, data, lambda event: stops()))

    def _open(self, trials: Sequence[Trial]) -> WorkerPool | None:
        """Returns the workers for trials; they start where the first of them are trained.

        Raises:
            WorkersError: if the rows cannot cross.
        """
        if self._refused or self.models.stopper.look() or not trials:
            return None
        plan = self._plan(trials)
        if self._pool is None:
            self._words = plan.reason
            if plan.workers:
                self._pool = self.resources.enter_context(open_pool(plan, self.models.joined[0]))
        return self._pool if plan.workers else None

    def _plan(self, trials: Sequence[Trial]) -> WorkersPlan:
        data, built = self.models.data, self.models.built
        models = [built[trial.number] for trial in trials if trial.number in built]
        size = data.spec.batch_size
        rows = 1 if isinstance(size, str) else size
        needs = [read_model_facts(model, data.row_bytes, rows).bytes for model in models]
        count = len(trials) * len(self.models.resamples)
        return plan_workers(read_worker_facts(self.asked, count, max(needs, default=0)))


@dataclass
class _Jobs:
    """The training of trials up to a number of epochs, as a job for each resample.

    Args:
        models: Makes the models of trials.
        epochs: Epochs that each trial is to have trained in all.

    Attributes:
        done: Numbers of the trials whose outcome is known.
        left: Why trials did not cross to workers, by number.
    """

    models: TrialModels
    epochs: int
    done: set[int] = field(default_factory=set)
    left: dict[int, str] = field(default_factory=dict)
    # Of each trial: the histories of its models so far, by number of the job, and their seconds.
    _histories: dict[int, dict[int, ModelHistory]] = field(default_factory=dict)
    _seconds: dict[int, float] = field(default_factory=dict)
    _failed: list[Outcome] = field(default_factory=list)  # trials without a model

    def train(self, trials: Sequence[Trial], run: Run) -> Iterator[Outcome]:
        """Yields outcomes; fewer when the search is to end, and where models cannot cross."""
        stopper = self.models.stopper
        try:
            for job, result in run(
                self._list_jobs(trials), lambda: stopper.emit({"kind": "waiting"})
            ):
                yield from self._take_failed()
                outcome = self._note(job, result)
                if outcome is not None:
                    self.done.add(outcome.trial)
                    self.models.built.pop(outcome.trial, None)
                    yield outcome
            yield from self._take_failed()
        except KeyboardInterrupt:
            stopper.interrupt()
        except StoppedError:
            return

    def _list_jobs(self, trials: Sequence[Trial]) -> Iterator[Job]:
        models, stopper = self.models, self.models.stopper
        for trial in trials:
            if stopper.look():
                return
            learned = stopper.attempt(trial, self.epochs, partial(models.learn, trial))
            if isinstance(learned, Outcome):
                self.done.add(trial.number)
                self._failed.append(learned)
            if not isinstance(learned, list):
                continue
            for job in models.list_jobs(trial, learned, self.epochs):
                # Where a resample failed, the others are not worth their time.
                if trial.number not in self.done | self.left.keys():
                    yield job

    def _note(self, job: Job, result: JobResult) -> Outcome | None:
        """Notes what came of a trial's model; returns the outcome once it is known.

        Raises:
            StoppedError: if the user ended the training.
        """
        count = len(self.models.resamples)
        number = job.number // count
        self._seconds[number] = self._seconds.get(number, 0.0) + result.seconds
        histories = self._histories.setdefault(number, {})
        if not result.crossed:
            self.left[number] = result.error
        if number in self.done | self.left.keys():
            return None
        why = result.error
        if result.fitted is not None:
            history = histories[job.number] = result.fitted.history
            if history.stopped == "interrupted":
                raise StoppedError
            if history.stopped == "non_finite":
                why = f"the loss or a weight is not finite in epoch {history.epochs + 1}"
        if why:
            return Outcome(number, self.epochs, seconds=self._seconds[number], error=why)
        if len(histories) < count:
            return None
        metrics = [history.metrics for _, history in sorted(histories.items())]
        return summarise(number, self.epochs, metrics, self._seconds[number])

    def _take_failed(self) -> Iterator[Outcome]:
        while self._failed:
            yield self._failed.pop(0)
