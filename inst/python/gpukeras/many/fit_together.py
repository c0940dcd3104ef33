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

from gpukeras.backend import devices, tensor_ops
from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import count_of
from gpukeras.data.base import Dataset
from gpukeras.data.dataset import MapDataset
from gpukeras.data.plan import choose_batch_size
from gpukeras.data.preprocessing.multi_input import input_parts
from gpukeras.data.sources.row_store import MemoryRows
from gpukeras.engine.autotune import EngineChoice
from gpukeras.engine.lr_tables import draw_rates_at, parse_schedule
from gpukeras.engine.optimizer import read_own_rate
from gpukeras.many.batches import count_steps
from gpukeras.many.copies import make_initial, prepare, write_state
from gpukeras.many.fit_many import ManySpec
from gpukeras.many.fits import Fitted
from gpukeras.many.members import Member
from gpukeras.many.plan import (
    ModelFacts,
    explain_alone,
    is_worth,
    plan_stacks,
    read_model_facts,
)
from gpukeras.many.stack import read_state
from gpukeras.many.structure import Structure, describe_structure
from gpukeras.many.training import StackingError, Start, Task, train_stack
from gpukeras.models import model_recipes
from gpukeras.training.baseline import fill_baseline
from gpukeras.training.callbacks.early_stopping import parse_early_stopping
from gpukeras.training.history_registry import keep_history
from gpukeras.training.listener import OnEvent, ProgressReporter
from gpukeras.training.nan_guard import explain_stop
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


@dataclass(frozen=True)
class _Asked:
    """A training that is asked for.

    Args:
        place: Its place among all that are asked for.
        model: The model, which is trained in place.
        data: Its rows.
        seed: Seed of the order of its rows.
        spec: The options.
        batch_size: Rows per step.
        structure: The model's structure.
        facts: What the model needs.
    """

    place: int
    model: Model
    data: MapDataset
    seed: int
    spec: ManySpec
    batch_size: int
    structure: Structure
    facts: ModelFacts

    @property
    def steps(self) -> int:
        """Steps of all epochs."""
        short = self.data.spec.drop_last
        each = count_steps(len(self.data.train_rows), self.batch_size, short)
        return each * self.spec.epochs

    @property
    def kind(self) -> str:
        """Equal for trainings whose rows and options are of one kind, so that they may share."""
        recipe, spec = self.data.recipe, self.data.spec
        layout = [(source.shape[1:], str(source.dtype)) for source in self.data.sources]
        outputs = recipe.label.outputs if recipe.label else ()
        parts = layout, input_parts(recipe), outputs, recipe.listed, recipe.shape
        return repr((parts, self.spec, self.batch_size, spec.shuffle, spec.drop_last))


def fit_together(
    models: Sequence[Model],
    datasets: Sequence[Dataset],
    seeds: Sequence[int],
    options: Sequence[Mapping[str, Any]],
    *,
    on_event: OnEvent | None = None,
) -> list[Trained]:
    """Trains models in place, each on its own rows; those of one structure as one program.

    Args:
        models: Compiled models, all different ones.
        datasets: The rows of each; several may have the same.
        seeds: Seeds of the orders of their rows.
        options: `epochs`, `schedule` and `early_stopping` of each, see `ManySpec`.
        on_event: See `training.fit()`; also called between stacks.

    Returns:
        What became of each. A model that cannot be trained beside others is left as it is, so that
        the caller trains it alone.
    """
    trained: dict[int, Trained] = {}
    groups: dict[str, list[_Asked]] = {}
    device = devices.current().device
    for place, given in enumerate(zip(models, datasets, seeds, options, strict=True)):
        try:
            asked: _Asked | str = _check(place, device, *given)
        except (DataError, ModelError, SpecError) as error:
            asked = error.message
        if isinstance(asked, str):
            trained[place] = Trained(None, asked)
        else:
            groups.setdefault(asked.kind, []).append(asked)
    for group in groups.values():
        few, several = _split_few(group)
        trained |= {one.place: Trained(None, FEW) for one in few}
        if any(one.report and one.report.stopped == "interrupted" for one in trained.values()):
            trained |= {one.place: Trained(None, INTERRUPTED) for one in several}
        elif several:
            trained |= _train_group(several, device, on_event)
    return [trained[place] for place in range(len(models))]


def _check(
    place: int, device: str, model: Model, data: Dataset, seed: int, options: Mapping[str, Any]
) -> _Asked | str:
    """Returns a training that can be one of many, or why it cannot.

    Raises:
        DataError, ModelError, SpecError: for what `fit()` refuses too.
    """
    if not isinstance(data, MapDataset) or data.augment is not None or data.map is not None:
        return "its rows have no numbers, or are varied"
    spec = ManySpec.from_dict({**options, "predictions": False})
    if spec.early_stopping is not None:
        parse_early_stopping(spec.early_stopping)
    prepare(model, data)
    batch, _ = choose_batch_size(len(data.train_rows), data.spec.batch_size)
    facts = read_model_facts(model, data.row_bytes, batch)
    why = explain_alone(model, data, facts, device)
    if why:
        return why
    return _Asked(place, model, data, int(seed), spec, batch, describe_structure(model), facts)


