"""Trains trials one after another, for models that cannot be stacked, and as the reference."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gpukeras.checkpoint.store import remove_stores
from gpukeras.core.errors import CheckpointError, warn_not_saved
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import system_reason
from gpukeras.core.safe_files import find_disk_fault
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.many.alone import Job, run_job
from gpukeras.many.copies import make_initial
from gpukeras.many.histories import ModelHistory
from gpukeras.many.resamples import Resample, join_parts, split_dataset
from gpukeras.models.label_numbers import LabelNumbers, learn_numbers
from gpukeras.search.attempts import FailedError, StoppedError, attempt
from gpukeras.search.building import Build, build_model
from gpukeras.search.stopper import Stopper
from gpukeras.search.trials import Outcome, Trial, summarise

BATCH_SIZE = "batch_size"  # the setting that is the training's, not only the builder's


@dataclass
class SequentialTrainer:
    """A trainer of one model at a time.

    A trial's model is built once and trained on one resample after another, always from the same
    initial weights. Between two calls only checkpoints are kept, on disk: after a kill they are
    there, and a training goes on as if it had not been interrupted.

    Args:
        build: The user's function, see `building`.
        data: The rows.
        resamples: Their splits.
        options: Fields of `FitSpec` other than `epochs` and `checkpoint`.
        states: Folder of the checkpoints, or None to keep none: then each call begins anew.
        stopper: The clock of the search.
    """

    build: Build
    data: MapDataset
    resamples: Sequence[Resample]
    options: Mapping[str, Any]
    states: Path | None
    stopper: Stopper
    width: int = 1
    reason: str = ""
    built: dict[int, Model] = field(default_factory=dict)

    @cached_property
    def parts(self) -> list[MapDataset]:
        """The rows of each resample."""
        return [split_dataset(self.data, one.train, one.held_out) for one in self.resamples]

    @cached_property
    def joined(self) -> tuple[MapDataset, list[int]]:
        """Rows for models that train together, and the first one of each resample."""
        return join_parts(self.data, self.parts)

    def model(self, trial: Trial) -> Model:
        """Returns a trial's model, not trained yet; it is kept for the next `train()`."""
        if trial.number not in self.built:
            self.built[trial.number] = build_model(self.build, trial, self.data)
        return self.built[trial.number]

    def learn(self, trial: Trial) -> list[LabelNumbers]:
        """Returns what a trial's model has to learn from the labels of each resample."""
        model = self.model(trial)
        return [learn_numbers(model, self.data, part) for part in self.parts]

    def model_on(self, trial: Trial, learned: LabelNumbers) -> Model:
        """Returns a trial's model with what the labels of a resample give; not trained yet."""
        model = self.model(trial)
        return make_initial(model, None, self.data, learned) if learned else model

    def train(self, trials: Sequence[Trial], epochs: int) -> Iterator[Outcome]:
        """Yields an outcome a trial; ends early, without one, when the search is to end."""
        for trial in trials:
            if self.stopper.look():
                return
            outcome = attempt(trial, epochs, self.stopper, partial(self._train, trial, epochs))
            self.built.pop(trial.number, None)
            if outcome is None:
                return
            yield outcome

    def drop(self, trials: Sequence[Trial]) -> None:
        """Deletes the checkpoints of trials."""
        for folder in map(self.folder, trials):
            if folder is not None:
                remove_stores(folder)

    def folder(self, trial: Trial) -> Path | None:
        """Returns the folder of what is kept of a trial, which may be missing."""
        return None if self.states is None else self.states / f"{trial.number:04d}"

    def keeps(self, trial: Trial) -> bool:
        """Whether there are checkpoints of a trial."""
        folder = self.folder(trial)
        return folder is not None and any((folder / "0001").glob("checkpoint-*"))

    def _train(self, trial: Trial, epochs: int) -> Outcome:
        began = time.monotonic()
        histories = [
            self._fit(self.model_on(trial, learned), self.job(trial, place, epochs)).metrics
            for place, learned in enumerate(self.learn(trial))
        ]
        return summarise(trial.number, epochs, histories, time.monotonic() - began)

    def job(self, trial: Trial, place: int, epochs: int) -> Job:
        """Returns the training of a trial on a resample, from where its checkpoint stands."""
        folder, resample = self._place(trial, place), self.resamples[place]
        checkpoint = None if folder is None else {"folder": str(folder), "keep": 1}
        options = {**self.options, "epochs": epochs, "checkpoint": checkpoint}
        size = trial.settings.get(BATCH_SIZE)
        return Job(resample.train, resample.held_out, options, size)

    def _fit(self, model: Model, job: Job) -> ModelHistory:
        """Trains on one resample, from the initial weights or from the checkpoint."""
        waiting = {"kind": "waiting"}
        fitted = run_job(model, self.data, job, lambda event: self.stopper.emit(waiting))
        return check_end(fitted.history)

    def _place(self, trial: Trial, place: int) -> Path | None:
        """Returns the folder of a training's checkpoints, and makes its parent; None without."""
        folder = self.folder(trial)
        if folder is None:
            return None
        try:
            folder.mkdir(exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):  # a disk may have become read-only
                return folder / f"{place + 1:04d}"
        except OSError as error:
            self.give_up_states(error)
            return None

    def give_up_states(self, error: OSError | CheckpointError) -> None:
        """Keeps no checkpoints any more, and warns: trials that go on begin anew instead."""
        if self.states is not None:
            self.states = None
            why = str(error)
            if isinstance(error, OSError):
                fault = find_disk_fault(error)
                why = f"{fault.reason}." if fault else f"{system_reason(error)}."
            warn_not_saved(f"Trials of the search are not saved any more, and go on: {why}")


def check_end(history: ModelHistory) -> ModelHistory:
    """Returns the history of a training that has come to its end.

    Raises:
        StoppedError: if the user ended it.
        FailedError: if its loss was no number.
    """
    if history.stopped == "interrupted":
        raise StoppedError
    if history.stopped == "non_finite":
        raise FailedError(f"the loss is not finite in epoch {history.epochs + 1}")
    return history
