"""Resumes and saves one training; a failed save never ends the training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpukeras.checkpoint.fingerprint import describe_training
from gpukeras.checkpoint.format import DamagedError
from gpukeras.checkpoint.identity import find_changes, find_mismatch
from gpukeras.checkpoint.state import TrainingState, check_plain, pack_state, unpack_state
from gpukeras.checkpoint.store import KEEP, CheckpointStore, Saved, UnusableError
from gpukeras.core.errors import CheckpointError, SpecError, warn_not_saved
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.core.options import (
    A_FOLDER,
    FitSpec,
    Spec,
    check_count,
    check_number,
    check_text,
    option,
)
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.plan import PipelinePlan

EVERY_S = 300.0  # seconds between saves within an epoch; each epoch's end is saved as well
SHARE = 0.05  # largest share of the time spent on saves, where the user set no interval
# What a process needs of its grace period: twice the time of a measured save, as the disk may be
# busier then, and seconds for the call of the engine in progress and for the end of R.
GRACE_SAVES, GRACE_REST_S = 2.0, 2.0


@dataclass(frozen=True)
class FolderSpec(Spec):
    """Where a call keeps what it does.

    Args:
        folder: The folder; it is created if it is missing, its parent is not.
        grace_s: Seconds from the signal that asks the process to end to its kill. A save is then
            measured before the first step, and a call that could not be saved in that time trains
            nothing. None measures nothing.
    """

    folder: str = ""
    grace_s: float | None = option(None, check_number, 0.0)


@dataclass(frozen=True)
class CheckpointSpec(FolderSpec):
    """Where and how often a training is saved.

    Args:
        folder: See `FolderSpec`.
        grace_s: See `FolderSpec`.
        every_s: Least number of seconds between saves within an epoch; each epoch's end is saved
            as well. None for 300, or more where a save takes long.
        keep: Number of undamaged checkpoints that are kept.
    """

    folder: str = option(
        "", check_text, A_FOLDER, 'Such as checkpoint = "run-1".', arg="checkpoint"
    )
    every_s: float | None = option(None, check_number, 0.0)
    keep: int = option(KEEP, check_count)


def parse_folder(arg: str, value: Any) -> FolderSpec:
    """Parses a folder's path or a mapping of options.

    Args:
        arg: The user's argument that names it.
        value: What was given.

    Raises:
        SpecError: naming the option.
    """
    spec = FolderSpec.parse(value)
    check_text(arg, spec.folder, A_FOLDER, f'Such as {arg} = "run-1".')
    return spec


def check_grace(save_s: float, grace_s: float, noun: str = "training") -> None:
    """Checks that a training, or what else it is, can be saved within the grace period.

    Args:
        save_s: Seconds of a save, measured.
        grace_s: Seconds of the grace period.
        noun: What is saved.

    Raises:
        SpecError: with the seconds that are needed.
    """
    needed_s = GRACE_SAVES * save_s + GRACE_REST_S
    if needed_s > grace_s:
        raise SpecError(
            f"`grace_s` is {count_of(grace_s, 'second')}, and {math.ceil(needed_s)} are needed: "
            f"twice the {save_s:.1f} that a save of this {noun} takes, and {GRACE_REST_S:.0f} for "
            "the call in progress.",
            hint="Let the queue send its signal earlier, or save to a faster disk.",
            arg="grace_s",
        )


class Checkpointer:
    """The checkpoints of one training; without a folder it saves nothing.

    Args:
        folder: The folder of the checkpoints, see `store.CheckpointStore`; None for none.
        identity: The identity of the training, see `fingerprint.describe_training()`.
        keep: Number of undamaged checkpoints that are kept.
        every_s: Seconds between saves within an epoch; None for 300, or more where saves are slow.
        grace_s: See `CheckpointSpec`.

    Attributes:
        notes: Sentences for the user: damaged checkpoints, other versions, reasons of failed saves.
        unsaved: Why the first save failed that did, or "".
        failed: Why the last save failed, or "".

    Raises:
        CheckpointError: if the folder cannot be written, holds other files, or is in use.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        identity: Mapping[str, Any] = MappingProxyType({}),
        keep: int = KEEP,
        every_s: float | None = None,
        grace_s: float | None = None,
    ) -> None:
        """Opens the folder and locks it against other processes."""
        self._store = None if folder is None else CheckpointStore(folder, keep)
        self._identity, self._every_s = dict(identity), every_s
        self._last, self._took_s = time.monotonic(), 0.0
        self._has_any = False
        self.grace_s = grace_s
        self.notes: tuple[str, ...] = ()
        self.unsaved = self.failed = ""

    @property
    def enabled(self) -> bool:
        """Whether the training has checkpoints."""
        return self._store is not None

    @property
    def folder(self) -> str:
        """The folder of the checkpoints, or ""."""
        return "" if self._store is None else str(self._store.folder)

    @property
    def saved(self) -> str:
        """The folder of the checkpoints, or "" while there is none in it."""
        return self.folder if self._has_any else ""

    def resume(self) -> TrainingState | None:
        """Returns the newest undamaged state, or None if there is no checkpoint.

        Raises:
            UnusableError: if it belongs to another training, or all are damaged.
            CheckpointError: if the folder cannot be read.
        """
        saved = None if self._store is None else self._store.load(self._check_whole)
        if saved is None:
            return None
        self._has_any = True
        there = saved.plain.get("identity", {})
        self._check(find_mismatch(self._identity, there))
        self.notes = (*saved.notes, *find_changes(self._identity, there), *self.notes)
        return self._unpack(saved)

    def due(self) -> bool:
        """Whether the interval between saves within an epoch has passed."""
        if self._store is None:
            return False
        wait = EVERY_S if self._every_s is None else self._every_s
        if self._every_s is None:
            wait = max(wait, self._took_s / SHARE)
        return time.monotonic() - self._last >= wait

    def save(self, state: TrainingState) -> None:
        """Saves a state; if that fails, the last good checkpoint is kept, and a warning says so."""
        if self._store is None:
            return
        began = time.monotonic()
        plain, arrays = pack_state(state)
        parts = {"identity": self._identity, "state": plain}, arrays
        self.failed = self._try(self._store.save, *parts)
        self._has_any = self._has_any or not self.failed
        # Set after a failure too, so that not every step retries.
        self._last = time.monotonic()
        self._took_s = self._last - began

    def write_history(self, record: Any) -> None:
        """Writes `history.json` from a record or plain values; fails like `save()`."""
        if self._store is not None:
            self._try(self._store.write_history, record)

    def _try(self, write: Callable[..., Any], *parts: Any) -> str:
        """Writes; returns why that failed, or ""."""
        try:
            write(*parts)
        except CheckpointError as error:
            self.notes = tuple(dict.fromkeys([*self.notes, str(error)]))
            if not self.unsaved:
                self.unsaved = error.message
                warn_not_saved(f"The training is not saved any more, and goes on: {error.message}")
            return error.message
        return ""

    def close(self) -> None:
        """Unlocks the folder."""
        if self._store is not None:
            self._store.close()

    def __enter__(self) -> Checkpointer:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the checkpoints."""
        self.close()

    def _check_whole(self, saved: Saved) -> None:
        """Raises DamagedError if a plain value has the wrong type; ignores unknown values."""
        check_plain(saved.plain)
        try:
            there = saved.plain.get("identity", {})
            find_mismatch(self._identity, there)
            find_changes(self._identity, there)
        except (TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
            raise DamagedError("it does not say of which training it is") from error

    def _check(self, mismatch: str) -> None:
        if mismatch:
            raise UnusableError(
                f"`checkpoint` holds another training: {mismatch}.",
                hint="Give another folder, or delete this one to begin anew.",
                arg="checkpoint",
                path=self.folder,
            )

    def _unpack(self, saved: Saved) -> TrainingState:
        try:
            return unpack_state(saved.plain["state"], saved.arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise UnusableError(
                "`checkpoint` was saved by another version of gpukeras, which kept other things.",
                hint="Give another folder, or train with that version.",
                arg="checkpoint",
                path=self.folder,
            ) from error


def open_saver(model: Model, data: Dataset, plan: PipelinePlan, spec: FitSpec) -> Checkpointer:
    """Opens the checkpoints that `spec` asks for; their folder is locked against other processes.

    Args:
        model: The compiled model, with its variables built.
        data: The dataset.
        plan: The pipeline plan of the dataset.
        spec: The options of the training.

    Raises:
        SpecError, CheckpointError: for bad options, or a folder that cannot be used.
    """
    if spec.checkpoint is None:
        return Checkpointer()
    requested = CheckpointSpec.parse(spec.checkpoint)
    identity = describe_training(model, data, plan, vars(spec))
    return Checkpointer(
        requested.folder, identity, requested.keep, requested.every_s, requested.grace_s
    )
