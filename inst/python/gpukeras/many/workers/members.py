"""Trains the models of a table that do not stack: in workers, or one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpukeras.core.messages import count_of
from gpukeras.many.alone import as_job, train_alone
from gpukeras.many.copies import make_initial
from gpukeras.many.fits import Fitted, Start
from gpukeras.many.histories import ModelHistory
from gpukeras.many.plan import read_model_facts
from gpukeras.many.stack import read_state
from gpukeras.many.training import Task
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
    results, why = dict[int, TaskResult](), plan.reason if asked != "auto" else ""
    if plan.workers:
        results, why = train_beside([(start, task) for start in starts], plan)
    found = dict[int, Fitted]()
    for start in starts:
        number = start.member.number
        if number in results:
            found[number] = results[number].fitted or _fail(start, results[number].error)
        else:
            found[number] = train_alone(start, task)
    return found, why


def train_beside(
    given: Sequence[tuple[Start, Task]], plan: WorkersPlan
) -> tuple[dict[int, TaskResult], str]:
    """Trains models in workers, as far as they can cross.

    Args:
        given: Where each begins, without a state, and its training; all have the same rows.
        plan: The workers.

    Returns:
        What came of those that workers trained, by the member's number, and how the models were
        trained.
    """
    found: dict[int, TaskResult] = {}
    left: dict[int, str] = {}
    shares = {start.member.number: _key(start) for start, _ in given}
    uses = Counter(shares.values())
    try:
        with open_pool(plan, given[0][1].data) as pool:
            tasks = _list_tasks(given, pool, left)
            for done, result in pool.run(tasks, lambda: _stops(given[0][1])):
                found[done.number] = result
                uses[shares[done.number]] -= 1
                if not uses[shares[done.number]]:
                    pool.drop_model(done.model)
    except (RowsError, WorkersError) as error:
        return found, f"one after another, as no worker could train them: {error}"
    return found, _explain(len(found), left, plan)


def _explain(count: int, left: Mapping[int, str], plan: WorkersPlan) -> str:
    parts = [f"{count_of(count, 'model')} in {plan.reason}"] if count else []
    if left:
        why = next(iter(left.values()))
        parts.append(f"{count_of(len(left), 'model')} in this process: {why}")
    return ", ".join(parts)


def _list_tasks(
    given: Sequence[tuple[Start, Task]], pool: WorkerPool, left: dict[int, str]
) -> Iterator[WorkerTask]:
    """Yields the tasks of models that can cross; notes why others cannot."""
    names: dict[tuple[int, str], str] = {}
    for start, task in given:
        key = _key(start)
        try:
            if key not in names:
                model = start.model
                if start.learned:
                    model = make_initial(model, None, task.data, start.learned)
                names[key] = pool.keep_model(model)
        except TransferError as error:
            left[start.member.number] = str(error)
            continue
        yield WorkerTask(start.member.number, names[key], as_job(start, task))


def _key(start: Start) -> tuple[int, str]:
    """Returns what is equal for trainings that begin with the same model."""
    return id(start.model), repr(start.learned)


def _stops(task: Task) -> bool:
    listener = task.listener
    return listener.stopped or (listener.due and listener.emit("waiting", 0, 0, None, {}))


def _fail(start: Start, error: str) -> Fitted:
    return Fitted(ModelHistory(stopped="failed"), read_state(start.model), None, error)
