"""A folder of plain files that one call at a time owns, such as a search or many trainings.

    study.json   the index: what is done in the folder; JSON
    lock         held by the process that works in it

Each file is written beside its place, synced and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gpukeras.checkpoint.identity import find_changes
from gpukeras.checkpoint.manager import FolderSpec, check_grace
from gpukeras.checkpoint.store import to_plain
from gpukeras.core.atomic_dir import partial_file, write_text
from gpukeras.core.errors import CheckpointError, PreemptedError, warn_not_saved
from gpukeras.core.file_lock import FolderLock, TakenError
from gpukeras.core.messages import system_reason
from gpukeras.core.preemption import PreemptionNotice, catch_preemption
from gpukeras.core.safe_files import DiskFault, find_disk_fault, open_regular

LOCK = "lock"
MEASURED = ".gpukeras-measured-"  # before the names of folders in which a save is measured
FORMAT = 1
ANEW = "Give another folder, or delete this one to begin anew."
KeptType = TypeVar("KeptType", bound="Kept")


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
        words: What must agree for a call to go on, in the order in which it is compared, with its
            name for users.
        shown: Names whose values are short enough to be shown.
    """

    arg: str
    noun: str
    verb: str
    index: str
    parts: tuple[str, ...]
    repeated: str
    words: Mapping[str, str]
    shown: tuple[str, ...]


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

        Args:
            known: JSON values.

        Raises:
            CheckpointError: if that fails.
        """
        with self.errors("written"):
            for part in self.kind.parts:
                (self.path / part).mkdir(exist_ok=True)
        self.write(self.index, {"format": FORMAT, **known})

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

    def read_index(self) -> dict[str, Any]:
        """Returns what the index holds; nothing in a new folder.

        Raises:
            CheckpointError: if it is damaged, or another version of gpukeras has written it.
        """
        if not self.index.exists():
            return {}
        known = self.read(self.index)
        if known.pop("format", None) != FORMAT:
            what = f"holds a {self.kind.noun} of another version of gpukeras"
            raise self.refuse(what, "Give another.")
        return known

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


@dataclass
class Kept:
    """What a call keeps in a folder of its own; nothing without one.

    Args:
        home: The folder, which this process has locked, or None.
        known: What the index held when the folder was opened; empty in a new one.
        notes: Sentences for the user, as about other versions of packages.
        unsaved: Why the first save failed that did, or "".
        grace_s: See `FolderSpec`.
        notice: Whether this process is asked to end.
    """

    home: OwnedFolder | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unsaved: str = ""
    grace_s: float | None = None
    notice: PreemptionNotice = field(default_factory=PreemptionNotice)

    def load(self) -> None:
        """Reads what is in the folder, beside its index.

        Raises:
            CheckpointError: if that is damaged.
        """

    def check_grace(self, write: Callable[[Path], None]) -> None:
        """Checks that a save ends within the grace period, if there is one.

        Args:
            write: Writes into a folder what such a save writes; it is deleted afterwards.

        Raises:
            SpecError: with the seconds that are needed.
            CheckpointError: if it cannot be written.
        """
        if self.home is None or self.grace_s is None:
            return
        place, noun = self.home.path, self.home.kind.noun
        for left in place.glob(f"{MEASURED}*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with (
            self.home.errors("written"),
            tempfile.TemporaryDirectory(prefix=MEASURED, dir=place) as folder,
        ):
            began = time.monotonic()
            write(Path(folder))
            save_s = time.monotonic() - began
        check_grace(save_s, self.grace_s, noun)

    def compare(self, asked: Mapping[str, Any]) -> None:
        """Checks that what was begun in the folder is what is asked for.

        Args:
            asked: Values by the names of `FolderKind.words`, and others that need not agree.

        Raises:
            CheckpointError: naming the first difference.
        """
        if self.home is None or not self.known:
            return
        kind, known = self.home.kind, self.known
        here = json.loads(to_json(asked))
        for name, what in kind.words.items():
            if known.get(name) == here.get(name):
                continue
            change = " changed"
            if name in kind.shown:
                change = f" was {_show(known.get(name))} and is {_show(here.get(name))}"
            raise self.home.refuse(f"holds another {kind.noun}: {what}{change}", ANEW)
        self.notes += find_changes(here, known, f"{kind.noun} in `{kind.arg}`")

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Warns once where nothing can be saved any more, and lets the call go on."""
        assert self.home is not None
        try:
            yield
        except CheckpointError as error:
            if not self.unsaved:
                self.unsaved, noun = error.message, self.home.kind.noun
                warn_not_saved(f"The {noun} is not saved any more, and goes on: {error.message}")

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Ends the call as `end()` does after what runs within, also where that has ended so."""
        try:
            yield
        except PreemptedError:
            self.end()
            raise
        self.end()

    def end(self) -> None:
        """Ends the call if the process is asked to.

        Raises:
            PreemptedError: if so; all is saved.
            CheckpointError: if so, and something could not be saved.
        """
        if self.home is None or not self.notice.signal:
            return
        self.notice.heeded = True
        kind = self.home.kind
        if self.unsaved:
            what = f"The {kind.noun} cannot be saved: {self.unsaved}"
            raise CheckpointError(what, arg=kind.arg)
        raise self.notice.explain(f"its {kind.noun} is", str(self.home.path))


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


@contextmanager
def open_kept(asked: FolderSpec, kind: FolderKind, make: type[KeptType]) -> Iterator[KeptType]:
    """Opens what a call keeps, reads what is in it, and locks it against other processes.

    Meanwhile it catches the signals that ask this process to end, if anything is kept.

    Args:
        asked: The folder, which is created if it is missing; one without a name keeps nothing.
        kind: What it is for.
        make: The class of what is kept.

    Raises:
        CheckpointError: if the folder holds other files, a link or a damaged file, is in use, or
            cannot be read or written.
    """
    if not asked.folder:
        with catch_preemption(wanted=False):
            yield make()
        return
    with (
        catch_preemption() as notice,
        open_folder(Path(asked.folder).expanduser().absolute(), kind) as home,
    ):
        with home.errors("read"):
            kept = make(home, home.read_index(), grace_s=asked.grace_s, notice=notice)
            kept.load()
        yield kept


def to_json(value: Any) -> str:
    """Returns a value as JSON text, as it is stored."""
    return json.dumps(to_plain(value), indent=1, allow_nan=False)


def _check_new(folder: OwnedFolder) -> None:
    """Checks that a folder without an index has nothing that would be taken for its own.

    Raises:
        CheckpointError: naming what is in it.
    """
    kind = folder.kind
    names = {name for name in os.listdir(folder.path) if not name.startswith(MEASURED)}
    if names - {*kind.parts, LOCK, f".{kind.index}.partial"}:
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
