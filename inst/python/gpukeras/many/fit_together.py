"""Trains models of which each has a dataset of its own, as few programs.

Where a loop of the user's trains one model after another, such as that of the package tune, each
model is asked for with rows that were encoded for it alone. Datasets of one layout are put one
after another, so that models of one structure train as one stack, each on its own rows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import devices
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import count_of
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.base import Dataset
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.data.plan import choose_batch_size
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.engine.autotune import EngineChoice
from gpukeras.many.alone import JobResult
from gpukeras.many.copies import make_initial, prepare
from gpukeras.many.fits import Fitted, Start
from gpukeras.many.histories import ModelHistory
from gpukeras.many.options import ManySpec
from gpukeras.many.plan import (
    explain_alone,
    is_worth,
    plan_stacks,
    read_model_facts,
)
from gpukeras.many.stack import read_state
from gpukeras.many.structure import describe_structure
from gpukeras.many.training import StackingError, train_stack
from gpukeras.many.training_request import STACKED, TrainingRequest, finish
from gpukeras.many.workers.members import train_beside
from gpukeras.many.workers.plan import plan_workers, read_worker_facts
from gpukeras.training.listener import ProgressReporter
from gpukeras.training.report import FitReport

FEW = "too few of a structure, or too short, for a program of their own"
INTERRUPTED = "the user ended the training"


@dataclass(frozen=True)
class Trained:
    """What became of a model.

    Args:
        report: Its training, as `fit()` reports one; None if it was left as it is.
        refused: Why it was left, or "".
    """

    report: FitReport | None
    refused: str = ""


def fit_together(
    models: Sequence[Model],
    datasets: Sequence[Dataset],
    seeds: Sequence[int],
    options: Sequence[Mapping[str, Any]],
    *,
    workers: int | str = "auto",
    on_event: OnEvent | None = None,
) -> list[Trained]:
    """Trains models in place, each on its own rows; those of one structure as one program.

    Args:
        models: Compiled models, all different ones.
        datasets: The rows of each; several may have the same.
        seeds: Seeds of the orders of their rows.
        options: `epochs`, `schedule` and `early_stopping` of each, see `ManySpec`.
        workers: Processes that train models which do not stack, or "auto", see `workers.plan`.
        on_event: See `training.fit()`; also called between stacks.

    Returns:
        What became of each. A model that cannot be trained beside others is left as it is, so that
        the caller trains it alone.

    Raises:
        SpecError: if `workers` is not "auto" or a number.
    """
    workers = ManySpec.from_dict({"workers": workers}).workers
    trained: dict[int, Trained] = {}
    requests: list[TrainingRequest] = []
    device = devices.current().device
    for place, given in enumerate(zip(models, datasets, seeds, options, strict=True)):
        request = _check(place, device, *given)
        if isinstance(request, str):
            trained[place] = Trained(None, request)
        else:
            requests.append(request)
    counts = Counter(one.key for one in requests if not one.alone)
    several = [one for one in requests if not one.alone and is_worth(counts[one.key], one.steps)]
    trained |= {one.place: Trained(None, one.alone or FEW) for one in requests}
    trained |= {one.place: Trained(None, INTERRUPTED) for one in several}
    for stack in _plan(several, device):
        if not _ended(trained):
            trained |= _train_stack(stack, device, on_event)
    waiting = [one for one in requests if trained[one.place].refused]
    for rows in _group_by_layout(waiting).values():
        if not _ended(trained):
            trained |= _train_beside(rows, trained, device, on_event, workers)
    return [trained[place] for place in range(len(models))]


def _ended(trained: Mapping[int, Trained]) -> bool:
    """Whether the user has ended the training."""
    reports = [one.report for one in trained.values()]
    return any(report and report.stopped == "interrupted" for report in reports)


def _group_by_layout(requests: Sequence[TrainingRequest]) -> dict[str, list[TrainingRequest]]:
    groups: dict[str, list[TrainingRequest]] = {}
    for one in requests:
        groups.setdefault(one.layout, []).append(one)
    return groups


def _check(
    place: int, device: str, model: Model, data: Dataset, seed: int, options: Mapping[str, Any]
) -> TrainingRequest | str:
    """Returns a training that can be one of many, or why it cannot: what `fit()` refuses too."""
    if not isinstance(data, MapDataset) or data.augment is not None or data.map is not None:
        return "its rows have no numbers, or are varied"
    try:
        spec = ManySpec.from_dict({**options, "predictions": False})
        prepare(model, data)
        batch, _ = choose_batch_size(len(data.train_rows), data.spec.batch_size)
        facts = read_model_facts(model, data.row_bytes, batch)
        why, structure = explain_alone(model, data, facts, device), describe_structure(model)
    except (DataError, ModelError, SpecError) as error:
        return error.message
    return TrainingRequest(place, model, data, int(seed), spec, batch, structure, facts, why)


def _plan(requests: Sequence[TrainingRequest], device: str) -> list[list[TrainingRequest]]:
    """Returns stacks of trainings that may share a program."""
    plan = plan_stacks(
        [one.key for one in requests],
        [len(one.data.train_rows) for one in requests],
        [one.facts for one in requests],
        range(len(requests)),
        free_bytes=devices.free_bytes(device),
        most="auto",
    )
    return [[requests[place] for place in places] for places in plan.stacks]


def _train_stack(
    stack: Sequence[TrainingRequest], device: str, on_event: OnEvent | None
) -> dict[int, Trained]:
    """Trains models that share a program, by their places."""
    data, starts = join_rows([one.data for one in stack])
    task = stack[0].make_task(data, device, ProgressReporter(on_event, stack[0].spec.epochs))
    # Programs are kept with the model that they were made for, and the user may change his own.
    models = [make_initial(stack[0].model, None, stack[0].data), *(one.model for one in stack[1:])]
    given = [
        Start(one.make_member(start), model, one.structure, read_state(one.model))
        for one, start, model in zip(stack, starts, models, strict=True)
    ]
    began = time.perf_counter()
    try:
        found = train_stack(given, task)
    except StackingError as error:
        return {one.place: Trained(None, f"a stack failed: {error}") for one in stack}
    seconds = (time.perf_counter() - began) / len(stack)
    reason = f"{count_of(len(stack), 'model')} of one structure trained as one program"
    engine = EngineChoice(STACKED, reason)
    return {
        one.place: Trained(finish(one, found[one.place + 1], task.device, seconds, engine))
        for one in stack
    }


def _train_beside(
    requests: Sequence[TrainingRequest],
    refused: Mapping[int, Trained],
    device: str,
    on_event: OnEvent | None,
    workers: int | str,
) -> dict[int, Trained]:
    """Trains models of rows of one layout in workers; those that cannot cross stay as they are."""
    facts = read_worker_facts(workers, len(requests), max(one.facts.bytes for one in requests))
    plan = plan_workers(facts)
    listener = ProgressReporter(on_event, max(one.spec.epochs for one in requests))
    results, why = dict[int, JobResult](), plan.reason if workers != "auto" else ""
    if plan.workers:
        data, starts = join_rows([one.data for one in requests])
        given = [
            Start(one.make_member(start), one.model, one.structure)
            for one, start in zip(requests, starts, strict=True)
        ]
        tasks = [one.make_task(data, device, listener) for one in requests]
        results, why = train_beside(list(zip(given, tasks, strict=True)), plan)
    engine = EngineChoice("repeatable", why)
    trained: dict[int, Trained] = {}
    for one in requests:
        result = results.get(one.place + 1)
        if result is not None and result.fitted is not None:
            report = finish(one, result.fitted, device, result.seconds, engine)
            trained[one.place] = Trained(report)
        elif listener.stopped:
            unchanged = Fitted(ModelHistory(stopped="interrupted"), read_state(one.model), None)
            trained[one.place] = Trained(finish(one, unchanged, device, 0.0, engine))
        else:
            reasons = refused[one.place].refused, result.error if result is not None else why
            trained[one.place] = Trained(None, "; ".join(filter(None, reasons)))
    return trained


def join_rows(datasets: Sequence[MapDataset]) -> tuple[MapDataset, list[int]]:
    """Puts the encoded rows of datasets of one layout one after another, each dataset once.

    Args:
        datasets: The datasets; the same one may come several times.

    Returns:
        Their rows as a dataset, and the place of the first row of each of `datasets`.
    """
    first = datasets[0]
    different = {id(one): one for one in datasets}
    ends = np.cumsum([len(one) for one in different.values()]).tolist()
    starts = dict(zip(different, [0, *ends], strict=False))
    if len(different) == 1:
        return first, [0] * len(datasets)
    parts = zip(*(one.batch(len(one)) for one in different.values()), strict=True)
    sources = tuple(MemoryRows(_concatenate(arrays)) for arrays in parts)
    rows = np.arange(ends[-1], dtype=np.int32)
    joined = MapDataset(sources, first.recipe, first.spec, rows, rows[:0])
    joined.wrapped = first.wrapped
    return joined, [starts[id(one)] for one in datasets]


def _concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    rows, first = sum(map(len, arrays)), arrays[0]
    return np.concatenate(arrays, out=aligned_empty((rows, *first.shape[1:]), first.dtype))
