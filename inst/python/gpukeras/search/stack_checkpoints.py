"""Keeps where the models of stacked trials stand: a store of checkpoints for each trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.checkpoint.format import DamagedError
from gpukeras.checkpoint.store import CheckpointStore, Saved
from gpukeras.core.errors import CheckpointError
from gpukeras.many.stack import ModelState


@dataclass(frozen=True)
class Checkpoint:
    """Where a trial's model on one resample stands.

    Args:
        metrics: Each metric after each epoch, validation's too.
        state: The model's state, see `step.state_variables()`.
    """

    metrics: Mapping[str, list[Any]]
    state: ModelState

    @property
    def epochs(self) -> int:
        """Epochs trained."""
        return len(self.metrics.get("loss", ()))


def save_checkpoints(folder: Path, checkpoints: Sequence[Checkpoint | None]) -> None:
    """Writes where a trial stands on each resample.

    Args:
        folder: The trial's folder; it is made if it is missing.
        checkpoints: One entry a resample; None for one that has not begun.

    Raises:
        CheckpointError, OSError: if it cannot be written; what was there stays.
    """
    folder.parent.mkdir(exist_ok=True)
    plain = {
        "metrics": [
            None if checkpoint is None else checkpoint.metrics for checkpoint in checkpoints
        ]
    }
    arrays = {
        f"{place}/{part}/{number}": array
        for place, checkpoint in enumerate(checkpoints)
        if checkpoint is not None
        for part, values in checkpoint.state.items()
        for number, array in enumerate(values)
    }
    with CheckpointStore(folder, keep=1) as store:
        store.save(plain, arrays)


def load_checkpoints(folder: Path, like: ModelState, count: int) -> list[Checkpoint | None]:
    """Returns where a trial stands on each resample; of nothing that is damaged or another model's.

    Args:
        folder: The trial's folder, which may be missing.
        like: A state of the trial's model.
        count: Number of resamples.
    """
    none: list[Checkpoint | None] = [None] * count
    if not folder.is_dir():
        return none
    loaded: list[list[Checkpoint | None]] = []

    def check(saved: Saved) -> None:
        loaded.append(_read(saved, like, count))

    try:
        with CheckpointStore(folder, keep=1) as store:
            store.load(check)
    except CheckpointError:  # the trial begins anew
        return none
    return loaded[-1] if loaded else none


def _read(saved: Saved, like: ModelState, count: int) -> list[Checkpoint | None]:
    metrics = saved.plain.get("metrics")
    if not isinstance(metrics, list) or len(metrics) != count:
        raise DamagedError("it is of other resamples")
    return [
        None
        if history is None
        else Checkpoint(_check_metrics(history), _read_state(saved, place, like))
        for place, history in enumerate(metrics)
    ]


def _check_metrics(metrics: Any) -> dict[str, list[Any]]:
    lists = list(metrics.values()) if isinstance(metrics, dict) else []
    if not lists or not all(isinstance(values, list) for values in lists):
        raise DamagedError("it has no history")
    if len({len(values) for values in lists}) > 1:
        raise DamagedError("its history has gaps")
    return dict(metrics)


def _read_state(saved: Saved, place: int, like: ModelState) -> ModelState:
    state: dict[str, list[np.ndarray]] = {}
    for part, values in like.items():
        arrays = [saved.arrays.get(f"{place}/{part}/{number}") for number in range(len(values))]
        for array, value in zip(arrays, values, strict=True):
            if array is None or array.shape != value.shape or array.dtype != value.dtype:
                raise DamagedError("it is of another model")
        state[part] = [array for array in arrays if array is not None]
    return state
