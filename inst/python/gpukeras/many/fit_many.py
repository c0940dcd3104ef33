"""Trains many models of few structures: those of one structure as stacks, in one program each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import devices, tensor_ops
from gpukeras.core.errors import DataError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.core.options import Spec, check_count, check_flag, option
from gpukeras.data.arrays import epoch_order
from gpukeras.data.base import Dataset
from gpukeras.data.dataset import MapDataset
from gpukeras.data.plan import choose_batch_size
from gpukeras.engine.lr_tables import draw_rates_at, parse_schedule
from gpukeras.engine.optimizer import read_own_rate
from gpukeras.many.copies import make_initial, prepare
from gpukeras.many.fits import Fitted, FittedModels
from gpukeras.many.members import Groups, Member, list_members
from gpukeras.many.numbers import Structure, bind_numbers, describe_structure, is_rate
from gpukeras.many.plan import StackPlan, plan_stacks, read_model_facts, refuse_structure
from gpukeras.many.resamples import Resample, plan_resamples
from gpukeras.many.stack import Stack, read_state
from gpukeras.many.watching import see, watch
from gpukeras.training.callbacks.early_stopping import EarlyStoppingSpec, parse_early_stopping
from gpukeras.training.listener import OnEvent, ProgressReporter


@dataclass(frozen=True)
class ManySpec(Spec):
    """Options of a training of many models.

    Args:
        epochs: Passes of each model over its training rows.
        batch_size: Rows per step of each model, or "auto": those of the dataset, or by the rows of
            the median model.
        schedule: Learning rate schedule, see `lr_tables`; None for the optimizers' own rates.
        early_stopping: Patience in epochs, or options, see `early_stopping`; None for none.
        most: Models that train at a time, or "auto" (by memory).
        predictions: Whether the models predict the rows that they held out.
    """

    epochs: int = option(10, check_count)
    batch_size: str | int = option("auto", check_count)
    schedule: Mapping[str, Any] | None = None
    early_stopping: Any = None
    most: str | int = option("auto", check_count)
    predictions: bool = option(True, check_flag)


@dataclass(frozen=True)
class _Task:
    """What all stacks of a training share."""

    data: MapDataset
    spec: ManySpec
    stopping: EarlyStoppingSpec | None
    batch_size: int
    device: str
    listener: ProgressReporter


def fit_many(
    models: Sequence[Model],
    data: Dataset,
    options: Mapping[str, Any],
    *,
    seeds: Sequence[int] | None = None,
    folds: Any = None,
    groups: Mapping[str, Any] | None = None,
    together: Any = None,
    times: Any = None,
    on_event: OnEvent | None = None,
) -> FittedModels:
    """Trains a model for each combination of settings, seeds, folds and groups.

    Args:
        models: A compiled model for each setting; they stay as they are.
        data: Rows with numbers; the encoding is that of all its training rows.
        options: Fields of `ManySpec`.
        seeds: Seeds of initial weights, dropout and shuffles; None for the models' own weights.
        folds: See `plan_resamples()`; None for the split of `data`.
        groups: Models of their own for groups of rows: `names`, and `codes` (from 0), one a row.
        together: One group a row whose rows no fold may divide, see `plan_resamples()`.
        times: One time a row, see `plan_resamples()`.
        on_event: See `training.fit()`; also called between stacks.

    Raises:
        SpecError, DataError, ModelError: for what does not fit, before anything is trained.
    """
    spec = ManySpec.from_dict(options)
    rows = _check_data(data)
    stopping = None if spec.early_stopping is None else parse_early_stopping(spec.early_stopping)
    resamples = _open_folds(rows, folds, together, times)
    members = list_members(len(models), _check_seeds(seeds), resamples, _read_groups(groups, rows))
    for model in models:
        prepare(model, rows)
        refuse_structure(model, rows)
    sizes = [len(one.train) for one in members]
    wanted = rows.spec.batch_size if spec.batch_size == "auto" else spec.batch_size
    batch, _ = choose_batch_size(int(np.median(sizes)), wanted)
    device = devices.current().device
    listener = ProgressReporter(on_event, spec.epochs)
    task = _Task(rows, spec, stopping, batch, device, listener)
    began, built = time.perf_counter(), _build(models, members, rows)
    plan = _plan(models, members, built, task)
    found: dict[int, Fitted] = {}
    for stack in plan.stacks:
        found |= _train_stack([members[place] for place in stack], built, task)
    fitted = [found[one.number] for one in members]
    seconds = time.perf_counter() - began
    return FittedModels(
        rows,
        members,
        fitted,
        built,
        plan,
        batch_size=batch,
        device=device,
        elapsed_s=seconds,
    )


# Checks ------------------------------------------------------------------------------------------


def _check_data(data: Dataset) -> MapDataset:
    if not isinstance(data, MapDataset):
        raise DataError(
            "Many models need rows with numbers, and `data` gives its rows in sequence.",
            hint="Save them with gpu_dataset_save(), or give `x` and `y` in memory.",
            arg="data",
        )
    if data.recipe.mixed:
        raise DataError(
            "`data` mixes rows of a batch, which would mix rows of different models.",
            hint="Leave `mixup` and `cutmix` out.",
            arg="data",
        )
    return data


def _open_folds(data: MapDataset, folds: Any, together: Any, times: Any) -> tuple[Resample, ...]:
    if folds is None:
        return (Resample("", data.train_rows, data.validation_rows),)
    if len(data.validation_rows):
        raise SpecError(
            "`data` holds out validation rows, and `folds` hold out rows of their own.",
            hint="Leave `validation` of gpu_dataset() out.",
            arg="folds",
        )
    if data.dropped:
        raise SpecError(
            f"{count_of(data.dropped, 'row')} with missing values had to be dropped, so rows of "
            "`data` have other numbers than `folds` means.",
            hint='Drop them before, or use gpu_dataset(na = "impute").',
            arg="folds",
        )
    try:
        return plan_resamples(folds, len(data), groups=together, times=times, seed=data.spec.seed)
    except SpecError as error:  # there the argument has the name that gpu_tune() gives it
        message = error.message.replace("`resamples`", "`folds`").replace("`group`", "`together`")
        raise SpecError(message, hint=error.hint, arg="folds") from error


def _check_seeds(seeds: Sequence[int] | None) -> list[int | None]:
    if seeds is None:
        return [None]
    found = [check_count("seeds", seed, 0, 2**31 - 1) for seed in seeds]
    if not found or len(set(found)) < len(found):
        raise SpecError("`seeds` must be different whole numbers.", arg="seeds")
    return list(found)


def _read_groups(groups: Mapping[str, Any] | None, data: MapDataset) -> Groups | None:
    if groups is None:
        return None
    names, codes = tuple(map(str, groups["names"])), np.asarray(groups["codes"], np.int64)
    if len(codes) != len(data):
        raise SpecError(
            f"`group` has {count_of(len(codes), 'value')}, but `data` has "
            f"{count_of(len(data), 'row')}.",
            hint="Give one group a row; rows with missing values may have been dropped.",
            arg="group",
        )
    return Groups(names, codes)


def _plan(
    models: Sequence[Model],
    members: Sequence[Member],
    built: Mapping[tuple[int, int | None], Model],
    task: _Task,
) -> StackPlan:
    return plan_stacks(
        [describe_structure(built[_key(one)]).key for one in members],
        [len(one.train) for one in members],
        [read_model_facts(model, task.data.row_bytes, task.batch_size) for model in models],
        [one.setting for one in members],
        free_bytes=devices.free_bytes(task.device),
        most=task.spec.most,
    )


# Building ----------------------------------------------------------------------------------------


def _key(member: Member) -> tuple[int, int | None]:
    return member.setting, member.seed


def _build(
    models: Sequence[Model], members: Sequence[Member], data: MapDataset
) -> dict[tuple[int, int | None], Model]:
    """Returns the model that a member starts from, for each setting and seed."""
    built = {}
    for setting, seed in dict.fromkeys(map(_key, members)):
        model = models[setting]
        built[setting, seed] = model if seed is None else make_initial(model, seed, data)
    return built


# Training ----------------------------------------------------------------------------------------


def _train_stack(
    members: Sequence[Member], built: Mapping[tuple[int, int | None], Model], task: _Task
) -> dict[int, Fitted]:
    """Trains models of one structure; halves the stack where memory runs out."""
    try:
        return _train_together(members, built, task)
    except tensor_ops.exhausted():
        if len(members) == 1:
            raise
    half = len(members) // 2
    return _train_stack(members[:half], built, task) | _train_stack(members[half:], built, task)


def _train_together(
    members: Sequence[Member], built: Mapping[tuple[int, int | None], Model], task: _Task
) -> dict[int, Fitted]:
    models = [built[_key(one)] for one in members]
    stack = open_stack(models, task.data, task.device)
    training = _Training(members, models, stack, task)
    for epoch in range(task.spec.epochs):
        if not training.going or training.run(epoch):
            break
    return training.finish()


def open_stack(models: Sequence[Model], data: MapDataset, device: str) -> Stack:
    """Returns a stack of models of one structure, with the settings in which they differ."""
    different = {id(model): model for model in models}
    known = {key: describe_structure(model) for key, model in different.items()}
    structures = [known[id(model)] for model in models]
    paths = [path for path in structures[0].numbers if _differs(structures, path)]
    numbers = [[one.numbers[path] for path in paths] for one in structures]
    states = {key: read_state(model) for key, model in different.items()}
    return Stack(
        models[0],
        [states[id(model)] for model in models],
        data,
        device,
        bindings=bind_numbers(models[0], paths),
        numbers=np.array(numbers, np.float32).reshape(len(models), len(paths)),
    )


def _differs(structures: Sequence[Structure], path: Any) -> bool:
    return not is_rate(path) and len({one.numbers[path] for one in structures}) > 1


class _Training:
    """The training of a stack."""

    def __init__(
        self, members: Sequence[Member], models: Sequence[Model], stack: Stack, task: _Task
    ) -> None:
        """Starts before the first epoch."""
        self._members, self._stack, self._task = members, stack, task
        self._watched = watch(len(members), task.stopping)
        self._best = stack.state
        self._exact = read_model_facts(models[0], 0, 1).mixes_rows
        self._first = [read_own_rate(model.optimizer, 0) for model in models]
        self._rates = self._draw_rates()
        self.interrupted = False

    @property
    def going(self) -> bool:
        """Whether some model still trains."""
        return any(not one.stopped for one in self._watched)

    def run(self, epoch: int) -> bool:
        """Trains an epoch, from 0; returns whether the user wants to stop."""
        stack, task, before = self._stack, self._task, self._stack.state
        rates = None if self._rates is None else self._rates[epoch]
        logs = stack.train(
            [self._order(place, epoch) for place in range(len(self._members))],
            task.batch_size,
            rates,
            exact=self._exact,
            drop_last=task.data.spec.drop_last,
        )
        if any(len(one.held_out) for one in self._members):
            held = stack.evaluate([self._held(place) for place in range(len(self._members))])
            logs |= {f"val_{name}": values for name, values in held.items()}
        seen = see(self._watched, logs, epoch + 1, task.stopping)
        if seen.failed.any():
            stack.state = stack.keep(~seen.failed, before)
        self._best = stack.keep(seen.better, self._best)
        mean = {name: float(np.nanmean(values)) for name, values in logs.items() if values.ndim < 2}
        self.interrupted = task.listener.emit("epoch", epoch + 1, 0, None, mean)
        return self.interrupted

    def finish(self) -> dict[int, Fitted]:
        """Returns what each model has become."""
        stack, end = self._stack, "interrupted" if self.interrupted else "completed"
        stack.state = self._best
        if self._rates is not None:  # the schedule was this training's only
            stack.set_rates(self._first)
        held = [one.held_out for one in self._members]
        wanted = self._task.spec.predictions and any(map(len, held))
        outputs = stack.predict(held) if wanted else [None] * len(held)
        for one in self._watched:
            one.stopped = one.stopped or end
        return {
            member.number: Fitted(watched, stack.read(place), outputs[place])
            for place, (member, watched) in enumerate(
                zip(self._members, self._watched, strict=True)
            )
        }

    def _order(self, place: int, epoch: int) -> np.ndarray:
        """Returns a model's rows in an epoch's order; none for one that rests."""
        member, spec = self._members[place], self._task.data.spec
        if self._watched[place].stopped:
            return member.train[:0]
        seed = spec.seed if member.seed is None else member.seed
        return epoch_order(member.train, spec.shuffle, seed, epoch)

    def _held(self, place: int) -> np.ndarray:
        rows = self._members[place].held_out
        return rows[:0] if self._watched[place].stopped else rows

    def _draw_rates(self) -> list[np.ndarray] | None:
        """Returns the rates of each epoch, (steps, models); None for the optimizers' own."""
        spec = self._task.spec
        if spec.schedule is None:
            return None
        schedule = parse_schedule(spec.schedule)
        steps = [-(-len(one.train) // self._task.batch_size) for one in self._members]
        tables = np.zeros((spec.epochs, max(steps), len(steps)), np.float32)
        for place, (count, rate) in enumerate(zip(steps, self._first, strict=True)):
            at = np.arange(count * spec.epochs)
            drawn = draw_rates_at(schedule, rate, at, len(at), count)
            tables[:, :count, place] = drawn.reshape(spec.epochs, count)
        return list(tables)
