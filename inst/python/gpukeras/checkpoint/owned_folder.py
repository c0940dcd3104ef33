"""A folder of plain files that one call at a time owns, such as a search or many trainings.

    study.json   the index: what is done in the folder; JSON
    lock         held by the process that works in it

Each file is written beside its place, synced and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpukeras.checkpoint.store import to_plain
from gpukeras.core.atomic_dir import partial_file, write_text
from gpukeras.core.errors import CheckpointError
from gpukeras.core.file_lock import FolderLock, TakenError
from gpukeras.core.messages import system_reason
from gpukeras.core.safe_files import DiskFault, find_disk_fault, open_regular

LOCK = "lock"
ANEW = "Give another folder, or delete this one to begin anew."


@dataclass(frozen=True)
class FolderKind:
    """What a folder is for.

    Args:
        arg: The user's argument that names it.
        noun: What is done in it: "search".
        verb: What a process does in it: "searches".
        index: The file that says what is done in it; a folder without it is new.
        parts: The folders in it.
        repeated: What is done again if another damaged file is deleted: "its trial".
    """

    arg: str
    noun: str
    verb: str
    index: str
    parts: tuple[str, ...]
    repeated: str


@dataclass(frozen=True)
class OwnedFolder:
    """A folder that this process has locked.

    Args:
        path: The folder.
        kind: What it is for.
    """

    path: Path
    kind: FolderKind

    @property
    def index(self) -> Path:
        """The file that says what is done in the folder."""
        return self.path / self.kind.index

    def begin(self, known: Mapping[str, Any]) -> None:
        """Makes the folders in it, and writes the index.

        Raises:
            CheckpointError: if that fails.
        """
        with self.errors("written"):
            for part in self.kind.parts:
                (self.path / part).mkdir(exist_ok=True)
        self.write(self.index, known)

    def write(self, path: Path, value: Any) -> None:
        """Writes a value as JSON.

        Raises:
            CheckpointError: if that fails; what was there stays.
        """
        with self.errors("written"), partial_file(path) as partial:
            write_text(partial, to_json(value))

    def read(self, path: Path) -> dict[str, Any]:
        """Returns a JSON object.

        Raises:
            CheckpointError: if the file is damaged, or is no file.
        """
        try:
            with self.errors("read"), open_regular(path) as file:
                value = json.loads(file.read().decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise self.damaged(path) from error
        if not isinstance(value, dict):
            raise self.damaged(path)
        return value

    def compare(
        self,
        known: Mapping[str, Any],
        asked: Mapping[str, Any],
        words: Mapping[str, str],
        shown: Sequence[str],
    ) -> None:
        """Checks that what was begun in the folder is what is asked for.

        Args:
            known: What the index holds; empty in a new folder.
            asked: JSON values.
            words: What must agree, in the order in which it is compared, with its name for users.
            shown: Names whose values are short enough to be shown.

        Raises:
            CheckpointError: naming the first difference.
        """
        for name, what in words.items():
            if not known or known.get(name) == asked.get(name):
                continue
            change = " changed"
            if name in shown:
                change = f" was {_show(known.get(name))} and is {_show(asked.get(name))}"
            raise self.refuse(f"holds another {self.kind.noun}: {what}{change}", ANEW)

    def damaged(self, path: Path) -> CheckpointError:
        """Returns the error of a file that nobody wrote so."""
        name = path.relative_to(self.path).as_posix()
        hint = ANEW if path == self.index else f"Delete the file: {self.kind.repeated} is repeated."
        return self.refuse(f"has a damaged file, {name}", hint)

    def refuse(self, what: str, hint: str) -> CheckpointError:
        """Returns an error: what the folder has or is, and how to go on."""
        arg = self.kind.arg
        return CheckpointError(f"`{arg}` {what}.", hint=hint, arg=arg, path=str(self.path))

    @contextmanager
    def errors(self, verb: str) -> Iterator[None]:
        """Raises the system's errors as a `CheckpointError`."""
        try:
            yield
        except OSError as error:
            fault = find_disk_fault(error) or DiskFault(
                system_reason(error), "Its parent must exist, and both be yours to write."
            )
            raise self.refuse(f"cannot be {verb}: {fault.reason}", fault.hint) from error


@contextmanager
def open_folder(path: Path, kind: FolderKind) -> Iterator[OwnedFolder]:
    """Opens a folder and locks it against other processes.

    Args:
        path: The folder, which is created if it is missing; its parent is not.
        kind: What it is for.

    Raises:
        CheckpointError: if the folder holds other files or a link, is in use, or cannot be read or
            written.
    """
    folder = OwnedFolder(path, kind)
    with folder.errors("used"):
        path.mkdir(exist_ok=True)
        if not folder.index.exists():
            _check_new(folder)
        lock = _lock(folder)
    try:
        with folder.errors("read"):
            _check_links(folder)
        yield folder
    finally:
        lock.close()


def to_json(value: Any) -> str:
    """Returns a value as JSON text, as it is stored."""
    return json.dumps(to_plain(value), indent=1, allow_nan=False)


def _check_new(folder: OwnedFolder) -> None:
    """Checks that a folder without an index has nothing that would be taken for its own.

    Raises:
        CheckpointError: naming what is in it.
    """
    kind = folder.kind
    if set(os.listdir(folder.path)) - {*kind.parts, LOCK, f".{kind.index}.partial"}:
        raise folder.refuse(f"holds other files, and no {kind.noun}", "Give a folder of its own.")
    for name in kind.parts:  # a killed process left them empty
        if (folder.path / name).exists() and any((folder.path / name).iterdir()):
            what = f"has {name}, and no {kind.index} that says of which {kind.noun}"
            raise folder.refuse(what, ANEW)


def _check_links(folder: OwnedFolder) -> None:
    """Checks that no folder in it is a link: checkpoints in its folders are deleted.

    Raises:
        CheckpointError: naming the link.
    """
    for above, names, _ in os.walk(folder.path):
        for link in [path for name in names if (path := Path(above, name)).is_symlink()]:
            what = f"has a link to another folder, {link.relative_to(folder.path).as_posix()}"
            does = f"a {folder.kind.noun} deletes checkpoints in its folders"
            raise folder.refuse(what, f"Give a folder without links: {does}.")


def _lock(folder: OwnedFolder) -> FolderLock:
    try:
        return FolderLock(folder.path / LOCK)
    except TakenError as error:
        who = f"process {error}" if str(error) else "another process"
        what = f"is in use: {who} {folder.kind.verb} in it"
        raise folder.refuse(what, "Wait for its end.") from error


def _show(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if value is not None else "none"
