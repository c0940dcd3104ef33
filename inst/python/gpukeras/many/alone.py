"""Trains the models of a table that do not stack: in workers, or one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.many.copies import make_initial
from gpukeras.many.fits import Fitted, ModelHistory, Start
from gpukeras.many.jobs import Job, JobResult, run_job
from gpukeras.many.plan import read_model_facts
from gpukeras.many.stack import read_state
from gpukeras.many.training import Task
from gpukeras.many.workers.plan import WorkersPlan, plan_workers, read_worker_facts
from gpukeras.many.workers.pool import WorkersError, open_pool
from gpukeras.many.workers.rows import RowsError


def train_members(starts: Sequence[Start], task: Task) -> tuple[dict[int, Fitted], str]:
    """Trains models that do not stack.

    Args:
        starts: Where they begin, without states.
        task: What they share.

    Returns:
        What each has become, by the member's number, and how they were trained where that is not
        one after another as by default.
    """
    if not starts:
        return {}, ""
    asked = task.spec.workers
    size, row = task.batch_size, task.data.row_bytes
    models = {id(start.model): start.model for start in starts}.values()
    needs = [read_model_facts(model, row, size).bytes for model in models]
    plan = plan_workers(read_worker_facts(asked, len(starts), max(needs)))
    results, why = dict[int, JobResult](), plan.reason if asked != "auto" else ""
    if plan.workers:
        results, why = train_beside(starts, task, plan)
    fitted = dict[int, Fitted]()
    for start in starts:
        number = start.member.number
        if number in results:
            fitted[number] = results[number].fitted or _fail(start, results[number].error)
        else:
            fitted[number] = train_alone(start, task)
            _tell(task, number, fitted[number])
    return fitted, why


def train_beside(
    starts: Sequence[Start], task: Task, plan: WorkersPlan
) -> tuple[dict[int, JobResult], str]:
    """Trains models in workers, as far as they can cross.

    Args:
        starts: Where they begin, without states.
        task: What they share.
        plan: The workers.

    Returns:
        What came of those that workers trained, by the member's number, and how the models were
        trained.
    """
    results: dict[int, JobResult] = {}
    left: dict[int, str] = {}
    try:
        with open_pool(plan, task.data) as pool:
            for job, result in pool.run(_list_jobs(starts, task), lambda: _stops(task)):
                if result.crossed:
                    results[job.number] = result
                    _tell(task, job.number, result.fitted)
                else:
                    left[job.number] = result.error
    except (RowsError, WorkersError) as error:
        return results, f"one after another, as no worker could train them: {error}"
    return results, _explain(len(results), left, plan)


def _list_jobs(starts: Sequence[Start], task: Task) -> Iterator[Job]:
    """Yields the trainings; those that begin with the same model have one of them."""
    model: Any = None
    before: tuple[int, str] | None = None
    for start in starts:
        begins = id(start.model), repr(start.learned)
        if begins != before:
            before, model = begins, start.model
            if start.learned:
                model = make_initial(start.model, None, task.data, start.learned)
        yield as_job(start, task, model)


def _tell(task: Task, number: int, fitted: Fitted | None) -> None:
    if task.after_model is not None and fitted is not None:
        task.after_model(number, fitted)


def _explain(count: int, left: Mapping[int, str], plan: WorkersPlan) -> str:
    parts = [f"{count_of(count, 'model')} in {plan.reason}"] if count else []
    if left:
        why = next(iter(left.values()))
        parts.append(f"{count_of(len(left), 'model')} in this process: {why}")
    return ", ".join(parts)


def _stops(task: Task) -> bool:
    listener = task.listener
    return listener.stopped or (listener.due and listener.emit("waiting", 0, 0, None, {}))


def _fail(start: Start, error: str) -> Fitted:
    return Fitted(ModelHistory(stopped="failed"), read_state(start.model), None, error)


def as_job(start: Start, task: Task, model: Model) -> Job:
    """Returns the training of a model of a table.

    Args:
        start: Where it begins, without a state.
        task: What the models share.
        model: The model, with what `start` has learned from labels.
    """
    spec, member = task.spec, start.member
    options: dict[str, Any] = {
        "epochs": spec.epochs,
        "schedule": spec.schedule,
        "early_stopping": None if spec.early_stopping is None else asdict(spec.early_stopping),
        "engine": spec.engine,
    }
    if task.states is not None:
        options["checkpoint"] = {"folder": str(task.states / f"{member.number:04d}"), "keep": 1}
    return Job(
        member.number,
        model,
        member.train,
        member.held_out,
        options,
        task.batch_size,
        member.seed,
        keeps_state=True,
        predicts=spec.predictions,
    )


def train_alone(start: Start, task: Task) -> Fitted:
    """Trains a model of a table in this process; its own model stays as it is.

    Args:
        start: Where it begins, without a state.
        task: What the models share.
    """
    if task.listener.stopped:
        return Fitted(ModelHistory(stopped="interrupted"), read_state(start.model), None)

    def heard(event: Mapping[str, Any]) -> bool:
        words = (event[name] for name in ("kind", "epoch", "step", "steps", "metrics"))
        return task.listener.emit(*words)

    model = make_initial(start.model, None, task.data, start.learned)
    return run_job(as_job(start, task, model), task.data, heard)