def _split_few(group: Sequence[_Asked]) -> tuple[list[_Asked], list[_Asked]]:
    """Returns those for whom a stack of their structure is no gain, and the others."""
    counts = Counter(one.structure.key for one in group)
    worth = [is_worth(counts[one.structure.key], one.steps) for one in group]
    pairs = list(zip(group, worth, strict=True))
    return [one for one, gains in pairs if not gains], [one for one, gains in pairs if gains]


def _train_group(
    group: Sequence[_Asked], device: str, on_event: OnEvent | None
) -> dict[int, Trained]:
    """Trains models whose rows and options are of one kind, by their places."""
    spec, (data, starts) = group[0].spec, join_rows([one.data for one in group])
    stopping = spec.early_stopping
    task = Task(
        data,
        spec.epochs,
        group[0].batch_size,
        device,
        ProgressReporter(on_event, spec.epochs),
        stopping=None if stopping is None else parse_early_stopping(stopping),
        schedule=spec.schedule,
        predictions=False,
    )
    plan = plan_stacks(
        [one.structure.key for one in group],
        [len(one.data.train_rows) for one in group],
        [one.facts for one in group],
        range(len(group)),
        free_bytes=devices.free_bytes(device),
        most="auto",
    )
    trained: dict[int, Trained] = {}
    for places in plan.stacks:
        stack = [group[place] for place in places]
        trained |= _train_stack(stack, [starts[place] for place in places], task)
    return trained


def _train_stack(stack: Sequence[_Asked], starts: Sequence[int], task: Task) -> dict[int, Trained]:
    """Trains models of one structure, each on its rows from a first row on."""
    # Programs are kept with the model that they were made for, and the user may change his own.
    models = [make_initial(stack[0].model, None, stack[0].data), *(one.model for one in stack[1:])]
    given = [
        Start(_as_member(one, start), model, one.structure, read_state(one.model))
        for one, start, model in zip(stack, starts, models, strict=True)
    ]
    began = time.perf_counter()
    try:
        found = train_stack(given, task)
    except StackingError as error:
        return {one.place: Trained(None, f"a stack failed: {error}") for one in stack}
    seconds = (time.perf_counter() - began) / len(stack)
    return {
        one.place: Trained(_finish(one, found[one.place + 1], task.device, seconds, len(stack)))
        for one in stack
    }


def _as_member(asked: _Asked, start: int) -> Member:
    train, held = asked.data.train_rows + start, asked.data.validation_rows + start
    return Member(asked.place + 1, asked.place, asked.seed, "", "", train, held)


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


# Reports -----------------------------------------------------------------------------------------


def _finish(asked: _Asked, fitted: Fitted, device: str, seconds: float, models: int) -> FitReport:
    """Gives a model its state, as `fit()` would leave it, and reports its training."""
    model, data = asked.model, asked.data
    write_state(model, fitted.state)
    model_recipes.tie_recipe(model, data.recipe)
    report = _report(asked, fitted, device, seconds, models)
    fill_baseline(model, data)
    keep_history(model, report)
    return report


def _report(asked: _Asked, fitted: Fitted, device: str, seconds: float, models: int) -> FitReport:
    """Reports a training; its time is its share of that of all models of its program."""
    own, rows = fitted.history, len(asked.data.train_rows)
    epochs, plan = own.epochs, asked.data.plan(device)
    each = seconds / max(1, epochs)
    reason = f"{count_of(models, 'model')} of one structure trained as one program"
    reasons = {"engine": reason, "batch_size": plan.batch_reason, "rows": plan.reason}
    notes: tuple[str, ...] = ()
    if own.stopped == "non_finite":
        which = f"after epoch {epochs}" if epochs else "that it began with"
        why = f"the loss was no finite number in epoch {epochs + 1}"
        notes, reasons = (explain_stop(why, which),), {**reasons, "stopped": why}
    return FitReport(
        history=own.metrics,
        learning_rate=_read_rates(asked, epochs),
        epochs=epochs,
        rows=rows * epochs,
        elapsed_s=seconds,
        epoch_s=[each] * epochs,
        epoch_rows=[rows] * epochs,
        samples_per_s=rows / each if epochs and each else 0.0,
        input_share=0.0,
        device=device,
        variables=dict(Counter(tensor_ops.variable_devices(asked.model))),
        precision=asked.model.dtype_policy.name,
        peak_bytes=devices.peak_bytes(device),
        engine=EngineChoice("stacked", reason),
        micro_batch=asked.batch_size,
        replicas=1,
        workers=1,
        devices=(device,),
        skipped_steps=0,
        resumed_epochs=0,
        best_epoch=own.best_epoch,
        stopped=own.stopped,
        notes=notes,
        reasons=reasons,
        checkpoint="",
        tensorboard="",
        plan=plan,
    )


def _read_rates(asked: _Asked, epochs: int) -> list[float]:
    """Returns the rate of each epoch's last step."""
    rate = read_own_rate(asked.model.optimizer, 0)
    if asked.spec.schedule is None:
        return [float(rate)] * epochs
    steps = asked.steps // asked.spec.epochs
    at = np.arange(1, epochs + 1) * steps - 1
    schedule = parse_schedule(asked.spec.schedule)
    return draw_rates_at(schedule, rate, at, asked.steps, steps).tolist()
