"""Trains the models of a table that do not stack: in workers, or one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpukeras.core.messages import count_of
from gpukeras.many.alone import as_job, train_alone
from gpukeras.many.fits import Fitted
from gpukeras.many.histories import ModelHistory
from gpukeras.many.plan import read_model_facts
from gpukeras.many.stack import read_state
from gpukeras.many.training import Start, Task
from gpukeras.many.workers.plan import WorkersPlan, plan_workers, read_worker_facts
from gpukeras.many.workers.pool import (
    TransferError,
    WorkerPool,
    WorkersError,
    WorkerTask,
    open_pool,
)
from gpukeras.many.workers.rows import RowsError


def train_members(
    starts: Sequence[Start], task: Task, asked: int | str
) -> tuple[dict[int, Fitted], str]:
    """Trains models that do not stack.

    Args:
        starts: Where they begin, without states.
        task: What they share.
        asked: Workers that the user asked for, or "auto".

    Returns:
        What each has become, by the member's number, and how they were trained where that is not
        one after another as by default.
    """
    if not starts:
        return {}, ""
    size, row = task.batch_size, task.data.row_bytes
    models = {id(start.model): start.model for start in starts}.values()
    needs = [read_model_facts(model, row, size).bytes for model in models]
    plan = plan_workers(read_worker_facts(asked, len(starts), max(needs)))
    found, why = dict[int, Fitted](), plan.reason if asked != "auto" else ""
    if plan.workers:
        found, why = _train_beside(starts, task, plan)
    for start in starts:
        if start.member.number not in found:
            found[start.member.number] = train_alone(start, task)
    return found, why


def _train_beside(
    starts: Sequence[Start], task: Task, plan: WorkersPlan
) -> tuple[dict[int, Fitted], str]:
    """Trains models in workers; those that cannot cross are left, and the text says why."""
    found: dict[int, Fitted] = {}
    left: dict[int, str] = {}
    numbered = {start.member.number: start for start in starts}
    try:
        with open_pool(plan, task.data) as pool:
            given = _list_tasks(starts, task, pool, left)
            for done, result in pool.run(given, lambda: _stops(task)):
                start = numbered[done.number]
                found[done.number] = result.fitted or _fail(start, result.error)
    except (RowsError, WorkersError) as error:
        return found, f"one after another, as no worker could train them: {error}"
    why = f"{count_of(len(found), 'model')} in {plan.reason}" if found else ""
    if left:
        few = f"{count_of(len(left), 'model')} in this process: {next(iter(left.values()))}"
        why = f"{why}, {few}" if why else few
    return found, why


def _list_tasks(
    starts: Sequence[Start], task: Task, pool: WorkerPool, left: dict[int, str]
) -> Iterator[WorkerTask]:
    """Yields the tasks of models that can cross; notes why others cannot."""
    names: dict[int, str] = {}
    for start in starts:
        try:
            if id(start.model) not in names:
                names[id(start.model)] = pool.keep_model(start.model)
        except TransferError as error:
            left[start.member.number] = str(error)
            continue
        yield WorkerTask(start.member.number, names[id(start.model)], as_job(start, task))


def _stops(task: Task) -> bool:
    listener = task.listener
    return listener.stopped or (listener.due and listener.emit("waiting", 0, 0, None, {}))


def _fail(start: Start, error: str) -> Fitted:
    return Fitted(ModelHistory(stopped="failed"), read_state(start.model), None, error)
