"""Trains trials in worker processes: those that do not stack, several models at a time.

The builder is called in this process, and the model crosses as a file. What cannot cross trains
one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial

from gpukeras.core.messages import count_of
from gpukeras.many.histories import ModelHistory
from gpukeras.many.plan import read_model_facts
from gpukeras.many.workers.plan import WorkersPlan, plan_workers, read_worker_facts
from gpukeras.many.workers.pool import (
    Answer,
    CrossingError,
    Order,
    WorkerPool,
    WorkersError,
    open_pool,
)
from gpukeras.many.workers.rows import RowsError
from gpukeras.search.attempts import FailedError, attempt
from gpukeras.search.trials import Outcome, Trial, summarise
from gpukeras.search.turns import Turns, check_end


@dataclass
class Crew:
    """A trainer of trials that do not stack.

    Args:
        turns: Trains those that cannot cross, and all where there are no workers.
        asked: Workers that the user asked for, or "auto".
        resources: Holds the workers.

    Attributes:
        crossed: Numbers of the trials that workers trained.
    """

    turns: Turns
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
            job = _Job(self.turns, pool, epochs, {one.number: _Progress(one) for one in trials})
            try:
                yield from job.run()
            except WorkersError as error:
                self._refused, self._words = True, str(error)
            self.crossed |= {number for number, one in job.progress.items() if one.done}
            self._left |= job.left
            left = [trial for trial in trials if not job.progress[trial.number].done]
        yield from self.turns.train(left, epochs)

    def _open(self, trials: Sequence[Trial]) -> WorkerPool | None:
        """Returns the workers for trials; they start where the first of them are trained."""
        if self._refused or self.turns.watch.look() or not trials:
            return None
        plan = self._plan(trials)
        if self._pool is None:
            self._words = plan.reason
        if plan.seats and self._pool is None:
            try:
                self._pool = self.resources.enter_context(open_pool(plan, self.turns.data))
            except RowsError as error:
                self._refused, self._words = True, str(error)
        return self._pool if plan.seats else None

    def _plan(self, trials: Sequence[Trial]) -> WorkersPlan:
        data, built = self.turns.data, self.turns.built
        models = [built[one.number] for one in trials if one.number in built]
        size = data.spec.batch_size
        rows = 1 if isinstance(size, str) else size
        needs = [read_model_facts(model, data.row_bytes, rows).bytes for model in models]
        count = len(trials) * len(self.turns.resamples)
        return plan_workers(read_worker_facts(self.asked, count, max(needs, default=0)))


@dataclass
class _Progress:
    """Where a trial stands.

    Args:
        trial: The trial.
        histories: The histories of its models so far, by resample.
        seconds: Seconds that they took.
        done: Whether its outcome is known.
        model: The name of its model for the workers.
    """

    trial: Trial
    histories: dict[int, ModelHistory] = field(default_factory=dict)
    seconds: float = 0.0
    done: bool = False
    model: str = ""


@dataclass
class _Job:
    """The training of trials by workers.

    Args:
        turns: What makes models and their trainings.
        pool: The workers.
        epochs: Epochs that each trial is to have trained in all.
        progress: The trials, by number.

    Attributes:
        left: Why trials did not cross, by number.
    """

    turns: Turns
    pool: WorkerPool
    epochs: int
    progress: dict[int, _Progress]
    left: dict[int, str] = field(default_factory=dict)
    _places: dict[int, tuple[_Progress, int]] = field(default_factory=dict)  # of an order
    _failed: list[Outcome] = field(default_factory=list)  # before they came to a worker

    def run(self) -> Iterator[Outcome]:
        """Yields outcomes; fewer when the search is to end, and where models cannot cross."""
        watch = self.turns.watch
        try:
            for order, answer in self.pool.run(self._list_orders(), self._stops):
                outcome = self._note(*self._places[order.number], answer)
                if outcome is not None:
                    yield outcome
                yield from self._take_failed()
            yield from self._take_failed()
        except KeyboardInterrupt:
            watch.interrupt()

    def _stops(self) -> bool:
        return self.turns.watch.emit({"kind": "waiting"})

    def _list_orders(self) -> Iterator[Order]:
        """Yields the trainings of models that can cross."""
        for number, one in self.progress.items():
            if self.turns.watch.look():  # a builder was interrupted
                return
            kept = attempt(one.trial, self.epochs, self.turns.watch, partial(self._keep, one.trial))
            if isinstance(kept, Outcome):
                one.done = True
                self._failed.append(kept)
            if not isinstance(kept, str) or not kept:
                continue
            self.turns.built.pop(number, None)
            one.model = kept
            for place in range(len(self.turns.resamples)):
                if not one.done:  # where a resample failed, the others are not worth their time
                    order = len(self._places) + 1
                    self._places[order] = one, place
                    yield Order(order, kept, self.turns.job(one.trial, place, self.epochs))

    def _keep(self, trial: Trial) -> str:
        """Returns the name of a trial's model for the workers; "" if it cannot cross."""
        try:
            return self.pool.keep_model(self.turns.model(trial))
        except CrossingError as error:
            self.left[trial.number] = str(error)
            return ""

    def _note(self, one: _Progress, place: int, answer: Answer) -> Outcome | None:
        """Notes what came of a trial's model; returns the outcome once it is known."""
        one.seconds += answer.seconds
        if one.done:
            return None
        number, why = one.trial.number, answer.error
        if answer.fitted is not None:
            try:
                one.histories[place] = check_end(answer.fitted.history)
            except FailedError as error:
                why = str(error)
        one.done = bool(why) or len(one.histories) == len(self.turns.resamples)
        if one.done:
            self.pool.drop_model(one.model)
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
def open_crew(turns: Turns, asked: int | str) -> Iterator[Crew]:
    """Yields a trainer of trials that do not stack; ends its workers.

    Args:
        turns: See `Crew`.
        asked: See `Crew`.
    """
    with ExitStack() as resources:
        yield Crew(turns, asked, resources)
