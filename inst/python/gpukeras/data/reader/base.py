"""Base class of all feature sources: counts rows, learns an encoding and encodes rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import Notes
from gpukeras.data.reader.rows import RowSource
from gpukeras.data.recipe.columns import note_numbers
from gpukeras.data.recipe.imputation import choose_complete
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding


class Features(ABC):
    """Features of one dataset, from memory or from files.

    Attributes:
        arg: Name of the user's argument, for error messages.
        refuses: Noun for error messages if rows can be neither dropped nor imputed, or "".
        formula: R's formula of the label and the feature columns, or "".
        skipped: Description of what `on_error = "skip"` left out, or "".
        notes: Sentences about surprising properties of the data.
    """

    arg: str
    refuses: str = ""
    formula: str = ""
    skipped: str = ""
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of rows."""

    @property
    @abstractmethod
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of one row, or None if only an encoding defines it."""

    @abstractmethod
    def learn(
        self, keep: np.ndarray, spec: DatasetSpec, complete: np.ndarray | None = None
    ) -> Encoding:
        """Learns the encoding.

        Args:
            keep: Mask of the training rows among the rows used; statistics come from these rows.
            spec: The dataset options.
            complete: Mask of the rows to use, or None for all rows.
        """

    @abstractmethod
    def encode(
        self, encoding: Encoding, complete: np.ndarray | None = None, notes: Notes | None = None
    ) -> RowSource:
        """Returns the encoded rows.

        Args:
            encoding: The encoding to apply.
            complete: Mask of the rows to use, or None for all rows.
            notes: Collects notes on integers that lose digits in float32, or None.
        """

    def plain_encoding(self) -> Encoding:
        """Returns an encoding that uses numbers unchanged, for rows whose shape is known."""
        return ArrayEncoding(self.row_shape or ())

    def encode_later(self, encoding: Encoding) -> RowSource:
        """Returns all rows for a single pass; encodes each on access where that costs nothing more.

        The errors are those of `encode()`, but may be raised later.
        """
        return self.encode(encoding)

    def order_as(self, encoding: Encoding) -> Features:
        """Returns the same rows with columns in the encoding's order, if columns have names."""
        return self

    def texts(self) -> Collection[str]:
        """Returns the names of the text columns."""
        return ()

    def remarks(self, encoding: Encoding, spec: DatasetSpec) -> tuple[str, ...]:
        """Returns sentences about surprising properties of the learned encoding."""
        chosen = () if isinstance(spec.encode, str) else spec.encode
        texts = [name for name in self.texts() if name not in chosen]
        return note_numbers(encoding.columns, texts, self.arg)

    def labels(self) -> Mapping[str, Any] | None:
        """Returns the labels in the data, as R passes labels, or None; call it once."""
        return None

    def weights(self) -> np.ndarray | None:
        """Returns the weights in the data, or None; call it once."""
        return None

    def images(self, complete: np.ndarray | None = None) -> tuple[Any, Any] | None:
        """Returns the image files of the rows to use and the form of their rows, or None."""
        return None

    def complete_rows(
        self, labels: Mapping[str, Any] | None, known: Collection[str] | None = None
    ) -> np.ndarray:
        """Returns the mask of rows with neither a missing feature nor a missing label.

        Args:
            labels: The labels, or None.
            known: Columns to check, or None for all.

        Raises:
            DataError: if no row is complete.
        """
        return choose_complete(*self.count_missing(known), labels, self.arg)

    def find_complete(self, known: Collection[str] | None = None) -> np.ndarray:
        """Returns the mask of rows without a missing feature; the mask may be all False."""
        return self.count_missing(known)[0]

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the mask of rows without a missing feature, and the missing counts by column.

        See `imputation`.
        """
        raise self._refuse("drop")

    def check_policy(self, na: str) -> None:
        """Checks that the source supports a policy for missing values.

        Raises:
            SpecError: if rows can be neither dropped nor imputed.
        """
        if na != "error" and self.refuses:
            raise self._refuse(na)

    def _refuse(self, na: str) -> SpecError:
        return SpecError(
            f'`na` = "{na}" needs rows in memory: `{self.arg}` is {self.refuses}.',
            hint="Drop or impute the missing values first.",
            arg="na",
        )
