"""The checkpoints of a training, or none: what a job asks without knowing which."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpukeras.checkpoint.fingerprint import describe_training
from gpukeras.checkpoint.manager import Checkpointer
from gpukeras.checkpoint.options import parse_checkpoint
from gpukeras.checkpoint.state import TrainingState
from gpukeras.core.options import FitSpec
from gpukeras.data.base import Dataset
from gpukeras.data.plan import PipelinePlan


class Saver:
    """Saves a training now and then, and takes it up.

    Args:
        checkpointer: Where to, or None for nowhere.

    Attributes:
        failures: Why saves failed, sentences, each once; the training goes on.
    """

    def __init__(self, checkpointer: Checkpointer | None) -> None:
        """Has saved nothing yet."""
        self._checkpointer = checkpointer
        self.failures: list[str] = []

    @property
    def enabled(self) -> bool:
        """Whether there is anything to save to."""
        return self._checkpointer is not None

    @property
    def folder(self) -> str:
        """Where the checkpoints are, or ""."""
        return str(self._checkpointer.folder) if self._checkpointer else ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know: what was found while resuming, and why saves failed."""
        found = self._checkpointer.notes if self._checkpointer else ()
        return (*found, *self.failures)

    def resume(self) -> TrainingState | None:
        """The state to go on from, or None."""
        return self._checkpointer.resume() if self._checkpointer else None

    def due(self) -> bool:
        """Whether it is time to save within an epoch."""
        return self._checkpointer is not None and self._checkpointer.due()

    def save(self, state: TrainingState) -> None:
        """Saves a state, or remembers why that failed."""
        if self._checkpointer is not None:
            self._remember(self._checkpointer.save(state))

    def write_history(self, report: Any) -> None:
        """Writes the history so far beside the checkpoints."""
        if self._checkpointer is not None:
            self._remember(self._checkpointer.write_history(report))

    def _remember(self, failure: str) -> None:
        if failure and failure not in self.failures:
            self.failures.append(failure)


@contextmanager
def open_saver(model: Any, data: Dataset, plan: PipelinePlan, spec: FitSpec) -> Iterator[Saver]:
    """The saver that a training asked for; other processes are kept out of its folder.

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
