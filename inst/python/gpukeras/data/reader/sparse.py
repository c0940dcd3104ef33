"""Sparse matrices: stored by rows (CSR), expanded to float32 one block at a time.

R's `dgCMatrix` is stored by columns (CSC): column pointers `p`, row numbers `i` and values `x`.
This module does not depend on scipy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import mib
from gpukeras.data.arrays import ALL_ROWS, EncodeOptions, column_error, order_names, standardise
from gpukeras.data.reader.rows import Features, Rows, RowSource, row_numbers
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding, check_array
from gpukeras.data.stage_timer import end_stage


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
        scale = tuple(self._deviations(how.keep))
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
        return np.where(deviation > 0, deviation, 1.0)

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
        with np.errstate(over="ignore"):
            values = standardise(self.values, center[columns], scale[columns]).astype(np.float32)
        self._check_values(values, columns, large=1)
        background = standardise(np.zeros(self.shape[1]), center, scale).astype(np.float32)
        return SparseRows(self.shape, by_rows(self.rows, self.indices, columns, values), background)

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
        name = self.names[column] if column < len(self.names) else str(column + 1)
        counts = {"missing": int(np.isnan(refused).sum()), "infinite": int(np.isinf(refused).sum())}
        hint = "Remove those rows, or correct them, first."
        raise column_error(name, self.arg, hint, **({"large": len(refused)} if large else counts))


@dataclass(frozen=True)
class ByRows:
    """Values in row order (CSR): each row's first offset, and the column of each value."""

    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @property
    def nbytes(self) -> int:
        """Size of the three arrays in bytes."""
        return self.starts.nbytes + self.columns.nbytes + self.values.nbytes


class SparseRows(RowSource):
    """Rows of a sparse matrix, expanded on access.

    Args:
        shape: Number of rows and columns.
        stored: The stored values in row order.
        background: Value of each column where nothing is stored.
    """

    def __init__(self, shape: tuple[int, int], stored: ByRows, background: np.ndarray) -> None:
        """Stores the parts."""
        size, cells = mib(stored.nbytes, 1), max(1, shape[0] * shape[1])
        share = f"{100 * len(stored.values) / cells:.2g} % of the values are stored"
        super().__init__(shape, np.float32, f"expanded a block at a time from {size}, {share}")
        self.stored = stored
        self.background = background

    @property
    def resident_bytes(self) -> int:
        """Size of the stored values and their indices in bytes."""
        return self.stored.nbytes

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows, dense."""
        numbers, stored = row_numbers(rows, len(self)), self.stored
        first = stored.starts[numbers]
        counts = stored.starts[numbers + 1] - first
        before = np.cumsum(counts) - counts
        taken = np.repeat(first - before, counts) + np.arange(counts.sum())
        columns, values = stored.columns[taken], stored.values[taken]
        end_stage("gather")
        out = aligned_empty((len(numbers), self.shape[1]))
        out[...] = self.background
        out[np.repeat(np.arange(len(numbers)), counts), columns] = values
        end_stage("decode")
        return out


def by_rows(rows: int, indices: np.ndarray, columns: np.ndarray, values: np.ndarray) -> ByRows:
    """Sorts values in column order into row order.

    Args:
        rows: Number of rows.
        indices: Row number of each value.
        columns: Column number of each value.
        values: The values.
    """
    order = np.argsort(indices, kind="stable")  # within a row, columns stay in order
    starts = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(indices, minlength=rows), out=starts[1:])
    return ByRows(starts, columns[order], values[order])


def open_sparse(features: Mapping[str, Any], arg: str) -> SparseMatrix:
    """Builds a checked matrix from R's slots `{dim, p, i, x, names}` without a copy."""
    rows, columns = (int(count) for count in features["dim"])
    p, i, x = (np.asarray(features[slot]).reshape(-1) for slot in ("p", "i", "x"))
    names = tuple(features.get("names") or ())
    return SparseMatrix((rows, columns), p, i, x, names, arg).check()
