"""Keeps many trainings in a folder, so that they go on after their process was killed.

    fits.json      what is trained, on which rows, and which models train together
    models/*.npz   where models stand; a newer file replaces what older ones say of its models
    states/0012/   checkpoints of model 12, which trains alone

What every such folder promises says `checkpoint.owned_folder`.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from gpukeras.checkpoint.identity import find_changes
from gpukeras.checkpoint.owned_folder import FolderKind, OwnedFolder, open_folder, to_json
from gpukeras.checkpoint.store import remove_stores
from gpukeras.core.atomic_dir import partial_file
from gpukeras.core.errors import CheckpointError, warn_not_saved
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.many.fits import Fitted, ModelHistory, ModelProgress, Start, State
from gpukeras.many.members import Member
from gpukeras.many.options import ManySpec
from gpukeras.many.plan import StackPlan
from gpukeras.many.resamples import digest_numbers
from gpukeras.many.stack import read_state

FORMAT = 1
NAME = re.compile(r"\d{6}\.npz")
MODELS = "models"
STATES = "states"
KIND = FolderKind(
    "checkpoint", "training", "trains", "fits.json", (MODELS, STATES), "the training of its models"
)
ENDS = ("", "completed", "early", "interrupted", "non_finite", "failed")  # see `ModelHistory`
UNFINISHED = ("", "interrupted", "failed")  # of which something is left
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


def describe_trainings(
    models: Sequence[Model], data: Dataset, spec: ManySpec, members: Sequence[Member]
) -> dict[str, Any]:
    """Returns JSON values by which trainings are recognised, see `WORDS`.

    Args:
        models: The compiled and built model of each setting.
        data: The rows.
        spec: The options.
        members: The models of the table.
    """
    early = spec.early_stopping
    asked = {
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
    return dict(json.loads(to_json(asked)))


@dataclass
class SavedModels:
    """Where the models of a table stand, on disk if there is a folder.

    Args:
        home: The folder, which this process has locked; None to keep nothing.
        known: What `fits.json` held when the folder was opened, or an empty mapping.
        progress: Where each model stood when the folder was opened, by its number in the table.
        notes: Sentences for the user: damaged files, other versions of packages.
        unsaved: Why the first save failed that did, or "".
    """

    home: OwnedFolder | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    progress: dict[int, ModelProgress] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unsaved: str = ""
    _parts: dict[Path, set[int]] = field(default_factory=dict)  # the models of each file
    _saved: float = field(default_factory=time.monotonic)

    @property
    def states(self) -> Path | None:
        """The folder of the checkpoints of models that train alone; None without."""
        return None if self.home is None else self.home.path / STATES

    @property
    def due(self) -> bool:
        """Whether models that are training are to be saved."""
        return self.home is not None and time.monotonic() - self._saved > SAVE_S

    def begin(self, asked: Mapping[str, Any], plan: StackPlan) -> StackPlan:
        """Checks that the folder's trainings are those that are asked for, and writes these.

        Args:
            asked: What `describe_trainings()` returned.
            plan: Which models would train together.

        Returns:
            The plan with the stacks of an earlier process, so that sums are added in their order.

        Raises:
            CheckpointError: naming the first difference, or if the index is damaged.
        """
        assert self.home is not None
        self.home.compare(self.known, asked, WORDS, SHOWN)
        self.notes += find_changes(asked, self.known)
        if self.known:
            plan = self._read_plan(plan)
        groups = {"stacks": plan.stacks, "alone": plan.alone}
        self.home.begin({"format": FORMAT, **asked, "plan": groups})
        return plan

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
        try:
            with self.home.errors("written"), partial_file(path) as partial:
                write_file(partial, *_pack(progress))
        except CheckpointError as error:
            if not self.unsaved:
                self.unsaved = error.message
                warn_not_saved(f"The models are not saved any more, and train on: {error.message}")
            return False
        self._add(path, set(progress))
        return True

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

    def read(self, path: Path) -> None:
        """Reads a file of models; one that is damaged leaves them as older files have them."""
        assert self.home is not None
        try:
            progress = _unpack(*read_file(path))
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


@contextmanager
def open_saved(folder: str | None) -> Iterator[SavedModels]:
    """Opens the folder of trainings, reads what is in it, and locks it against other processes.

    Args:
        folder: The folder, which is created if it is missing; None to keep nothing.

    Raises:
        CheckpointError: if the folder holds other files, a link or a damaged index, is in use, or
            cannot be read or written.
    """
    if folder is None:
        yield SavedModels()
        return
    with open_folder(Path(folder).expanduser().absolute(), KIND) as home:
        saved = SavedModels(home)
        with home.errors("read"):
            if home.index.exists():
                saved.known = home.read(home.index)
                if saved.known.get("format") != FORMAT:
                    raise home.refuse("is of another version of gpukeras", "Give another.")
                files = (home.path / MODELS).glob("*.npz")
                for path in sorted(each for each in files if NAME.fullmatch(each.name)):
                    saved.read(path)
        yield saved


def _is_of(progress: ModelProgress, start: Start, epochs: int) -> bool:
    """Whether progress is one of a training: its state, its epochs and its outputs fit."""
    own, outputs = read_state(start.model), runtime.tree().flatten(progress.fitted.outputs)
    return (
        _is_like(progress.fitted.state, own)
        and (progress.best is None or _is_like(progress.best, own))
        and 0 <= progress.epoch <= epochs
        and progress.fitted.history.epochs <= epochs
        and all(len(each) == len(start.member.held_out) for each in outputs if each is not None)
    )


def _is_like(state: State, own: State) -> bool:
    """Whether two states have the same parts, shapes and dtypes."""
    return own.keys() == state.keys() and all(
        [(array.shape, array.dtype) for array in state[part]]
        == [(array.shape, array.dtype) for array in arrays]
        for part, arrays in own.items()
    )


# Files -------------------------------------------------------------------------------------------


def _pack(progress: Mapping[int, ModelProgress]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns JSON values and arrays that say where models stand."""
    arrays: dict[str, np.ndarray] = {}

    def store(name: str, array: Any) -> str:
        arrays[name] = np.asarray(array)
        return name

    def store_state(prefix: str, state: State | None) -> Any:
        if state is None:
            return None
        return {
            part: [store(f"{prefix}/{part}/{place:04d}", array) for place, array in enumerate(each)]
            for part, each in state.items()
        }

    plain: dict[str, Any] = {}
    for number, model in progress.items():
        fitted = model.fitted
        names = itertools.count()
        plain[str(number)] = {
            "history": vars(fitted.history),
            "state": store_state(f"{number}/state", fitted.state),
            "best": store_state(f"{number}/best", model.best),
            "outputs": runtime.tree().map_structure(
                lambda array, number=number, names=names: (
                    None if array is None else store(f"{number}/outputs/{next(names)}", array)
                ),
                fitted.outputs,
            ),
            "error": fitted.error,
            "epoch": model.epoch,
            "finished": model.finished,
            "monitors": dict(model.monitors),
            "factor": model.factor,
        }
    return {"models": plain}, arrays


def _unpack(plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[int, ModelProgress]:
    """Returns where models stand.

    Raises:
        DamagedError: if that is not what `_pack()` made.
    """
    try:
        return {int(number): _read(entry, arrays) for number, entry in plain["models"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedError("it does not say where models stand") from error


def _read(entry: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> ModelProgress:
    def load(names: Any) -> Any:
        return runtime.tree().map_structure(
            lambda name: None if name is None else arrays[name], names
        )

    fitted = Fitted(
        _read_history(entry["history"]),
        dict(load(entry["state"])),
        load(entry["outputs"]),
        str(entry["error"]),
    )
    return ModelProgress(
        fitted,
        int(entry["epoch"]),
        bool(entry["finished"]),
        load(entry["best"]),
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
