"""Trains the models of a table that do not stack: in workers, or one after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.many.fits import Fitted, ModelHistory, Start, make_initial
from gpukeras.many.jobs import Job, run_job
from gpukeras.many.plan import read_model_facts
from gpukeras.many.stack import read_state
from gpukeras.many.training import Task
from gpukeras.many.workers.plan import (
    WorkersError,
    WorkersPlan,
    plan_workers,
    read_worker_facts,
)
from gpukeras.many.workers.pool import open_pool


def train_members(starts: Sequence[Start], task: Task) -> tuple[dict[int, Fitted], str]:
    """Trains models that do not stack.

    Args:
        starts: Where they begin.
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
    fitted, why = dict[int, Fitted](), plan.reason if asked != "auto" else ""
    if plan.workers:
        fitted, why = _train_beside(starts, task, plan)
    for start in starts:
        number = start.member.number
        if number not in fitted:
            fitted[number] = _train_here(start, task)
            task.after_models({number: fitted[number]})
    return fitted, why


def _train_beside(
    starts: Sequence[Start], task: Task, plan: WorkersPlan
) -> tuple[dict[int, Fitted], str]:
    """Trains models in workers, as far as they can cross; see `train_members()`."""
    by_number = {start.member.number: start for start in starts}
    fitted: dict[int, Fitted] = {}
    left: list[str] = []
    try:
        with open_pool(plan, task.data) as pool:
            for job, result in pool.run(_list_jobs(starts, task), lambda: _stops(task)):
                number = job.number
                if result.crossed:
                    fitted[number] = result.fitted or _stay(
                        by_number[number], "failed", result.error
                    )
                    task.after_models({number: fitted[number]})
                else:
                    left.append(result.error)
    except WorkersError as error:
        return fitted, f"one after another, as no worker could train them: {error}"
    parts = [f"{count_of(len(fitted), 'model')} in {plan.reason}"] if fitted else []
    if left:
        parts.append(f"{count_of(len(left), 'model')} in this process: {left[0]}")
    return fitted, ", ".join(parts)


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
        yield _as_job(start, task, model)


def _stops(task: Task) -> bool:
    listener = task.listener
    return listener.stopped or (listener.due and listener.emit("waiting", 0, 0, None, {}))


def _stay(start: Start, stopped: str, error: str = "") -> Fitted:
    """Returns a model that was not trained."""
    return Fitted(ModelHistory(stopped=stopped), read_state(start.model), None, error)


def _as_job(start: Start, task: Task, model: Model) -> Job:
    """Returns the training of a model, which has what `start` has learned from labels."""
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


def _train_here(start: Start, task: Task) -> Fitted:
    """Trains a model in this process; its own model stays as it is."""
    if task.listener.stopped:
        return _stay(start, "interrupted")

    def heard(event: Mapping[str, Any]) -> bool:
        words = (event[name] for name in ("kind", "epoch", "step", "steps", "metrics"))
        return task.listener.emit(*words)

    model = make_initial(start.model, None, task.data, start.learned)
    return run_job(_as_job(start, task, model), task.data, heard)
