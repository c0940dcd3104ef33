"""Keeps many trainings in a folder, so that they go on after their process was killed.

    fits.json      what is trained, on which rows, and which models train together
    models/*.npz   where models stand; a newer file replaces what older ones say of its models
    states/0012/   checkpoints of model 12, which trains alone

What every such folder promises says `checkpoint.owned_folder`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.checkpoint.fingerprint import (
    describe_model,
    describe_order,
    describe_rows,
    learning_rate,
    read_versions,
)
from gpukeras.checkpoint.format import DamagedError, read_file, write_file
from gpukeras.checkpoint.owned_folder import FolderKind, Kept
from gpukeras.checkpoint.store import remove_stores
from gpukeras.core.atomic_dir import partial_file
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.many.fits import Fitted, ModelHistory, ModelProgress, Start, State
from gpukeras.many.members import Member
from gpukeras.many.plan import StackPlan
from gpukeras.many.resamples import digest_numbers
from gpukeras.many.stack import read_state
from gpukeras.many.training import ManySpec
from gpukeras.training.listener import ProgressReporter

NAME = re.compile(r"\d{6}\.npz")
MODELS = "models"
STATES = "states"
ENDS = ("", "completed", "early", "interrupted", "non_finite", "failed")  # see `ModelHistory`
UNFINISHED = ("", "interrupted", "failed")  # of which something is left
NESTS = "state", "best", "outputs"  # of arrays, of a model's progress
SAVE_S = 20.0  # seconds between saves of a stack within its training
# What must agree for trainings to go on, in the order in which it is compared.
WORDS = {
    "models": "a model",
    "seed": "the seed of `data`",
    "members": "the settings, seeds, folds or groups",
    "epochs": "`epochs`",
    "batch_size": "`batch_size`",
    "schedule": "`schedule`",
    "early_stopping": "`early_stopping`",
    "data": "the rows of `data`",
    "order": "`shuffle`, `drop_last` or `augment` of `data`",
}
SHOWN = ("seed", "epochs", "batch_size")
KIND = FolderKind(
    *("checkpoint", "training", "trains", "fits.json", (MODELS, STATES)),
    *("the training of its models", WORDS, SHOWN),
)


def describe_trainings(
    models: Sequence[Model], data: Dataset, spec: ManySpec, members: Sequence[Member]
) -> dict[str, Any]:
    """Returns values by which trainings are recognised, see `WORDS`.

    Args:
        models: The compiled and built model of each setting.
        data: The rows.
        spec: The options.
        members: The models of the table.
    """
    early = spec.early_stopping
    return {
        "models": [
            {**describe_model(model), "learning_rate": learning_rate(model)} for model in models
        ],
        "members": [
            [each.setting, each.seed, each.fold, each.group]
            + [digest_numbers(each.train), digest_numbers(each.held_out)]
            for each in members
        ],
        # Models with a seed of their own have it in the place of that of the rows.
        "seed": data.spec.seed if any(each.seed is None for each in members) else None,
        "epochs": spec.epochs,
        "batch_size": spec.batch_size,
        "schedule": spec.schedule,
        "early_stopping": None if early is None else vars(early),
        "data": {**describe_rows(data), "batch_size": data.spec.batch_size},
        "order": describe_order(data),
        "versions": read_versions(),
    }


@dataclass
class SavedModels(Kept):
    """Where the models of a table stand, on disk if there is a folder.

    Args:
        progress: Where each model stood when the folder was opened, by its number in the table.
    """

    progress: dict[int, ModelProgress] = field(default_factory=dict)
    _parts: dict[Path, set[int]] = field(default_factory=dict)  # the models of each file
    _saved: float = field(default_factory=time.monotonic)

    @property
    def states(self) -> Path | None:
        """The folder of the checkpoints of models that train alone; None without."""
        return None if self.home is None else self.home.path / STATES

    def resume(self, asked: Mapping[str, Any], plan: StackPlan) -> StackPlan:
        """Checks that the folder's trainings, if there are any, are those that are asked for.

        Args:
            asked: What `describe_trainings()` returned.
            plan: Which models would train together.

        Returns:
            The plan with the stacks of an earlier process, so that sums are added in their order.

        Raises:
            CheckpointError: naming the first difference, or if the index is damaged.
        """
        self.compare(asked)
        return self._read_plan(plan) if self.known else plan

    def begin(self, asked: Mapping[str, Any], plan: StackPlan) -> None:
        """Writes the trainings.

        Args:
            asked: What `describe_trainings()` returned.
            plan: Which models train together.
        """
        assert self.home is not None
        groups = {"stacks": plan.stacks, "alone": plan.alone}
        self.home.begin({**asked, "plan": groups})

    def _read_plan(self, plan: StackPlan) -> StackPlan:
        assert self.home is not None
        count = len(plan.alone) + sum(map(len, plan.stacks))
        try:
            stored = self.known["plan"]
            stacks = tuple(tuple(map(int, stack)) for stack in stored["stacks"])
            alone = tuple(map(int, stored["alone"]))
        except (KeyError, TypeError, ValueError) as error:
            raise self.home.damaged(self.home.index) from error
        places = sorted([*alone, *(place for stack in stacks for place in stack)])
        if places != list(range(count)) or not all(stacks):
            raise self.home.damaged(self.home.index)
        return replace(plan, stacks=stacks, alone=alone)

    def drop_unfit(self, starts: Sequence[Start], epochs: int) -> None:
        """Forgets models that a file does not have as they are now: they begin anew.

        Args:
            starts: Where each training begins.
            epochs: Epochs of the trainings.
        """
        known = {start.member.number: start for start in starts}
        self.progress = {
            number: progress
            for number, progress in self.progress.items()
            if number in known and _is_of(progress, known[number], epochs)
        }

    def measure(self, starts: Sequence[Start], plan: StackPlan, keeps_best: bool) -> None:
        """Checks that the largest models that are saved at a time can be within the grace period.

        Args:
            starts: Where each training begins.
            plan: Which models train together.
            keeps_best: Whether early stopping keeps a second state of each model.

        Raises:
            SpecError, CheckpointError: see `check_grace()`.
        """
        ended = {number for number, progress in self.progress.items() if progress.finished}
        groups = [
            [starts[place].model for place in group if starts[place].member.number not in ended]
            for group in (*plan.stacks, *((place,) for place in plan.alone))
        ]
        largest = max(groups, key=lambda models: sum(model.count_params() for model in models))

        def write(folder: Path) -> None:
            progress = {place: not_begun(model, keeps_best) for place, model in enumerate(largest)}
            _write(folder / "000001.npz", progress)

        if largest:
            self.check_grace(write)

    def save(self, progress: Mapping[int, ModelProgress]) -> bool:
        """Writes where models stand; warns where that fails, and the trainings go on.

        Returns:
            Whether it was written.
        """
        assert self.home is not None
        self._saved = time.monotonic()
        folder = self.home.path / MODELS
        last = max((int(path.stem) for path in self._parts), default=0)
        path = folder / f"{last + 1:06d}.npz"
        with self.saving(), self.home.errors("written"):
            _write(path, progress)
            self._add(path, set(progress))
            return True
        return False

    def after_epoch(
        self,
        listener: ProgressReporter,
        read: Callable[[], Mapping[int, ModelProgress]],
    ) -> None:
        """Saves models that are training, now and then and where the training ends.

        Args:
            listener: Says whether the user ends it.
            read: Returns where the models stand.

        Raises:
            PreemptedError, CheckpointError: see `end()`.
        """
        ends = listener.stopped or bool(self.notice.signal)
        if ends or time.monotonic() - self._saved > SAVE_S:
            self.save(read())
        if ends:  # a signal that comes now ends the next epoch: nothing is lost
            self.end()

    def finish(self, fitted: Mapping[int, Fitted]) -> None:
        """Keeps models that have trained to their end, and no checkpoints of them any more."""
        ended = {
            number: ModelProgress(model, finished=True)
            for number, model in fitted.items()
            if model.history.stopped not in UNFINISHED
        }
        if self.states is not None and ended and self.save(ended):
            for number in ended:
                remove_stores(self.states / f"{number:04d}")

    def load(self) -> None:
        """Reads the files of models, from the oldest on."""
        assert self.home is not None
        files = (self.home.path / MODELS).glob("*.npz")
        for path in sorted(each for each in files if NAME.fullmatch(each.name)):
            self._read(path)

    def _read(self, path: Path) -> None:
        """Reads a file of models; one that is damaged leaves them as older files have them."""
        try:
            progress = unpack_progress(*read_file(path))
        except DamagedError as error:
            self.notes += (f"{path.name} of `checkpoint` was skipped: {error}.",)
            self._parts[path] = set()
            return
        self.progress |= progress
        self._add(path, set(progress))

    def _add(self, path: Path, numbers: set[int]) -> None:
        """Notes a file, and deletes those that say nothing which it does not."""
        for old in self._parts:
            self._parts[old] -= numbers
        self._parts[path] = numbers
        for old in [file for file, left in self._parts.items() if not left and file != path]:
            old.unlink(missing_ok=True)
            del self._parts[old]


def _is_of(progress: ModelProgress, start: Start, epochs: int) -> bool:
    """Whether progress is one of a training: its state, its epochs and its outputs fit."""
    own, outputs = read_state(start.model), runtime.tree().flatten(progress.fitted.outputs)
    return (
        is_like(progress.fitted.state, own)
        and (progress.best is None or is_like(progress.best, own))
        and 0 <= progress.epoch <= epochs
        and progress.fitted.history.epochs <= epochs
        and all(len(each) == len(start.member.held_out) for each in outputs if each is not None)
    )


def is_like(state: State, own: State) -> bool:
    """Whether two states have the same parts, shapes and dtypes."""
    return own.keys() == state.keys() and all(
        [(array.shape, array.dtype) for array in state[part]]
        == [(array.shape, array.dtype) for array in arrays]
        for part, arrays in own.items()
    )


# Files -------------------------------------------------------------------------------------------


def not_begun(model: Model, keeps_best: bool = False) -> ModelProgress:
    """Returns where a model stands that has not trained, as large as where it has.

    Args:
        model: The model.
        keeps_best: Whether early stopping keeps a second state of it.
    """
    state = read_state(model)
    return ModelProgress(Fitted(ModelHistory(), state, None), best=state if keeps_best else None)


def _write(path: Path, progress: Mapping[int, ModelProgress]) -> None:
    with partial_file(path) as partial:
        write_file(partial, *pack_progress(progress))


def pack_progress(
    progress: Mapping[int, ModelProgress],
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns JSON values and arrays that say where models stand."""
    arrays: dict[str, np.ndarray] = {}

    def store(array: Any) -> str | None:
        if array is None:
            return None
        name = f"{len(arrays):06d}"
        arrays[name] = np.asarray(array)
        return name

    plain: dict[str, Any] = {}
    for number, model in progress.items():
        entry = {**vars(model), **vars(model.fitted), "history": vars(model.fitted.history)}
        del entry["fitted"]
        entry |= {name: runtime.tree().map_structure(store, entry[name]) for name in NESTS}
        plain[str(number)] = entry
    return {"models": plain}, arrays


