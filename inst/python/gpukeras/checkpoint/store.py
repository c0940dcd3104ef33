"""Stores the checkpoints of one training in a folder; each file appears whole or not at all.

    checkpoint-000007.npz   the newest
    checkpoint-000006.npz   the previous one, in case the newest is damaged
    history.json            read by R
    .gpukeras-lock          held by the training process

A new file is written under a hidden name, flushed to the disk and renamed; only then are older
files removed. A damaged checkpoint is skipped in favour of the previous one.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.checkpoint.format import DamagedError, read_file, write_file
from gpukeras.core.atomic_dir import partial_file, write_text
from gpukeras.core.errors import CheckpointError
from gpukeras.core.file_lock import FolderLock, TakenError
from gpukeras.core.messages import system_reason
from gpukeras.core.safe_files import NotOursError, find_disk_fault

KEEP = 3  # undamaged checkpoints that are kept
HISTORY = "history.json"
LOCK = ".gpukeras-lock"
_NAME = re.compile(r"checkpoint-([0-9]+)\.npz")
_PARTIAL = re.compile(r"\.(checkpoint-\d+\.npz|history\.json)\.partial")


class UnusableError(CheckpointError):
    """Checkpoints are damaged, or of another training: this one cannot resume from them."""


class InUseError(CheckpointError):
    """Another process trains with the folder."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read.

    Args:
        plain: JSON values.
        arrays: Arrays by name.
        notes: Sentences: which newer checkpoints were skipped, and why.
    """

    plain: dict[str, Any]
    arrays: dict[str, np.ndarray]
    notes: tuple[str, ...] = ()


class CheckpointStore:
    """The folder of the checkpoints; while it is open, no other process can open it.

    Args:
        folder: The folder; it is created if it is missing, its parent is not.
        keep: Number of undamaged checkpoints that are kept.

    Raises:
        InUseError: if another training uses it.
        CheckpointError: if it cannot be written, or holds other files.
    """

    def __init__(self, folder: str | Path, keep: int = KEEP) -> None:
        """Locks the folder and removes partial files of a killed process."""
        self.folder = Path(folder).expanduser().absolute()
        self._keep, self._damaged = keep, set[int]()
        with self._errors("written"):
            self._make()
            self._lock = self._take_lock()
            try:
                self._clean()
            except BaseException:
                self._lock.close()
                raise

    def save(self, plain: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Path:
        """Adds a checkpoint, then removes the oldest ones beyond `keep`.

        Args:
            plain: JSON values; NaN and infinity are kept.
            arrays: Numeric arrays of any shape.

        Returns:
            Its file.

        Raises:
            CheckpointError: if it cannot be written; earlier checkpoints stay unchanged.
        """
        with self._errors("written"):
            path = self._path(max(self._numbers(), default=0) + 1)
            with partial_file(path) as partial:
                write_file(partial, plain, arrays)
        self._remove_old()
        return path

    def load(self, check: Callable[[Saved], None] | None = None) -> Saved | None:
        """Returns the newest undamaged checkpoint, or None if there is none at all.

        Args:
            check: Raises a `DamagedError` for an undamaged file that is no state of a training.

        Raises:
            UnusableError: if there are checkpoints, and all are damaged.
            CheckpointError: if the folder cannot be read.
        """
        notes: list[str] = []
        with self._errors("read"):
            numbers = self._numbers()
        for number in reversed(numbers):
            try:
                saved = Saved(*read_file(self._path(number)), tuple(notes))
                if check is not None:
                    check(saved)
                return saved
            except (DamagedError, OSError) as error:
                self._damaged.add(number)
                why = error.strerror if isinstance(error, OSError) else error
                notes.append(f"{self._path(number).name} was passed over: {why}.")
        if notes:
            raise self._error(
                f"all checkpoints in {self.folder.name} are damaged. {notes[0]}",
                "Give another folder, or delete this one, to begin anew.",
                UnusableError,
            )
        return None

    def clear(self) -> None:
        """Deletes all checkpoints, and nothing else that lies in the folder.

        Raises:
            CheckpointError: if one cannot be deleted.
        """
        with self._errors("written"):
            for number in self._numbers():
                self._path(number).unlink(missing_ok=True)

    def write_history(self, record: Any) -> Path:
        """Writes the history of a training as JSON into the folder, for R and for people.

        Args:
            record: Plain values or a dataclass; NaN and infinity become null.

        Raises:
            CheckpointError: if it cannot be written; an earlier file stays unchanged.
        """
        path = self.folder / HISTORY
        text = json.dumps(to_plain(record), indent=1, allow_nan=False)
        with self._errors("written"), partial_file(path) as partial:
            write_text(partial, text)
        return path

    def close(self) -> None:
        """Unlocks the folder."""
        self._lock.close()

    def __enter__(self) -> CheckpointStore:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the store."""
        self.close()

    # The folder ----------------------------------------------------------------------------------

    def _make(self) -> None:
        if not self.folder.parent.is_dir():
            raise self._error(
                f"the folder {self.folder.parent.name} that {self.folder.name} is to be in "
                "does not exist.",
                "Make it first.",
            )
        if self.folder.exists() and not self.folder.is_dir():
            raise self._error(f"{self.folder.name} is a file.", "Give the path of a folder.")
        self.folder.mkdir(exist_ok=True)
        if not self._is_ours():
            raise self._error(
                f"{self.folder.name} holds other files, and no checkpoints.",
                "Give a new or an empty folder.",
            )

    def _is_ours(self) -> bool:
        """Whether the folder is a store or empty; hidden files of the file system do not count."""
        visible = [path for path in self.folder.iterdir() if not path.name.startswith(".")]
        return not visible or (self.folder / LOCK).exists() or bool(self._numbers())

    def _take_lock(self) -> FolderLock:
        try:
            return FolderLock(self.folder / LOCK)
        except TakenError as error:
            process = f" (process {error})" if str(error) else ""
            raise self._error(
                f"another training{process} uses {self.folder.name}.",
                "Give each training a folder of its own, or wait until the other has ended.",
                InUseError,
            ) from error

    def _clean(self) -> None:
        for path in self.folder.iterdir():
            if _PARTIAL.fullmatch(path.name):
                path.unlink(missing_ok=True)

    def _numbers(self) -> list[int]:
        """Returns the numbers of the checkpoints, oldest first."""
        matches = (_NAME.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def _path(self, number: int) -> Path:
        return self.folder / f"checkpoint-{number:06d}.npz"

    def _remove_old(self) -> None:
        with contextlib.suppress(OSError):  # the next save tries again
            numbers = self._numbers()
            good = [number for number in numbers if number not in self._damaged]
            for number in set(numbers).difference(good[-self._keep :]):
                self._path(number).unlink(missing_ok=True)

    # Errors --------------------------------------------------------------------------------------

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if fault := find_disk_fault(error):
                raise self._error(f"{fault.reason}.", fault.hint) from error
            hint = "Check the folder and its permissions."
            if isinstance(error, NotOursError):
                hint = "Nothing was written to it. Delete it, or give another folder."
            message = f"{self.folder.name} cannot be {what}: {system_reason(error)}."
            raise self._error(message, hint) from error

    def _error(
        self, message: str, hint: str, kind: type[CheckpointError] = CheckpointError
    ) -> CheckpointError:
        return kind(f"`checkpoint`: {message}", hint=hint, arg="checkpoint", path=str(self.folder))


def remove_stores(folder: Path) -> None:
    """Deletes the stores in a folder and below it, and the folders that are empty then.

    Files that no store has written stay, and what cannot be deleted.

    Args:
        folder: The folder, which may be missing.
    """
    for path, _, names in os.walk(folder, topdown=False):
        ours = [name for name in names if _is_stored(name)] if LOCK in names else []
        for name in ours:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(path, name))
        with contextlib.suppress(OSError):  # it holds other files
            os.rmdir(path)


def _is_stored(name: str) -> bool:
    """Whether a store writes files of a name."""
    return name in (LOCK, HISTORY) or bool(_NAME.fullmatch(name) or _PARTIAL.fullmatch(name))


def to_plain(value: Any) -> Any:
    """Converts a record to standard JSON values; NaN and infinity become null."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): to_plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
