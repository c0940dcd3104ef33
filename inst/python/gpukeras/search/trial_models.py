"""The models of trials, their trainings on each resample, and where these are kept.

A model is built by the user's function, and checked before it trains.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from gpukeras.backend import runtime
from gpukeras.checkpoint.store import remove_stores
from gpukeras.core.errors import CheckpointError, GeneratorError, warn_not_saved
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import system_reason
from gpukeras.core.safe_files import find_disk_fault
from gpukeras.data.dataset.chunks import GeneratorInterrupt
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.distributed import session
from gpukeras.many.fits import make_initial
from gpukeras.many.jobs import Job
from gpukeras.many.resamples import Resample, join_parts, split_dataset
from gpukeras.models import model_checks
from gpukeras.models.label_numbers import LabelNumbers, learn_numbers
from gpukeras.search.options import BATCH_SIZE
from gpukeras.search.stopper import Stopper
from gpukeras.search.trials import Trial
from gpukeras.training.keras_functions import build_on

# Called with settings and a seed; returns `{model}`, `{failed, message}` or `{interrupted}`.
Build = Callable[[dict[str, Any], int], Mapping[str, Any]]


def build_model(build: Build, trial: Trial, data: Dataset) -> Model:
    """Returns a trial's model, built on the rows; the same trial gives the same initial weights.

    Args:
        build: The user's function.
        trial: The trial.
        data: The rows that the model must fit.

    Raises:
        GeneratorError: if the function failed, with its message.
        GeneratorInterrupt: if it was interrupted.
        ModelError, DataError: if the model is not compiled, or does not fit the rows.
    """
    with _seeded(trial.seed), session.resting():
        answer = build(dict(trial.settings), trial.seed)
    if answer.get("interrupted"):
        raise GeneratorInterrupt("Interrupted in `builder`.")
    if answer.get("failed"):
        raise GeneratorError(f"`builder` failed: {answer.get('message', '')}")
    model = answer["model"]
    model_checks.check_model(model, arg="builder()")
    model_checks.check_rows(model, data, fits=True)
    model_checks.check_rows(model, data, "data", step="test", fits=True)
    build_on(model, data)
    return model


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seeds Python's generator, from which Keras 3 draws the seeds of layers, and restores it."""
    runtime.keras()  # its first import draws from the generator
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


@dataclass
class TrialModels:
    """Makes the models of trials and their trainings.

    A trial's model is built once and trained on one resample after another, always from the same
    initial weights. Between two jobs only checkpoints are kept, on disk: after a kill they are
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
    built: dict[int, Model] = field(default_factory=dict)

    @cached_property
    def parts(self) -> list[MapDataset]:
        """The rows of each resample."""
        return [
            split_dataset(self.data, resample.train, resample.held_out)
            for resample in self.resamples
        ]

    @cached_property
    def joined(self) -> tuple[MapDataset, list[int]]:
        """Rows for models that train together, and the first one of each resample."""
        return join_parts(self.data, self.parts)

    def model(self, trial: Trial) -> Model:
        """Returns a trial's model, not trained yet; it is kept for the next call."""
        if trial.number not in self.built:
            self.built[trial.number] = build_model(self.build, trial, self.data)
        return self.built[trial.number]

    def learn(self, trial: Trial) -> list[LabelNumbers]:
        """Returns what a trial's model has to learn from the labels of each resample."""
        model = self.model(trial)
        return [learn_numbers(model, self.data, part) for part in self.parts]

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

    def list_jobs(
        self, trial: Trial, learned: Sequence[LabelNumbers], epochs: int
    ) -> Iterator[Job]:
        """Yields the training of a trial on each resample, from where its checkpoint stands.

        Args:
            trial: The trial.
            learned: What `learn()` returned.
            epochs: Epochs that it is to have trained in all.
        """
        model = self.model(trial)
        for place, (resample, numbers) in enumerate(zip(self.resamples, learned, strict=True)):
            folder = self._place(trial, place)
            checkpoint = None if folder is None else {"folder": str(folder), "keep": 1}
            first = self.joined[1][place]
            yield Job(
                number=trial.number * len(self.resamples) + place,
                model=make_initial(model, None, self.data, numbers) if numbers else model,
                train=resample.train + first,
                held_out=resample.held_out + first,
                options={**self.options, "epochs": epochs, "checkpoint": checkpoint},
                batch_size=trial.settings.get(BATCH_SIZE),
            )

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
