"""Keeps a search in a folder of plain files, so that it goes on after its process was killed.

    study.json          what is searched, on which rows, and the settings of all trials
    trials/0001.json    what came of a trial, with its history; written anew after each rung
    states/0001/0001/   checkpoints of trials that may go on, one folder a resample
    lock                held by the process that searches

Each file is written beside its place, synced and renamed, so that it is there whole or not at all.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.checkpoint.identity import find_changes
from gpukeras.checkpoint.store import remove_stores, to_plain
from gpukeras.core.atomic_dir import partial_file, write_text
from gpukeras.core.errors import CheckpointError, warn_not_saved
from gpukeras.core.file_lock import FolderLock, TakenError
from gpukeras.core.messages import count_of, system_reason
from gpukeras.core.safe_files import DiskFault, find_disk_fault
from gpukeras.search.trials import Outcome, Trial

FORMAT = 1
STUDY = "study.json"
TRIALS = "trials"
STATES = "states"
LOCK = "lock"
# What must agree for a search to go on, in the order in which it is compared.
WORDS = {
    "space": "the settings",
    "grid": "the grid",
    "design": "`design`",
    "metric": "`metric`",
    "mode": "`maximize`",
    "epochs": "`epochs`",
    "min_epochs": "`min_epochs`",
    "eta": "`eta`",
    "fit": "`fit`",
    "seed": "`seed`",
    "builder": "`builder`",
    "data": "the rows of `data`",
    "resamples": "`resamples`",
}
SHOWN = ("design", "metric", "mode", "epochs", "min_epochs", "eta", "seed")


@dataclass
class Study:
    """The trials of a search, on disk if there is a folder.

    Args:
        folder: The folder, which this process has locked; None to keep nothing.
        known: What `study.json` held when the folder was opened, or an empty mapping.
        outcomes: By trial, its outcomes by epochs.
        notes: Sentences for the user: other versions of packages.
        unsaved: Why the first outcome could not be written that could not, or "".
    """

    folder: Path | None = None
    known: Mapping[str, Any] = field(default_factory=dict)
    outcomes: dict[int, dict[int, Outcome]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unsaved: str = ""

    @property
    def drawn(self) -> list[dict[str, Any]]:
        """Settings of the trials, in their order, as far as an earlier call drew them."""
        return list(self.known.get("trials", []))

    def begin(self, identity: Mapping[str, Any], drawn: list[dict[str, Any]]) -> None:
        """Writes what is searched.

        Args:
            identity: JSON values by the names of `WORDS`, and others that need not agree.
            drawn: Settings of all trials.
        """
        self.known = {"format": FORMAT, **identity, "trials": drawn}
        if self.folder is not None:
            with self._errors("written"):
                (self.folder / TRIALS).mkdir(exist_ok=True)
                (self.folder / STATES).mkdir(exist_ok=True)
                _write(self.folder / STUDY, self.known)

    def compare(self, identity: Mapping[str, Any]) -> None:
        """Checks that the folder's search is the one that is asked for.

        Raises:
            CheckpointError: naming the first difference.
        """
        asked = json.loads(_to_json(identity))
        self.notes = find_changes(asked, self.known, "search in `folder`")
        for name, words in WORDS.items():
            if not self.known or self.known.get(name) == asked.get(name):
                continue
            change = " changed"
            if name in SHOWN:
                change = f" was {_show(self.known.get(name))} and is {_show(asked.get(name))}"
            raise CheckpointError(
                f"`folder` holds another search: {words}{change}.",
                hint="Give another folder, or delete this one to begin anew.",
                arg="folder",
                path=str(self.folder),
            )

    def record(self, trial: Trial, outcome: Outcome) -> None:
        """Adds an outcome, and writes the trial's file; warns where that fails, and goes on."""
        of_trial = self.outcomes.setdefault(trial.number, {})
        of_trial[outcome.epochs] = outcome
        if self.folder is None:
            return
        rungs = [
            {n: v for n, v in asdict(each).items() if n != "trial"} for each in of_trial.values()
        ]
        stored = {**asdict(trial), "rungs": rungs}
        try:
            with self._errors("written"):
                _write(self.folder / TRIALS / f"{trial.number:04d}.json", stored)
        except CheckpointError as error:
            if not self.unsaved:
                self.unsaved = error.message
                warn_not_saved(f"The search is not saved any more, and goes on: {error.message}")

    def remove_states(self) -> None:
        """Deletes the checkpoints of a search that is complete; other files stay."""
        if self.folder is not None:
            remove_stores(self.folder / STATES)

    def _errors(self, verb: str) -> Any:
        assert self.folder is not None
        return _folder_errors(self.folder, verb)


