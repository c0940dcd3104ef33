"""What every kind of features can do: how many rows, what is learned, how they are read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import Notes
from gpukeras.data.preprocessing.columns import note_numbers
from gpukeras.data.preprocessing.imputation import choose_complete
from gpukeras.data.preprocessing.recipe import Recipe
from gpukeras.data.sources.row_store import RowSource


class Features(ABC):
    """Features as a user gave them.

    Attributes:
        arg: The user's name for them, for messages.
        kind: The kind of the recipes that encode them, see `Recipe`.
        refuses: What they are if none of their rows can be left out or filled in, or "".
        formula: R's formula of the label and the columns that they hold, or "".
        skipped: What `on_error = "skip"` has left out, or "".
        notes: Sentences about what their owner may not expect.
    """

    arg: str
    kind: str = "array"
    refuses: str = ""
    formula: str = ""
    skipped: str = ""
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows."""

    @property
    @abstractmethod
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of one row, or None where only a recipe tells it."""

    @abstractmethod
    def learn(
        self, keep: np.ndarray, spec: DatasetSpec, complete: np.ndarray | None = None
    ) -> Recipe:
        """The recipe.

        Args:
            keep: Which of the rows taken are training rows: statistics come from them.
            spec: The options.
            complete: Which rows are taken, or None for all.
        """

    @abstractmethod
    def encode(
        self,
        recipe: Recipe,
        complete: np.ndarray | None = None,
        notes: Notes | None = None,
        keep: str = "auto",
    ) -> RowSource:
        """The rows as a recipe encodes them.

        Args:
            recipe: The encoding.
            complete: Which rows are taken, or None for all.
            notes: Where whole numbers that lose digits are noted, or None.
            keep: Where rows that are made once go, see `spill.RowsWriter`.
        """

    def encode_later(self, recipe: Recipe) -> RowSource:
        """All rows, each encoded when it is asked for if that costs nothing more: to be read once.

        Errors may come later, but are the same.
        """
        return self.encode(recipe)

    def order_as(self, recipe: Recipe) -> Features:
        """The same rows with the columns in the order of a recipe, where names tell it."""
        return self

    def texts(self) -> Collection[str]:
        """Names of the columns that are text."""
        return ()

    def remarks(self, recipe: Recipe, spec: DatasetSpec) -> tuple[str, ...]:
        """Sentences about what was learned that their owner may not expect."""
        chosen = () if isinstance(spec.encode, str) else spec.encode
        texts = [name for name in self.texts() if name not in chosen]
        return note_numbers(recipe.columns, texts, self.arg)

    def labels(self) -> Mapping[str, Any] | None:
        """The labels that they hold, as labels come from R; to be asked for once."""
        return None

    def weights(self) -> np.ndarray | None:
        """The weights that they hold; to be asked for once."""
        return None

    def complete_rows(
        self, labels: Mapping[str, Any] | None, known: Collection[str] | None = None
    ) -> np.ndarray:
        """Which rows have neither a missing feature nor a missing label.

        Args:
            labels: The labels, or None.
            known: Columns that count, or None for all.

        Raises:
            DataError: if there is none.
        """
        return choose_complete(*self.count_missing(known), labels, self.arg)

    def find_complete(self, known: Collection[str] | None = None) -> np.ndarray:
        """Which rows have no missing feature; that there is none is no error."""
        return self.count_missing(known)[0]

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Which rows have no missing feature, and how many lack what, see `imputation`."""
        raise self._refuse("drop")

    def check_policy(self, na: str) -> None:
        """Looks whether a policy for missing values can be followed.

        Raises:
            SpecError: if rows cannot be left out or filled in.
        """
        if na != "error" and self.refuses:
            raise self._refuse(na)

    def _refuse(self, na: str) -> SpecError:
        return SpecError(
            f'`na` = "{na}" needs rows in memory: `{self.arg}` is {self.refuses}.',
            hint="Drop or impute the missing values first.",
            arg="na",
        )
