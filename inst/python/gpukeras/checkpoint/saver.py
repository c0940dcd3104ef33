"""One interface for trainings with and without checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpukeras.checkpoint.fingerprint import describe_training
from gpukeras.checkpoint.manager import Checkpointer
from gpukeras.checkpoint.options import parse_checkpoint
from gpukeras.checkpoint.state import TrainingState
from gpukeras.core.keras_types import Model
from gpukeras.core.options import FitSpec
from gpukeras.data.base import Dataset
from gpukeras.data.plan import PipelinePlan


class Saver:
    """Saves and resumes a training.

    Args:
        checkpointer: The checkpoints, or None to save nothing.

    Attributes:
        failures: Reasons of failed saves, as sentences without duplicates; the training continues.
    """

    def __init__(self, checkpointer: Checkpointer | None) -> None:
        """Starts without failures."""
        self._checkpointer = checkpointer
        self.failures: list[str] = []

    @property
    def enabled(self) -> bool:
        """Whether the training has checkpoints."""
        return self._checkpointer is not None

    @property
    def folder(self) -> str:
        """The folder of the checkpoints, or ""."""
        return str(self._checkpointer.folder) if self._checkpointer else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user: findings of the resumption, and reasons of failed saves."""
        found = self._checkpointer.notes if self._checkpointer else ()
        return (*found, *self.failures)

    def resume(self) -> TrainingState | None:
        """Returns the state to resume from, or None."""
        return self._checkpointer.resume() if self._checkpointer else None

    def due(self) -> bool:
        """Whether the interval between saves within an epoch has passed."""
        return self._checkpointer is not None and self._checkpointer.due()

    def save(self, state: TrainingState) -> None:
        """Saves a state; records the reason if that fails."""
        if self._checkpointer is not None:
            self._remember(self._checkpointer.save(state))

    def write_history(self, report: Any) -> None:
        """Writes the history so far into the folder of the checkpoints."""
        if self._checkpointer is not None:
            self._remember(self._checkpointer.write_history(report))

    def _remember(self, failure: str) -> None:
        if failure and failure not in self.failures:
            self.failures.append(failure)


@contextmanager
def open_saver(model: Model, data: Dataset, plan: PipelinePlan, spec: FitSpec) -> Iterator[Saver]:
    """Opens the saver that `spec` asks for; its folder is locked against other processes.

    Args:
        model: The compiled model, with its variables built.
        data: The dataset.
        plan: The pipeline plan of the dataset.
        spec: The options of the training.

    Raises:
        SpecError, CheckpointError: for bad options, or a folder that cannot be used.
    """
    requested = parse_checkpoint(spec.checkpoint)
    if requested is None:
        yield Saver(None)
        return
    options = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    identity = describe_training(model, data, plan, options)
    with Checkpointer(
        requested.folder, identity, requested.keep, requested.every_s
    ) as checkpointer:
        yield Saver(checkpointer)
