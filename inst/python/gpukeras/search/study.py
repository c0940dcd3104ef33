"""Keeps a search in a folder of plain files, so that it goes on after its process was killed.

    study.json          what is searched, on which rows, and the settings of all trials
    trials/0001.json    what came of a trial, with its history; written anew after each rung
    states/0001/0001/   checkpoints of trials that may go on, one folder a resample

What every such folder promises says `checkpoint.owned_folder`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpukeras.checkpoint.owned_folder import FolderKind, Kept, OwnedFolder
from gpukeras.checkpoint.store import remove_stores
from gpukeras.search.trials import Outcome, Trial

TRIALS = "trials"
STATES = "states"
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
    "order": "`shuffle`, `drop_last` or `augment` of `data`",
    "resamples": "`resamples`",
}
SHOWN = ("design", "metric", "mode", "epochs", "min_epochs", "eta", "seed")


KIND = FolderKind(
    "folder", "search", "searches", "study.json", (TRIALS, STATES), "its trial", WORDS, SHOWN
)


@dataclass
class Study(Kept):
    """The trials of a search, on disk if there is a folder.

    Args:
        outcomes: By trial, its outcomes by epochs.
    """

    outcomes: dict[int, dict[int, Outcome]] = field(default_factory=dict)

    @property
    def folder(self) -> Path | None:
        """The folder's path, or None."""
        return None if self.home is None else self.home.path

    @property
    def drawn(self) -> list[dict[str, Any]]:
        """Settings of the trials, in their order, as far as an earlier call drew them."""
        return list(self.known.get("trials", []))

    def load(self) -> None:
        """Reads the outcomes of all trials."""
        assert self.home is not None
        if not isinstance(self.known.get("trials", []), list):
            raise self.home.damaged(self.home.index)
        for number in range(1, len(self.drawn) + 1):
            path = self.home.path / TRIALS / f"{number:04d}.json"
            if path.exists():
                self.outcomes[number] = _read_outcomes(self.home, path, number)

    def begin(self, identity: Mapping[str, Any], drawn: list[dict[str, Any]]) -> None:
        """Writes what is searched.

        Args:
            identity: JSON values by the names of `WORDS`, and others that need not agree.
            drawn: Settings of all trials.
        """
        self.known = {**identity, "trials": drawn}
        if self.home is not None:
            self.home.begin(self.known)

    def record(self, trial: Trial, outcome: Outcome) -> None:
        """Adds an outcome, and writes the trial's file; warns where that fails, and goes on."""
        of_trial = self.outcomes.setdefault(trial.number, {})
        of_trial[outcome.epochs] = outcome
        if self.home is None:
            return
        rungs = [
            {n: v for n, v in asdict(each).items() if n != "trial"} for each in of_trial.values()
        ]
        stored = {**asdict(trial), "rungs": rungs}
        with self.saving():
            self.home.write(self.home.path / TRIALS / f"{trial.number:04d}.json", stored)

    def remove_states(self) -> None:
        """Deletes the checkpoints of a search that is complete; other files stay."""
        if self.folder is not None:
            remove_stores(self.folder / STATES)


def _read_outcomes(home: OwnedFolder, path: Path, number: int) -> dict[int, Outcome]:
    stored = home.read(path)
    try:
        outcomes = [Outcome(trial=number, **_read_metrics(rung)) for rung in stored["rungs"]]
        return {outcome.epochs: outcome for outcome in outcomes}
    except (KeyError, TypeError, AttributeError) as error:
        raise home.damaged(path) from error


def _read_metrics(rung: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of an outcome, whose metrics are numbers again where JSON has none."""
    metrics = {
        name: [math.nan if value is None else value for value in values]
        for name, values in rung["metrics"].items()
    }
    return {**rung, "metrics": metrics}
