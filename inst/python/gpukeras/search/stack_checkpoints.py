"""Keeps where the models of stacked trials stand: a store of checkpoints for each trial."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpukeras.checkpoint.format import DamagedError
from gpukeras.checkpoint.store import CheckpointStore, Saved
from gpukeras.core.errors import CheckpointError
from gpukeras.many.fits import ModelProgress, State
from gpukeras.many.saved import is_like, pack_progress, unpack_progress


def save_checkpoints(folder: Path, progress: Sequence[ModelProgress | None]) -> None:
    """Writes where a trial stands on each resample.

    Args:
        folder: The trial's folder; it is made if it is missing.
        progress: One entry a resample; None for one that has not begun.

    Raises:
        CheckpointError, OSError: if it cannot be written; what was there stays.
    """
    folder.parent.mkdir(exist_ok=True)
    begun = {place: each for place, each in enumerate(progress) if each is not None}
    plain, arrays = pack_progress(begun)
    with CheckpointStore(folder, keep=1) as store:
        store.save({**plain, "resamples": len(progress)}, arrays)


def load_checkpoints(folder: Path, like: State, count: int) -> list[ModelProgress | None]:
    """Returns where a trial stands on each resample; of nothing that is damaged or another model's.

    Args:
        folder: The trial's folder, which may be missing.
        like: A state of the trial's model.
        count: Number of resamples.
    """
    loaded = dict[int, ModelProgress]()
    if folder.is_dir():
        # Where it fails, the trial begins anew.
        with suppress(CheckpointError), CheckpointStore(folder, keep=1) as store:
            store.load(lambda saved: loaded.update(_read(saved, like, count)))
    return [loaded.get(place) for place in range(count)]


def _read(saved: Saved, like: State, count: int) -> dict[int, ModelProgress]:
    progress = unpack_progress(saved.plain, saved.arrays)
    if saved.plain.get("resamples") != count:
        raise DamagedError("it is of other resamples")
    for each in progress.values():
        if not each.fitted.history.epochs or not is_like(each.fitted.state, like):
            raise DamagedError("it is of another model")
    return progress
