"""Trains many models of few structures: those of one structure as stacks, in one program each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import devices
from gpukeras.checkpoint.manager import FolderSpec, parse_folder
from gpukeras.checkpoint.owned_folder import open_kept
from gpukeras.core.errors import DataError, GpuKerasError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.core.options import check_count
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.plan import choose_batch_size
from gpukeras.many.alone import train_members
from gpukeras.many.batches import count_steps
from gpukeras.many.fits import Fitted, FittedModels, ModelProgress, Start, make_initial, prepare
from gpukeras.many.group_scaling import GroupScaling, choose_scaling, find_table
from gpukeras.many.members import Groups, Member, list_members
from gpukeras.many.plan import (
    Candidate,
    StackPlan,
    explain_alone,
    plan_stacks,
    read_model_facts,
)
from gpukeras.many.resamples import (
    Resample,
    join_parts,
    note_absent,
    open_resamples,
    read_classes,
    split_dataset,
)
from gpukeras.many.saved import KIND, SavedModels, describe_trainings
from gpukeras.many.structure import Structure, adapt_structure, describe_structure
from gpukeras.many.training import ManySpec, StackingError, Task, train_stack
from gpukeras.models.label_numbers import LabelNumbers, learn_numbers
from gpukeras.training.listener import ProgressReporter

UNSCALED = (
    "Numbers are scaled by all groups, as a gpu_tabular() is trained beside other models: where "
    "groups differ in scale, train each kind of model in a call of its own."
)
# Arguments of gpu_tune() as gpu_fit_many() calls them, whose `group` has models of their own.
NAMES = {"`resamples`": "folds", "`group`": "together"}


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
    checkpoint: str | Mapping[str, Any] | None = None,
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
        checkpoint: A folder in which the trainings are kept, and from which they go on, or fields
            of `FolderSpec`; see `saved`. None to keep nothing.
        on_event: See `training.fit()`; also called between stacks.

    Raises:
        SpecError, DataError, ModelError: for what does not fit, before anything is trained.
        CheckpointError: if the folder cannot be used, or holds other trainings.
        PreemptedError: if the process was asked to end, and the trainings are saved.
    """
    kept = FolderSpec() if checkpoint is None else parse_folder("checkpoint", checkpoint)
    spec = ManySpec.from_dict(options)
    rows = _check_data(data)
    resamples = _open_folds(rows, folds, together, times)
    codes = _read_groups(groups, rows)
    scaling = None if codes is None else choose_scaling(rows, codes, models)
    members = list_members(len(models), _check_seeds(seeds), resamples, codes)
    if codes is not None and scaling is not None:
        rows = _scale(rows, scaling, codes)
    parts = {
        split: split_dataset(rows, member.train, member.held_out, member.seed)
        for split, member in _first_of_each(members).items()
    }
    joined, firsts = join_parts(rows, list(parts.values()))
    first_rows = dict(zip(parts, firsts, strict=True))
    task = _make_task(spec, joined, members)
    for model in models:
        prepare(model, rows)
    several = len({find_table(model) is None for model in models}) > 1
    unscaled = (UNSCALED,) if codes is not None and several else ()
    said = unscaled if scaling is None else scaling.note()
    began, built = time.perf_counter(), _build(models, members, rows)
    structures = [describe_structure(model) for model in models]
    starts = list(_list_starts(models, members, built, structures, rows, parts))
    shifts = [start.member.shift(first_rows[_split(start.member)]) for start in starts]
    shifted = [replace(start, member=member) for start, member in zip(starts, shifts, strict=True)]
    with open_kept(kept, KIND, SavedModels) as saved:
        plan = _plan(models, structures, members, task)
        task = replace(task, listener=ProgressReporter(on_event, spec.epochs, saved.notice))
        if kept.folder:
            asked = describe_trainings(models, rows, spec, members)
            plan = _begin(saved, asked, plan, starts, spec)
            task = _save_to(saved, task)
        with saved.ending():
            fitted, plan = _train(shifted, plan, task, saved.progress)
    return FittedModels(
        rows,
        starts,
        [fitted[member.number] for member in members],
        plan,
        batch_size=task.batch_size,
        device=task.device,
        elapsed_s=time.perf_counter() - began,
        notes=(*note_absent(_name_splits(members), read_classes(rows)), *said, *saved.notes),
        scaling=scaling,
    )


