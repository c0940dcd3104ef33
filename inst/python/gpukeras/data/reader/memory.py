"""Rows that R holds in memory: arrays, sparse matrices, data frames, and strings as they are.

    character matrix or columns --encode()--> rows of codes, and the strings they stand for

A row of strings is a row of numbers too, so that all data movement handles a single array. On the
way to the model `transforms.build_unpack()` replaces the codes by the strings in host memory, the
only place where TensorFlow stores strings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.backend.features import require_feature
from gpukeras.core import progress
from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_copy, aligned_empty
from gpukeras.core.messages import count_of, mib
from gpukeras.data.arrays import (
    ALL_ROWS,
    EXACT_FLOAT32,
    EncodeOptions,
    Notes,
    check_features,
    column_error,
    column_name,
    find_inexact,
    find_other,
    order_columns,
    order_names,
    row_blocks,
    standardise,
)
from gpukeras.data.reader.rows import (
    FeatureRequest,
    Features,
    MemoryRows,
    Rows,
    RowSource,
    row_numbers,
)
from gpukeras.data.reader.storage import STORAGES, RowsWriter
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.encoding import count_rows, learn_array, learn_columns, transform
from gpukeras.data.recipe.imputation import count_missing
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    Encoding,
    TextEncoding,
    check_array,
    check_form,
)
from gpukeras.data.stage_timer import end_stage

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
    """A matrix or array: `{kind: "array", values, names}`; if mapped, it is encoded in blocks."""

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

    def encode_later(self, encoding: Encoding, notes: Notes | None = None) -> RowSource:
        """Returns a view of R's rows that encodes them as they are gathered."""
        return GivenRows(encoding, self.features, self.arg, notes)

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> RowSource:
        """Returns the rows; those of a scratch file in memory, or in another scratch file."""
        values = self.features["values"]
        if not isinstance(values, np.memmap):
            return super().encode(encoding, how)
        keep = STORAGES.get(self.asked.spec.cache, "auto")
        with RowsWriter(encoding.staged_shape, keep=keep, arg=self.arg) as writer:
            blocks = row_blocks(len(values), 8 * values[0].size)
            for rows in progress.count_pass(blocks, "encoding", len(values), progress.count_rows):
                taken = None if how.complete is None else how.complete[rows]
                part = {**self.features, "values": values[rows]}
                some = replace(how, complete=taken)
                writer.write(transform(encoding, part, self.arg, some))
        return writer.finish()


