"""The models of a table: which setting, seed, fold and group each has, and on which rows it trains.

Pure: it draws nothing and trains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.many.resamples import Resample


@dataclass(frozen=True)
class Member:
    """One model of the table.

    Args:
        number: Its row in the table, from 1.
        setting: Place of its settings; the model's configuration belongs to it.
        seed: Seed of its initial weights, dropout and shuffles; None for the dataset's shuffles and
            the weights that the given model has.
        fold: Name of its fold, or "".
        group: Its group, or "".
        train: Row numbers to train on (int32, from 0).
        held_out: Row numbers to measure on; empty for none.
    """

    number: int
    setting: int
    seed: int | None
    fold: str
    group: str
    train: np.ndarray
    held_out: np.ndarray

    def shift(self, first: int) -> Member:
        """Returns it on rows that begin at a first row."""
        return replace(self, train=self.train + first, held_out=self.held_out + first)


@dataclass(frozen=True)
class Groups:
    """Rows by group.

    Args:
        names: The groups' names.
        codes: The place of each row's group, one a row.
    """

    names: tuple[str, ...]
    codes: np.ndarray


def list_members(
    settings: int,
    seeds: Sequence[int | None],
    folds: Sequence[Resample],
    groups: Groups | None,
) -> list[Member]:
    """Returns every combination: settings change last, then seeds, folds and groups.

    Args:
        settings: How many settings there are.
        seeds: The seeds.
        folds: The splits of the rows.
        groups: Models of their own for groups of rows; None for one model of all.

    Raises:
        SpecError: if a group has no row to train on.
    """
    parts = [part for fold in folds for part in _split(fold, groups)]
    combined = [
        (setting, seed, *part) for setting in range(settings) for seed in seeds for part in parts
    ]
    return [Member(number, *each) for number, each in enumerate(combined, 1)]


def _split(fold: Resample, groups: Groups | None) -> list[tuple[str, str, np.ndarray, np.ndarray]]:
    """Returns fold, group, training rows and held-out rows of each model of a fold."""
    if groups is None:
        return [(fold.name, "", fold.train, fold.held_out)]
    train, held = (_by_group(rows, groups) for rows in (fold.train, fold.held_out))
    parts = []
    for name, mine, held_out in zip(groups.names, train, held, strict=True):
        if not len(mine):
            raise SpecError(
                f'The group "{name}" has no row to train on.',
                hint="Leave its rows out, or give other folds.",
                arg="group",
            )
        parts.append((fold.name, name, mine, held_out))
    return parts


def _by_group(rows: np.ndarray, groups: Groups) -> list[np.ndarray]:
    """Returns the rows of each group, in their order."""
    codes = groups.codes[rows]
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(groups.names)))
    return np.split(rows[order], ends[:-1])