def _begin(
    saved: SavedModels,
    asked: Mapping[str, Any],
    plan: StackPlan,
    starts: Sequence[Start],
    spec: ManySpec,
) -> StackPlan:
    """Begins trainings in a folder, or goes on with them; returns which models train together."""
    plan = saved.resume(asked, plan)
    saved.drop_unfit(starts, spec.epochs)
    saved.measure(starts, plan, spec.early_stopping is not None)
    saved.begin(asked, plan)
    return plan


def _save_to(saved: SavedModels, task: Task) -> Task:
    """Returns what trainings share that are kept in a folder."""
    after_epoch = partial(saved.after_epoch, task.listener)
    return replace(task, after_epoch=after_epoch, after_models=saved.finish, states=saved.states)


def _name_splits(members: Sequence[Member]) -> list[Resample]:
    """Returns each split of the rows once, with its name in words."""
    splits = []
    for (fold, group), member in _first_of_each(members).items():
        parts = [f"`{fold}`"] if fold else []
        parts += [f'the group "{group}"'] if group else []
        if parts:
            name = " of ".join(parts)
            splits.append(Resample(name[0].upper() + name[1:], member.train, member.held_out))
    return splits


def _make_task(spec: ManySpec, data: MapDataset, members: Sequence[Member]) -> Task:
    sizes = [len(member.train) for member in members]
    wanted = data.spec.batch_size if spec.batch_size == "auto" else spec.batch_size
    return Task(
        data,
        spec,
        choose_batch_size(int(np.median(sizes)), wanted)[0],
        devices.current().device,
        ProgressReporter(None, spec.epochs),
    )


def _train(
    starts: Sequence[Start], plan: StackPlan, task: Task, progress: Mapping[int, ModelProgress]
) -> tuple[dict[int, Fitted], StackPlan]:
    """Returns what each model has become, by its number, and the plan as it was carried out."""
    fitted = {number: begun.fitted for number, begun in progress.items() if begun.finished}
    for stack in plan.stacks:
        waiting = [starts[place] for place in stack if starts[place].member.number not in fitted]
        try:
            for together in _resume(waiting, progress):
                trained = train_stack(together, task)
                fitted |= trained
                task.after_models(trained)
        except StackingError as error:
            plan = plan.without([stack], f"a stack of them failed: {error}")
    left = [starts[place] for place in plan.alone if starts[place].member.number not in fitted]
    alone, how = train_members(left, task)
    return fitted | alone, replace(plan, reason="; ".join(filter(None, (plan.reason, how))))


def _resume(
    starts: Sequence[Start], progress: Mapping[int, ModelProgress]
) -> Iterable[list[Start]]:
    """Returns models of a stack that go on together: they have as many epochs behind them."""
    by_epochs: dict[int, list[Start]] = {}
    for start in starts:
        begun = progress.get(start.member.number)
        epochs = 0 if begun is None else begun.epoch
        by_epochs.setdefault(epochs, []).append(replace(start, begun=begun))
    return by_epochs.values()


# Checks ------------------------------------------------------------------------------------------


def _check_data(data: Dataset) -> MapDataset:
    if not isinstance(data, MapDataset):
        raise DataError(
            "Many models need rows with numbers, and `data` gives its rows in sequence.",
            hint="Save them with gpu_dataset_save(), or give `x` and `y` in memory.",
            arg="data",
        )
    return data


