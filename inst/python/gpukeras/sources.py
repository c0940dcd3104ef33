"""Features as a user gave them, of every kind: how many rows, what is learned, how they are read.

A kind of features is an object with `rows`, `row_shape`, `learn(keep, spec)` and `encode(recipe)`;
what it encodes to is a `RowSource`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from . import machine
from .arrays import aligned_empty, check_features, row_blocks
from .errors import DataError
from .npy import open_npy, read_npy_labels
from .recipes import Recipe, bake, count_rows, learn_array, learn_columns
from .rows import MemoryRows, RowSource
from .sparse import open_sparse
from .specs import DatasetSpec

# Kinds whose rows are never all in memory, so that none can be left out or filled in.
STREAMED = {"npy": "a file", "sparse": "a sparse matrix"}


class Features(Protocol):
    """Features as given."""

    @property
    def rows(self) -> int:
        """Rows."""

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of one row, or None where only a recipe tells it."""

    def learn(
        self, keep: np.ndarray, spec: DatasetSpec, complete: np.ndarray | None = None
    ) -> Recipe:
        """The recipe; statistics from the rows where `keep` is true, of those that are taken."""

    def encode(self, recipe: Recipe, complete: np.ndarray | None = None) -> RowSource:
        """The rows as a recipe encodes them; `complete` marks those taken, None takes all."""


@dataclass(frozen=True)
class ArrayFeatures:
    """A matrix or array in memory."""

    features: Mapping[str, Any]
    arg: str

    @property
    def rows(self) -> int:
        """Rows of the array."""
        return count_rows(self.features, self.arg)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row; a vector is one column."""
        return check_features(self.features["values"], self.arg).shape[1:]

    def learn(
        self, keep: np.ndarray, spec: DatasetSpec, complete: np.ndarray | None = None
    ) -> Recipe:
        """The recipe of the array."""
        x = check_features(self.features["values"], self.arg)
        among = keep if complete is None else _spread(keep, complete)
        names = self.features.get("names") or ()
        return learn_array(x, among, spec.scale, names, spec.na, self.arg)

    def encode(self, recipe: Recipe, complete: np.ndarray | None = None) -> RowSource:
        """The staged array."""
        return MemoryRows(bake(recipe, self.features, self.arg, complete))


@dataclass(frozen=True)
class ColumnFeatures:
    """The columns of a data frame."""

    features: Mapping[str, Any]
    arg: str
    row_shape: None = None

    @property
    def rows(self) -> int:
        """Rows of the first column."""
        return count_rows(self.features, self.arg)

    def learn(
        self, keep: np.ndarray, spec: DatasetSpec, complete: np.ndarray | None = None
    ) -> Recipe:
        """The recipe of the columns."""
        columns = self.features["columns"]
        return learn_columns(columns, keep, spec.scale, spec.encode, self.arg, spec.na, complete)

    def encode(self, recipe: Recipe, complete: np.ndarray | None = None) -> RowSource:
        """The staged columns."""
        return MemoryRows(bake(recipe, self.features, self.arg, complete))


def _spread(keep: np.ndarray, complete: np.ndarray) -> np.ndarray:
    """Marks of the rows taken as marks of all rows."""
    among = np.zeros(len(complete), dtype=bool)
    among[complete] = keep
    return among


def open_features(features: Mapping[str, Any], arg: str) -> Features:
    """Features as they came from R.

    Args:
        features: `{kind: "array", values, names}`, `{kind: "columns", columns}`,
            `{kind: "npy", path}` or `{kind: "sparse", dim, p, i, x, names}`.
        arg: The user's name for them.
    """
    if features["kind"] == "npy":
        return open_npy(features["path"], arg)
    if features["kind"] == "sparse":
        return open_sparse(features, arg)
    of_kind = ArrayFeatures if features["kind"] == "array" else ColumnFeatures
    return of_kind(features, arg)


def open_labels(labels: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Labels as `labels.learn_label()` takes them, also from a file."""
    return read_npy_labels(labels) if labels and labels["kind"] == "npy" else labels


def place_rows(source: RowSource, cache: str, arg: str) -> RowSource:
    """The source itself, or where the user asked for it, all of its rows in memory.

    Raises:
        DataError: if they do not fit.
    """
    if cache == "auto" or not source.streamed:
        return source
    needed, free = len(source) * source.row_bytes, machine.read_free_memory()
    if free is not None and needed > free:
        raise DataError(
            f"`{arg}` takes {needed / 2**20:,.0f} MiB as a whole, "
            f"more than the {free / 2**20:,.0f} MiB free.",
            hint='Use `cache = "auto"`, which reads a block at a time.',
            arg=arg,
        )
    array = aligned_empty(source.shape, source.dtype)
    for rows in row_blocks(len(source), source.row_bytes):
        array[rows] = source.gather(rows)
    return MemoryRows(array)