class GivenRows(RowSource):
    """Rows of an array, encoded on access and never staged.

    Args:
        encoding: The encoding to apply.
        features: The array, as R passes it.
        arg: Name of the user's argument, for error messages.
        notes: Collects what is surprising about the rows gathered, or None.

    Raises:
        DataError: if the row shape differs from training.
    """

    def __init__(
        self, encoding: Encoding, features: Mapping[str, Any], arg: str, notes: Notes | None = None
    ) -> None:
        """Checks the shape; encodes no rows."""
        self._x = check_features(features["values"], arg)
        encoding = check_form(encoding, ArrayEncoding, self._x.shape[1:], arg, len(self._x))
        super().__init__((len(self._x), *encoding.staged_shape))
        self._encoding = encoding
        self._arg = arg
        self._how = EncodeOptions(notes=notes)

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows, encoded."""
        try:
            return self._encode(self._x[rows])
        except DataError:
            self._encode(self._x)  # raises the error with the counts over all rows
            raise

    def _encode(self, x: np.ndarray) -> np.ndarray:
        return transform(self._encoding, {"kind": "array", "values": x}, self._arg, self._how)


# Sparse matrices ----------------------------------------------------------------------------------

# R's `dgCMatrix` is stored by columns (CSC): column pointers `p`, row numbers `i`, values `x`. It
# is stored by rows (CSR) here, and expanded to float32 one block at a time, without scipy.


@dataclass(frozen=True)
class SparseMatrix(Features):
    """A matrix in column order (CSC), as R passes it.

    Args:
        shape: Number of rows and columns.
        starts: Offset of each column's first value, and the total number of values.
        indices: Row number of each value.
        values: The stored values.
        names: Column names, for error messages.
        arg: Name of the user's argument, for error messages.
    """

    shape: tuple[int, int]
    starts: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    names: tuple[str, ...] = ()
    arg: str = "x"

    refuses = "a sparse matrix"

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.shape[1:]

    @property
    def columns(self) -> np.ndarray:
        """Column number of each value."""
        return np.repeat(np.arange(self.shape[1], dtype=np.int32), np.diff(self.starts))

    def learn(self, how: Learning) -> ArrayEncoding:
        """Learns the encoding; it scales by deviations and subtracts no mean.

        Statistics come from the rows where `keep` is true. Subtracting a mean would make every zero
        a stored value.
        """
        if not how.spec.scale:
            return ArrayEncoding(self.row_shape, names=self.names)
        scale = how.scales(self._deviations(how.keep))
        return ArrayEncoding(self.row_shape, scale=scale, names=self.names)

    def _deviations(self, keep: np.ndarray) -> np.ndarray:
        kept, width = keep[self.indices], self.shape[1]
        columns = self.columns[kept]
        values = self.values[kept]
        rows = int(keep.sum())
        mean = np.bincount(columns, values, width) / rows
        stored = np.bincount(columns, minlength=width)
        squares = np.bincount(columns, (values - mean[columns]) ** 2, width)
        deviation = np.sqrt((squares + (rows - stored) * mean**2) / rows)
        # A number that is not subtracted teaches a weight, even if all rows have it; 0 does not.
        return np.where((deviation > 0) | (mean == 0), deviation, 1.0)

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> SparseRows:
        """Returns the encoded rows.

        Raises:
            DataError: if the number of columns differs from training, or values are too large for
                float32.
        """
        encoding = check_array(encoding, self.row_shape, self.arg)
        center = np.zeros(self.shape[1]) if encoding.center is None else np.array(encoding.center)
        scale = np.ones(self.shape[1]) if encoding.scale is None else np.array(encoding.scale)
        columns = self.columns
        if how.notes is not None:
            self._look_at(columns, not encoding.keeps_values, how.notes)
            self._look_unlearned(center, scale, how.notes)
        with np.errstate(over="ignore"):
            values = standardise(self.values, center[columns], scale[columns]).astype(np.float32)
        self._check_values(values, columns, large=1)
        background = standardise(np.zeros(self.shape[1]), center, scale).astype(np.float32)
        return SparseRows(self.shape, self.indices, columns, values, background)

    def _look_at(self, columns: np.ndarray, scaled: bool, notes: Notes) -> None:
        """Notes whole numbers that lose digits; most matrices have none."""
        inexact = find_inexact(self.values, scaled)
        for column in () if inexact is None else np.unique(columns[inexact]):
            name = column_name(self.names, int(column))
            notes.look(self.values[columns == column], (name,), self.arg, scaled)

    def _look_unlearned(self, center: np.ndarray, scale: np.ndarray, notes: Notes) -> None:
        """Notes columns that were the same in all training rows, and are not here."""
        columns = self.columns
        stored = columns[find_other(self.values, center[columns])]
        counts = np.bincount(stored, minlength=self.shape[1])
        other = (counts > 0) | ((np.diff(self.starts) < self.rows) & (center != 0))
        found = np.flatnonzero(other & (scale == 0))
        names = [column_name(self.names, int(place)) for place in found]
        notes.add_unlearned("zero", names, self.arg)

    def order_as(self, encoding: Encoding) -> SparseMatrix:
        """Returns the same rows with columns in the encoding's order, if columns have names."""
        order = order_names(encoding.names, self.names, self.arg)
        if order is None:
            return self
        counts = np.diff(self.starts)[list(order)]
        taken = [np.arange(self.starts[column], self.starts[column + 1]) for column in order]
        places = np.concatenate(taken)
        return replace(
            self,
            shape=(self.shape[0], len(order)),
            starts=np.concatenate([[0], np.cumsum(counts)]),
            indices=self.indices[places],
            values=self.values[places],
            names=encoding.names,
        )

    def check(self) -> SparseMatrix:
        """Checks the matrix and returns it.

        Raises:
            DataError: if its slots do not fit together, or a value is missing or infinite.
        """
        rows, columns = self.shape
        if columns == 0:
            raise DataError(f"`{self.arg}` has no columns.", arg=self.arg)
        ends = len(self.starts) == columns + 1 and self.starts[0] == 0
        ends = ends and self.starts[-1] == len(self.indices) == len(self.values)
        inside = ends and (len(self.indices) == 0 or 0 <= self.indices.min() <= self.indices.max())
        inside = inside and self.indices.max(initial=-1) < rows
        if not inside or (np.diff(self.starts) < 0).any():
            raise DataError(
                f"`{self.arg}` is not a valid sparse matrix: its slots do not fit together.",
                hint="Make it anew with Matrix::sparseMatrix().",
                arg=self.arg,
            )
        self._check_values(self.values, None)
        return self

    def _check_values(self, values: np.ndarray, columns: np.ndarray | None, large: int = 0) -> None:
        bad = ~np.isfinite(values)
        if not bad.any():
            return
        columns = self.columns if columns is None else columns
        column = int(columns[bad].min())
        refused = values[bad & (columns == column)]
        name = column_name(self.names, column)
        counts = {"missing": int(np.isnan(refused).sum()), "infinite": int(np.isinf(refused).sum())}
        hint = "Remove those rows, or correct them, first."
        raise column_error(name, self.arg, hint, **({"large": len(refused)} if large else counts))


