"""The options of a training of many models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpukeras.core.options import Spec, check_count, check_flag, option
from gpukeras.many.futures import Futures, check_workers
from gpukeras.training.callbacks.early_stopping import EarlyStoppingSpec, parse_early_stopping


@dataclass(frozen=True)
class ManySpec(Spec):
    """Options of a training of many models.

    Args:
        epochs: Passes of each model over its training rows.
        batch_size: Rows per step of each model, or "auto": those of the dataset, or by the rows of
            the median model.
        schedule: Learning rate schedule, see `schedules`; None for the optimizers' own rates.
        early_stopping: When to stop a model; also given as its patience or options, see
            `parse_early_stopping()`. None for never.
        most: Models that train at a time, or "auto" (by memory).
        predictions: Whether the models predict the rows that they held out.
        workers: Processes that train models which do not stack, "auto", or an engine that starts
            them, see `workers.plan`.
        repeats: Whether the user gave seeds, so that no clock chooses an engine.
    """

    epochs: int = option(10, check_count)
    batch_size: str | int = option("auto", check_count)
    schedule: Mapping[str, Any] | None = None
    early_stopping: EarlyStoppingSpec | None = None
    most: str | int = option("auto", check_count)
    predictions: bool = option(True, check_flag)
    workers: str | int | Futures = option("auto", check_workers)
    repeats: bool = option(False, check_flag)

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        super().__post_init__()
        stopping: Any = self.early_stopping
        if stopping is not None and not isinstance(stopping, EarlyStoppingSpec):
            self._set(early_stopping=parse_early_stopping(stopping))

    @property
    def engine(self) -> str:
        """The engine of models that do not stack."""
        return "repeatable" if self.repeats else "auto"
