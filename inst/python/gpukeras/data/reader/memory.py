"""Rows that R holds in memory: arrays, columns of a data frame, and strings as they are.

    character matrix or columns --encode()--> rows of codes, and the strings they stand for

A row of strings is a row of numbers too, so that all data movement handles a single array. On the
way to the model `transforms.build_unpack()` replaces the codes by the strings in host memory, the
only place where TensorFlow stores strings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.backend.features import require_feature
from gpukeras.core import progress
from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_copy
from gpukeras.core.messages import count_of
from gpukeras.data.arrays import (
    ALL_ROWS,
    EXACT_FLOAT32,
    EncodeOptions,
    check_features,
    order_columns,
    row_blocks,
)
from gpukeras.data.reader.rows import FeatureRequest, Features, MemoryRows, Rows, RowSource
from gpukeras.data.reader.storage import STORAGES, RowsWriter
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.encoding import count_rows, learn_array, learn_columns, transform
from gpukeras.data.recipe.imputation import count_missing
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding, TextEncoding, check_form

# Arrays -------------------------------------------------------------------------------------------


class InMemory(Features):
    """Features that R holds in memory.

    Args:
        asked: The features as R passes them.
    """

    def __init__(self, asked: FeatureRequest) -> None:
        """Stores the features."""
        self.asked = asked
        self.features = asked.features
        self.arg = asked.arg

    @property
    def rows(self) -> int:
        """Number of rows."""
        return count_rows(self.features, self.arg)

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the mask of complete rows, and the number of rows that lack each column."""
        return count_missing(self.features, self.rows, known, self.arg)

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> RowSource:
        """Returns the staged rows."""
        return MemoryRows(transform(encoding, self.features, self.arg, how))


class ArrayFeatures(InMemory):
    """A matrix or array: `{kind: "array", values, names}`."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; a vector becomes one column."""
        return check_features(self.features["values"], self.arg).shape[1:]

    def learn(self, how: Learning) -> Encoding:
        """Learns the encoding of the array."""
        x = check_features(self.features["values"], self.arg)
        return learn_array(x, self.features.get("names") or (), replace(how, arg=self.arg))

    def order_as(self, encoding: Encoding) -> Features:
        """Returns the same rows with columns in the encoding's order, if columns have names."""
        features = order_columns(self.features, encoding.names, self.arg)
        return type(self)(replace(self.asked, features=features))

    def encode_later(self, encoding: Encoding) -> RowSource:
        """Returns a view of R's rows that encodes them as they are gathered."""
        return GivenRows(encoding, self.features, self.arg)


class GivenRows(RowSource):
    """Rows of an array, encoded on access and never staged.

    Args:
        encoding: The encoding to apply.
        features: The array, as R passes it.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if the row shape differs from training.
    """

    def __init__(self, encoding: Encoding, features: Mapping[str, Any], arg: str) -> None:
        """Checks the shape; encodes no rows."""
        self._x = check_features(features["values"], arg)
        encoding = check_form(encoding, ArrayEncoding, self._x.shape[1:], arg, len(self._x))
        super().__init__((len(self._x), *encoding.staged_shape))
        self._encoding, self._arg = encoding, arg

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows, encoded."""
        try:
            return self._encode(self._x[rows])
        except DataError:
            self._encode(self._x)  # raises the error with the counts over all rows
            raise

    def _encode(self, x: np.ndarray) -> np.ndarray:
        return transform(self._encoding, {"kind": "array", "values": x}, self._arg)


class StoredArray(ArrayFeatures):
    """A collected array in a scratch file, which is encoded in blocks of rows: `kind` "stored"."""

    def __init__(self, asked: FeatureRequest) -> None:
        """Stores the features."""
        super().__init__(replace(asked, features={**asked.features, "kind": "array"}))

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> RowSource:
        """Encodes the rows, in memory or in another scratch file; see `Features.encode()`."""
        values = self.features["values"]
        keep = STORAGES.get(self.asked.spec.cache, "auto")
        with RowsWriter(encoding.staged_shape, keep=keep, arg=self.arg) as writer:
            blocks = row_blocks(len(values), 8 * values[0].size)
            for rows in progress.count_pass(blocks, "encoding", len(values), progress.count_rows):
                taken = None if how.complete is None else how.complete[rows]
                part = {**self.features, "values": values[rows]}
                some = replace(how, complete=taken)
                writer.write(transform(encoding, part, self.arg, some))
        return writer.finish()


# Data frames --------------------------------------------------------------------------------------


class ColumnFeatures(InMemory):
    """The columns of a data frame: `{kind: "columns", columns}`."""

    row_shape = None

    def texts(self) -> Collection[str]:
        """Names of the text columns."""
        columns = self.features["columns"]
        return [column["name"] for column in columns if column["kind"] == "character"]

    def learn(self, how: Learning) -> Encoding:
        """Learns the encoding of the columns."""
        how = replace(how, arg=self.arg, text=self.asked.text)
        return learn_columns(self.features["columns"], how)


# Strings as they are ------------------------------------------------------------------------------


class StringFeatures(Features):
    """Strings in memory: `{kind: "strings", values, levels, names}` with R's codes as `values`."""

    refuses = "text"

    def __init__(self, asked: FeatureRequest) -> None:
        """Stores the features."""
        require_feature("texts")
        self.features, self.arg = asked.features, asked.arg

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.features["values"])

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Number of strings per row."""
        return tuple(np.shape(self.features["values"])[1:])

    def learn(self, how: Learning) -> TextEncoding:
        """Returns the encoding; there is nothing to learn."""
        return TextEncoding(self.row_shape, names=tuple(self.features.get("names") or ()))

    def plain_encoding(self) -> TextEncoding:
        """Returns an encoding that passes texts on."""
        return TextEncoding(self.row_shape)

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns an all-true mask: missing strings are an error, see `encode()`."""
        return np.ones(self.rows, dtype=bool), {}

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> MemoryRows:
        """Returns rows of codes, with the strings that they stand for.

        Raises:
            DataError: if the row shape differs from training, strings are missing, or there are too
                many distinct strings.
        """
        check_form(encoding, TextEncoding, self.row_shape, self.arg)
        codes, levels = np.asarray(self.features["values"]), list(self.features["levels"])
        missing = int((codes < 1).any(axis=1).sum())
        if missing:
            rows = count_of(missing, "row")
            raise DataError(f"`{self.arg}` has missing texts in {rows}.", arg=self.arg)
        if len(levels) >= EXACT_FLOAT32:
            raise DataError(
                f"`{self.arg}` has {len(levels):,} different texts, more than {EXACT_FLOAT32:,}.",
                hint="Give them as a tf.data pipeline.",
                arg=self.arg,
            )
        kept = MemoryRows(aligned_copy(codes))
        kept.texts = {"": ["", *levels]}
        return kept