class SparseRows(RowSource):
    """Rows of a sparse matrix, stored by rows (CSR) and expanded on access.

    Args:
        shape: Number of rows and columns.
        indices: Row number of each value, in column order.
        columns: Column number of each value.
        values: The values.
        background: Value of each column where nothing is stored.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        indices: np.ndarray,
        columns: np.ndarray,
        values: np.ndarray,
        background: np.ndarray,
    ) -> None:
        """Sorts the values into row order."""
        order = np.argsort(indices, kind="stable")  # within a row, columns stay in order
        self._starts = np.zeros(shape[0] + 1, dtype=np.int64)
        np.cumsum(np.bincount(indices, minlength=shape[0]), out=self._starts[1:])
        self._columns, self._values = columns[order], values[order]
        self._background = background
        size, cells = mib(self.resident_bytes, 1), max(1, shape[0] * shape[1])
        share = f"{100 * len(values) / cells:.2g} % of the values are stored"
        super().__init__(shape, np.float32, f"expanded a block at a time from {size}, {share}")

    @property
    def resident_bytes(self) -> int:
        """Size of the stored values and their indices in bytes."""
        return self._starts.nbytes + self._columns.nbytes + self._values.nbytes

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows, dense."""
        numbers = row_numbers(rows, len(self))
        first = self._starts[numbers]
        counts = self._starts[numbers + 1] - first
        before = np.cumsum(counts) - counts
        taken = np.repeat(first - before, counts) + np.arange(counts.sum())
        columns, values = self._columns[taken], self._values[taken]
        end_stage("gather")
        out = aligned_empty((len(numbers), self.shape[1]))
        out[...] = self._background
        out[np.repeat(np.arange(len(numbers)), counts), columns] = values
        end_stage("decode")
        return out


def open_sparse(features: Mapping[str, Any], arg: str) -> SparseMatrix:
    """Builds a checked matrix from R's slots `{dim, p, i, x, names}` without a copy."""
    rows, columns = (int(count) for count in features["dim"])
    return SparseMatrix(
        shape=(rows, columns),
        starts=np.asarray(features["p"]).reshape(-1),
        indices=np.asarray(features["i"]).reshape(-1),
        values=np.asarray(features["x"]).reshape(-1),
        names=tuple(features.get("names") or ()),
        arg=arg,
    ).check()


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
