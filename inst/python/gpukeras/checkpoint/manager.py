"""Resumes and saves one training; a failed save never ends the training."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpukeras.checkpoint.format import DamagedError
from gpukeras.checkpoint.identity import find_changes, find_mismatch
from gpukeras.checkpoint.state import TrainingState, check_plain, pack_state, unpack_state
from gpukeras.checkpoint.store import KEEP, CheckpointStore, Saved
from gpukeras.core.errors import CheckpointError

EVERY_S = 300.0  # seconds between saves within an epoch; each epoch's end is saved as well
SHARE = 0.05  # largest share of the time spent on saves, where the user set no interval


class Checkpointer:
    """The checkpoints of one training.

    Args:
        folder: The folder of the checkpoints; see `store.CheckpointStore`.
        identity: The identity of the training, see `fingerprint.describe_training()`.
        keep: Number of undamaged checkpoints that are kept.
        every_s: Seconds between saves within an epoch; None for 300, or more where saves are slow.

    Attributes:
        notes: Sentences for the user: damaged checkpoints, other versions.

    Raises:
        CheckpointError: if the folder cannot be written, holds other files, or is in use.
    """

    def __init__(
        self,
        folder: str | Path,
        identity: Mapping[str, Any],
        keep: int = KEEP,
        every_s: float | None = None,
    ) -> None:
        """Opens the folder and locks it against other processes."""
        self._store = CheckpointStore(folder, keep)
        self._identity, self._every_s = dict(identity), every_s
        self._last, self._took_s = time.monotonic(), 0.0
        self.notes: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of the checkpoints."""
        return self._store.folder

    def resume(self) -> TrainingState | None:
        """Returns the newest undamaged state, or None if there is no checkpoint.

        Raises:
            CheckpointError: if it belongs to another training, or all are damaged.
        """
        saved = self._store.load(self._check_whole)
        if saved is None:
            return None
        there = saved.plain.get("identity", {})
        self._check(find_mismatch(self._identity, there))
        self.notes = (*saved.notes, *find_changes(self._identity, there))
        return self._unpack(saved)

    def due(self) -> bool:
        """Whether the interval between saves within an epoch has passed."""
        wait = EVERY_S if self._every_s is None else self._every_s
        if self._every_s is None:
            wait = max(wait, self._took_s / SHARE)
        return time.monotonic() - self._last >= wait

    def save(self, state: TrainingState) -> str:
        """Saves a state.

        Returns:
            "", or why it failed: the training continues, and the last good checkpoint is kept.
        """
        began = time.monotonic()
        plain, arrays = pack_state(state)
        try:
            self._store.save({"identity": self._identity, "state": plain}, arrays)
        except CheckpointError as error:
            return str(error)
        finally:
            self._last = time.monotonic()  # set after a failure too, so that not every step retries
            self._took_s = self._last - began
        return ""

    def write_history(self, record: Any) -> str:
        """Writes `history.json` from a record or plain values; returns the same as `save()`."""
        try:
            self._store.write_history(record)
        except CheckpointError as error:
            return str(error)
        return ""

    def close(self) -> None:
        """Unlocks the folder."""
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
            raise CheckpointError(
                f"`checkpoint` holds another training: {mismatch}.",
                hint="Give another folder, or delete this one to begin anew.",
                arg="checkpoint",
                path=str(self.folder),
            )

    def _unpack(self, saved: Saved) -> TrainingState:
        try:
            return unpack_state(saved.plain["state"], saved.arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "`checkpoint` was saved by another version of gpukeras, which kept other things.",
                hint="Give another folder, or train with that version.",
                arg="checkpoint",
                path=str(self.folder),
            ) from error
