"""Trains trials one after another, for models that cannot be stacked, and as the reference."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gpukeras.core.errors import CheckpointError
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset import MapDataset
from gpukeras.many.resamples import Resample, split_dataset
from gpukeras.search.attempts import FailedError, StoppedError, attempt
from gpukeras.search.building import Build, build_model
from gpukeras.search.trials import Outcome, Trial, summarise
from gpukeras.search.watch import Watch
from gpukeras.training.fit import fit
from gpukeras.training.model_guard import kept_model
from gpukeras.training.report import FitReport

BATCH_SIZE = "batch_size"  # the setting that is the training's, not only the builder's


@dataclass
class Turns:
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
        watch: The clock of the search.
    """

    build: Build
    data: MapDataset
    resamples: Sequence[Resample]
    options: Mapping[str, Any]
    states: Path | None
    watch: Watch
    width: int = 1
    reason: str = ""
    built: dict[int, Model] = field(default_factory=dict)

    def model(self, trial: Trial) -> Model:
        """Returns a trial's model, not trained yet; it is kept for the next `train()`."""
        if trial.number not in self.built:
            self.built[trial.number] = build_model(self.build, trial, self.data)
        return self.built[trial.number]

    def train(self, trials: Sequence[Trial], epochs: int) -> Iterator[Outcome]:
        """Yields an outcome a trial; ends early, without one, when the search is to end."""
        for trial in trials:
            if self.watch.look():
                return
            outcome = attempt(trial, epochs, self.watch, partial(self._train, trial, epochs))
            self.built.pop(trial.number, None)
            if outcome is None:
                return
            yield outcome

    def drop(self, trials: Sequence[Trial]) -> None:
        """Deletes the checkpoints of trials."""
        for folder in map(self.folder, trials):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def folder(self, trial: Trial) -> Path | None:
        """Returns the folder of what is kept of a trial, which may be missing."""
        return None if self.states is None else self.states / f"{trial.number:04d}"

    def keeps(self, trial: Trial) -> bool:
        """Whether there are checkpoints of a trial."""
        folder = self.folder(trial)
        return folder is not None and any((folder / "0001").glob("checkpoint-*"))

    def _train(self, trial: Trial, epochs: int) -> Outcome:
        began, model = time.monotonic(), self.model(trial)
        places = range(len(self.resamples))
        histories = [self._fit(model, trial, place, epochs).history for place in places]
        return summarise(trial.number, epochs, histories, time.monotonic() - began)

    def _fit(self, model: Model, trial: Trial, place: int, epochs: int) -> FitReport:
        """Trains on one resample, from the initial weights or from the checkpoint."""
        folder = self._place(trial, place)
        try:
            report = self._fit_once(model, trial, place, epochs, folder)
        except CheckpointError:  # damaged, or of a builder that does not give the same model again
            if folder is None:
                raise
            shutil.rmtree(folder, ignore_errors=True)
            report = self._fit_once(model, trial, place, epochs, folder)
        if report.stopped == "interrupted":
            raise StoppedError
        if report.stopped == "non_finite":
            raise FailedError(f"the loss is not finite in epoch {report.epochs + 1}")
        return report

    def _fit_once(
        self, model: Model, trial: Trial, place: int, epochs: int, folder: Path | None
    ) -> FitReport:
        checkpoint = None if folder is None else {"folder": str(folder), "keep": 1}
        with kept_model(model):
            return fit(
                model,
                split_dataset(self.data, self.resamples[place]),
                {**self.options, "epochs": epochs, "checkpoint": checkpoint},
                batch_size=trial.settings.get(BATCH_SIZE),
                on_event=lambda event: self.watch.emit({"kind": "waiting"}),
            )

    def _place(self, trial: Trial, place: int) -> Path | None:
        """Returns the folder of a training's checkpoints, and makes its parent."""
        folder = self.folder(trial)
        if folder is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{place + 1:04d}"