def unpack_progress(
    plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> dict[int, ModelProgress]:
    """Returns where models stand.

    Raises:
        DamagedError: if that is not what `pack_progress()` made.
    """
    try:
        return {int(number): _read(entry, arrays) for number, entry in plain["models"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError("it does not say where models stand") from error


def _read(entry: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> ModelProgress:
    def load(name: Any) -> Any:
        return None if name is None else arrays[name]

    state, best, outputs = (runtime.tree().map_structure(load, entry[name]) for name in NESTS)
    return ModelProgress(
        Fitted(_read_history(entry["history"]), dict(state), outputs, str(entry["error"])),
        int(entry["epoch"]),
        bool(entry["finished"]),
        best,
        {name: _read_monitor(entry["monitors"][name]) for name in entry["monitors"]},
        float(entry["factor"]),
    )


def _read_history(plain: Mapping[str, Any]) -> ModelHistory:
    metrics = {str(name): list(values) for name, values in plain["metrics"].items()}
    for values in metrics.values():
        np.asarray(values, np.float64)  # raises ValueError or TypeError for anything but numbers
    history = ModelHistory(metrics, str(plain["stopped"]), int(plain["best_epoch"]))
    even = len({len(values) for values in metrics.values()}) <= 1
    if not even or history.stopped not in ENDS or not 0 <= history.best_epoch <= history.epochs:
        raise ValueError("no history")
    return history


def _read_monitor(plain: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: int(plain[name]) for name in ("best_epoch", "wait", "cooling")}
    best = plain["best"]
    return {
        "metric": str(plain["metric"]),
        "best": None if best is None else float(best),
        **numbers,
    }