def _scale(rows: MapDataset, scaling: GroupScaling, codes: Groups) -> MapDataset:
    """Returns the rows with the numbers of each group standardised by its own."""
    scaled = copy(rows)
    scaled.sources = (scaling.apply(rows.sources[0], codes.codes), *rows.sources[1:])
    return scaled


def _open_folds(data: MapDataset, folds: Any, together: Any, times: Any) -> tuple[Resample, ...]:
    own = (Resample("", data.train_rows, data.validation_rows),)
    if folds is None and together is None and times is None:
        return own
    try:  # without folds, the split of `data` itself is checked
        planned = open_resamples(data, folds, groups=together, times=times, seed=data.spec.seed)
        return own if folds is None else planned
    except GpuKerasError as error:  # the arguments have the names that gpu_tune() gives them
        arg = str(error.details.get("arg", ""))
        details = {**error.details, "arg": NAMES.get(f"`{arg}`", arg)}
        raise type(error)(_rename(error.message), hint=_rename(error.hint), **details) from error


def _rename(text: str) -> str:
    for name, here in NAMES.items():
        text = text.replace(name, f"`{here}`")
    return text


def _check_seeds(seeds: Sequence[int] | None) -> list[int | None]:
    if seeds is None:
        return [None]
    checked = [check_count("seeds", seed, 0, 2**31 - 1) for seed in seeds]
    if not checked or len(set(checked)) < len(checked):
        raise SpecError("`seeds` must be different whole numbers.", arg="seeds")
    return list(checked)


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
    structures: Sequence[Structure],
    members: Sequence[Member],
    task: Task,
) -> StackPlan:
    spec = task.spec
    facts = [read_model_facts(model, task.data.row_bytes, task.batch_size) for model in models]
    alone = [
        explain_alone(model, task.data, needs, task.device, spec.most)
        for model, needs in zip(models, facts, strict=True)
    ]
    candidates = [
        Candidate(structures[at].key, len(member.train), facts[at], alone[at])
        for member in members
        for at in [member.setting]
    ]
    free_bytes = devices.free_bytes(task.device)
    plan = plan_stacks(candidates, free_bytes=free_bytes, most=spec.most)
    if spec.workers == "auto" or spec.most not in ("auto", 1):
        return plan
    short = task.data.spec.drop_last
    steps = [
        count_steps(len(member.train), task.batch_size, short) * spec.epochs for member in members
    ]
    return plan.without_small(steps)


# Building ----------------------------------------------------------------------------------------


def _key(member: Member) -> tuple[int, int | None]:
    return member.setting, member.seed


def _split(member: Member) -> tuple[str, str]:
    return member.fold, member.group


def _first_of_each(members: Sequence[Member]) -> dict[tuple[str, str], Member]:
    """Returns the first member of each split of the rows."""
    firsts: dict[tuple[str, str], Member] = {}
    for member in members:
        firsts.setdefault(_split(member), member)
    return firsts


def _build(
    models: Sequence[Model], members: Sequence[Member], data: MapDataset
) -> dict[tuple[int, int | None], Model]:
    """Returns the model that a member starts from, for each setting and seed; all are copies."""
    return {
        (setting, seed): make_initial(models[setting], seed, data)
        for setting, seed in dict.fromkeys(map(_key, members))
    }


def _list_starts(
    models: Sequence[Model],
    members: Sequence[Member],
    built: Mapping[tuple[int, int | None], Model],
    structures: Sequence[Structure],
    data: MapDataset,
    parts: Mapping[tuple[str, str], MapDataset],
) -> Iterator[Start]:
    """Yields where each training begins, with what the labels of its rows give."""
    learned: dict[tuple[Any, ...], LabelNumbers] = {}
    for member in members:
        split, anew = _split(member), member.seed is not None
        key = member.setting, anew, *split
        if key not in learned:
            model = models[member.setting]
            learned[key] = learn_numbers(model, data, parts[split], begins_anew=anew)
        structure = adapt_structure(structures[member.setting], learned[key])
        yield Start(member, built[_key(member)], structure, learned=learned[key])
