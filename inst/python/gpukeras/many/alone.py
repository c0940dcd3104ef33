"""Trains a model of a table by itself, where a stack would be slower or cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gpukeras.data.sources.selected_rows import SelectedRows
from gpukeras.engine.predict_loop import predict_rows
from gpukeras.many.copies import make_initial, rows_of_member
from gpukeras.many.fits import Fitted
from gpukeras.many.histories import ModelHistory
from gpukeras.many.stack import read_state
from gpukeras.many.training import Start, Task
from gpukeras.training.fit import fit


def train_alone(start: Start, task: Task) -> Fitted:
    """Trains a model as `fit()` does; its own model stays as it is.

    Args:
        start: Where it begins, without a state.
        task: What the models share.
    """
    member = start.member
    if task.listener.stopped:
        return Fitted(ModelHistory(stopped="interrupted"), read_state(start.model), None)
    model = make_initial(start.model, None, task.data)
    rows = rows_of_member(task.data, member)

    def heard(event: Mapping[str, Any]) -> bool:
        words = (event[name] for name in ("kind", "epoch", "step", "steps", "metrics"))
        return task.listener.emit(*words)

    stopping = None if task.stopping is None else asdict(task.stopping)
    options = {"epochs": task.epochs, "schedule": task.schedule, "early_stopping": stopping}
    report = fit(model, rows, options, batch_size=task.batch_size, on_event=heard)
    history = ModelHistory(
        metrics=report.history, stopped=report.stopped, best_epoch=report.best_epoch
    )
    outputs = None
    if task.predictions and len(member.held_out) and report.epochs:
        held_out = SelectedRows(task.data.sources[0], member.held_out)
        outputs = predict_rows(model, held_out, task.data.recipe, task.data.map)
    return Fitted(history, read_state(model), outputs)
