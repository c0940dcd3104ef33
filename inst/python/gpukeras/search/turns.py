"""Trains trials one after another, for models that cannot be stacked, and as the reference."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.errors import CheckpointError, GpuKerasError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.core.metric_values import split_components
from gpukeras.data.dataset import MapDataset
from gpukeras.many.resamples import Resample, split_dataset
from gpukeras.search.building import Build, build_model
from gpukeras.search.trials import Outcome, Trial
from gpukeras.search.watch import Watch
from gpukeras.training.fit import fit
from gpukeras.training.model_guard import kept_model
from gpukeras.training.report import FitReport

BATCH_SIZE = "batch_size"  # the setting that is the training's, not only the builder's


class StoppedError(Exception):
    """The search ends before the trial has."""


class FailedError(Exception):
    """The trial failed; the message says why."""


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
            outcome = self._try(trial, epochs)
            self.built.pop(trial.number, None)
            if outcome is None:
                return
            yield outcome

    def drop(self, trials: Sequence[Trial]) -> None:
        """Deletes the checkpoints of trials."""
        for trial in trials:
            if self.states is not None:
                shutil.rmtree(self.states / f"{trial.number:04d}", ignore_errors=True)

    def _try(self, trial: Trial, epochs: int) -> Outcome | None:
        began = time.monotonic()
        try:
            model = self.model(trial)
            reports = [
                self._fit(model, trial, place, epochs) for place in range(len(self.resamples))
            ]
        except KeyboardInterrupt:
            self.watch.interrupt()
            return None
        except StoppedError:
            return None
        except FailedError as error:
            return Outcome(trial.number, epochs, seconds=_since(began), error=str(error))
        except GpuKerasError as error:
            why = error.message.rstrip(".")
            return Outcome(trial.number, epochs, seconds=_since(began), error=why)
        except Exception as error:  # whatever Keras refuses of a user's model
            why = find_reason(error)
            return Outcome(trial.number, epochs, seconds=_since(began), error=why)
        return summarise(trial.number, epochs, reports, _since(began))

    def _fit(self, model: Model, trial: Trial, place: int, epochs: int) -> FitReport:
        """Trains on one resample, from the initial weights or from the checkpoint."""
        folder = self._folder(trial, place)
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

    def _folder(self, trial: Trial, place: int) -> Path | None:
        if self.states is None:
            return None
        parent = self.states / f"{trial.number:04d}"
        parent.mkdir(parents=True, exist_ok=True)
        return parent / f"{place + 1:04d}"


def summarise(trial: int, epochs: int, reports: Sequence[FitReport], seconds: float) -> Outcome:
    """Returns the outcome of a trial from its training on each resample."""
    histories = [_by_component(report.history) for report in reports]
    names = [name for name in histories[0] if all(name in other for other in histories)]
    history = {
        name: np.mean([other[name] for other in histories], axis=0).tolist() for name in names
    }
    held_out = [name for name in names if name.startswith("val_")]
    metrics = {name: [other[name][epochs - 1] for other in histories] for name in held_out}
    return Outcome(trial, epochs, metrics, history, seconds)


def _by_component(history: Mapping[str, list[Any]]) -> dict[str, list[float]]:
    """Returns each metric after each epoch, with an array's components as metrics of their own."""
    found: dict[str, list[float]] = {}
    for epoch in range(len(next(iter(history.values()), []))):
        values = {name: each[epoch] for name, each in history.items()}
        for name, value in split_components(values).items():
            found.setdefault(name, []).append(value)
    return found


def _since(began: float) -> float:
    return time.monotonic() - began