@contextmanager
def open_study(folder: Path | None) -> Iterator[Study]:
    """Opens a folder, reads what is in it, and locks it against other processes.

    Args:
        folder: The folder, which is created if it is missing; None to keep nothing.

    Raises:
        CheckpointError: if the folder holds other files, a link or a damaged file, is in use, or
            cannot be read or written.
    """
    if folder is None:
        yield Study()
        return
    with _folder_errors(folder, "used"):
        folder.mkdir(exist_ok=True)
        if not (folder / STUDY).exists():
            _check_new(folder)
        lock = _lock(folder)
    try:
        with _folder_errors(folder, "read"):
            _check_links(folder)
            study = _read_study(folder)
        yield study
    finally:
        lock.close()


def digest_numbers(rows: np.ndarray) -> str:
    """Returns how many row numbers there are, with a digest of them: "120 rows, 3f2a9c10"."""
    crc = zlib.crc32(np.ascontiguousarray(rows, np.int32).data)
    return f"{count_of(len(rows), 'row')}, {crc:08x}"


def _check_new(folder: Path) -> None:
    """Checks that a folder without `study.json` has nothing that a new search would take for its.

    Raises:
        CheckpointError: naming what is in it.
    """
    if set(os.listdir(folder)) - {TRIALS, STATES, LOCK, f".{STUDY}.partial"}:
        raise _refuse(folder, "holds other files, and no search", "Give a folder of its own.")
    for name in (TRIALS, STATES):  # a killed process left them empty
        if (folder / name).exists() and any((folder / name).iterdir()):
            hint = "Give another folder, or delete this one to begin anew."
            raise _refuse(folder, f"has {name}, and no {STUDY} that says of which search", hint)


def _check_links(folder: Path) -> None:
    """Checks that no folder in a study is a link: a search deletes checkpoints in its folders.

    Raises:
        CheckpointError: naming the link.
    """
    for above, names, _ in os.walk(folder):
        for link in [path for name in names if (path := Path(above, name)).is_symlink()]:
            what = f"has a link to another folder, {link.relative_to(folder).as_posix()}"
            hint = "Give a folder without links: a search deletes checkpoints in its folders."
            raise _refuse(folder, what, hint)


def _lock(folder: Path) -> FolderLock:
    try:
        return FolderLock(folder / LOCK)
    except TakenError as error:
        who = f"process {error}" if str(error) else "another process"
        raise _refuse(folder, f"is in use: {who} searches in it", "Wait for its end.") from error


def _read_study(folder: Path) -> Study:
    path = folder / STUDY
    if not path.exists():
        return Study(folder)
    known = _read(folder, path)
    if known.get("format") != FORMAT or not isinstance(known.get("trials"), list):
        raise _refuse(folder, "holds a search of another version of gpukeras", "Give another.")
    study = Study(folder, known)
    for number in range(1, len(known["trials"]) + 1):
        path = folder / TRIALS / f"{number:04d}.json"
        if path.exists():
            study.outcomes[number] = _read_outcomes(folder, path, number)
    return study


def _read_outcomes(folder: Path, path: Path, number: int) -> dict[int, Outcome]:
    stored = _read(folder, path)
    try:
        outcomes = [Outcome(trial=number, **_read_metrics(rung)) for rung in stored["rungs"]]
        return {outcome.epochs: outcome for outcome in outcomes}
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, path) from error


def _read_metrics(rung: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an outcome, whose metrics are numbers again where JSON has none."""
    metrics = {
        name: [math.nan if value is None else value for value in values]
        for name, values in rung["metrics"].items()
    }
    return {**rung, "metrics": metrics}


def _read(folder: Path, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise _damaged(folder, path) from error
    if not isinstance(value, dict):
        raise _damaged(folder, path)
    return value


def _damaged(folder: Path, path: Path) -> CheckpointError:
    name = path.relative_to(folder).as_posix()
    hint = "Delete the file: its trial is repeated."
    if name == STUDY:
        hint = "Give another folder, or delete this one to begin anew."
    return _refuse(folder, f"has a damaged file, {name}", hint)


def _refuse(folder: Path, what: str, hint: str) -> CheckpointError:
    return CheckpointError(f"`folder` {what}.", hint=hint, arg="folder", path=str(folder))


@contextmanager
def _folder_errors(folder: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fault = find_disk_fault(error) or DiskFault(
            system_reason(error), "Its parent must exist, and both be yours to write."
        )
        raise _refuse(folder, f"cannot be {verb}: {fault.reason}", fault.hint) from error


def _write(path: Path, value: Any) -> None:
    with partial_file(path) as partial:
        write_text(partial, _to_json(value))


def _to_json(value: Any) -> str:
    return json.dumps(to_plain(value), indent=1, allow_nan=False)


def _show(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if value is not None else "none"
