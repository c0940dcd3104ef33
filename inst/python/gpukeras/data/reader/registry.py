"""Opens features and labels of every kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import Notes, check_features, order_columns
from gpukeras.data.reader.image.paths import list_column
from gpukeras.data.reader.image.source import open_images
from gpukeras.data.reader.inputs import InputsFeatures
from gpukeras.data.reader.npy import DiskRows, keep_rows, open_npy_anywhere, read_npy_labels
from gpukeras.data.reader.rows import Features, MemoryRows, Rows, RowSource
from gpukeras.data.reader.sparse import open_sparse
from gpukeras.data.reader.strings import StringFeatures, keeps_text, open_kept
from gpukeras.data.reader.windows import WindowFeatures
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.encoding import count_rows, learn_array, learn_columns, transform
from gpukeras.data.recipe.imputation import count_missing
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding, check_form
from gpukeras.data.recipe.targets import MASKS, SEVERAL
from gpukeras.data.recipe.text_vectorization import TextSpec

Given = Mapping[str, Any]


@dataclass(frozen=True)
class InMemory(Features):
    """Features that R holds in memory.

    Args:
        features: The features as R passes them.
        arg: Name of the user's argument, for error messages.
        text: Which columns are text, and how they are encoded.
    """

    features: Given
    arg: str
    text: TextSpec | None = None

    @property
    def rows(self) -> int:
        """Number of rows."""
        return count_rows(self.features, self.arg)

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the mask of complete rows, and the number of rows that lack each column."""
        return count_missing(self.features, self.rows, known, self.arg)

    def encode(
        self, encoding: Encoding, complete: np.ndarray | None = None, notes: Notes | None = None
    ) -> RowSource:
        """Returns the staged rows."""
        return MemoryRows(transform(encoding, self.features, self.arg, complete, notes))


class ArrayFeatures(InMemory):
    """A matrix or array in memory."""

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
        return replace(self, features=order_columns(self.features, encoding.names, self.arg))

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

    def __init__(self, encoding: Encoding, features: Given, arg: str) -> None:
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


class ColumnFeatures(InMemory):
    """The columns of a data frame."""

    row_shape = None

    def texts(self) -> Collection[str]:
        """Names of the text columns."""
        columns = self.features["columns"]
        return [column["name"] for column in columns if column["kind"] == "character"]

    def learn(self, how: Learning) -> Encoding:
        """Learns the encoding of the columns."""
        how = replace(how, arg=self.arg, text=self.text)
        return learn_columns(self.features["columns"], how)


def open_features(
    features: Given,
    arg: str,
    spec: DatasetSpec | None = None,
    encoding: Encoding | None = None,
    text: Given | None = None,
) -> Features:
    """Opens features in the form that R passes them.

    Args:
        features: `{kind: "array", values, names}`, `{kind: "columns", columns}`,
            `{kind: "npy", path}`, `{kind: "sparse", dim, p, i, x, names}`, or of kind "table" (see
            `table.source`), "images" (`image.source`), "records"
            (`tfrecord.source`), "inputs" (`multi_input`) or "windows" (`windows`).
        arg: Name of the user's argument, for error messages.
        spec: The dataset options for reading files.
        encoding: The learned encoding, if it is known.
        text: Which columns are text, and how they are encoded.
    """
    how = TextSpec.from_dict(text) if isinstance(text, Mapping) else text
    opened = OPENERS[features["kind"]](features, arg, spec, encoding, how)
    return opened if encoding is None else opened.order_as(encoding)


def _open_table(*arguments: Any) -> Features:
    # Imports pyarrow, which takes 0.3 s.
    from gpukeras.data.reader.table.features import TableFeatures

    return TableFeatures(*arguments)


def _open_records(*arguments: Any) -> Features:
    from gpukeras.data.reader.tfrecord.source import open_records  # imports pyarrow, for scalars

    return open_records(*arguments)


def _open_columns(
    features: Given,
    arg: str,
    spec: DatasetSpec | None,
    encoding: Encoding | None,
    text: TextSpec | None,
) -> Features:
    if keeps_text(spec, encoding):
        return open_kept(features["columns"], arg, encoding, open_features)
    return ColumnFeatures(features, arg, text)


OPENERS: dict[str, Callable[..., Features]] = {
    "array": lambda features, arg, *_: ArrayFeatures(features, arg),
    "columns": _open_columns,
    "strings": lambda features, arg, *_: StringFeatures(features, arg),
    "npy": lambda features, arg, *_: open_npy_anywhere(features["path"], arg),
    "sparse": lambda features, arg, *_: open_sparse(features, arg),
    "table": _open_table,
    "records": _open_records,
    "images": lambda features, arg, spec, encoding, _: open_images(features, arg, spec, encoding),
    "inputs": lambda features, arg, spec, encoding, _: InputsFeatures(
        features, arg, open_features, spec, encoding
    ),
    "windows": lambda features, arg, _, encoding, text: WindowFeatures(
        features, arg, encoding, text
    ),
}


def open_labels(labels: Given | None) -> Given | None:
    """Returns labels in the form of `multi_output.learn_labels()`; reads those in files.

    Masks are only listed: `masks.read_masks()` reads them with the size of their images.
    """
    if not labels or labels["kind"] not in ("npy", MASKS, SEVERAL):
        return labels
    if labels["kind"] == MASKS:
        return {**labels, "values": list_column(labels["values"], labels["arg"], labels["arg"])}
    if labels["kind"] == "npy":
        return read_npy_labels(open_npy_anywhere(labels["path"], "y"))
    outputs = [{**part, "labels": open_labels(part["labels"])} for part in labels["outputs"]]
    return {**labels, "outputs": outputs}


def place_rows(source: RowSource, cache: str, arg: str) -> RowSource:
    """Moves rows to the requested storage: to memory or to a scratch file.

    Rows that are already there, or have no requested storage, stay as they are.

    Args:
        source: The rows.
        cache: The option `cache` of the dataset.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if they do not fit.
    """
    kept = isinstance(source, DiskRows)
    if cache == "disk" and not kept:
        return _keep_rows(source, "disk", arg)
    if cache in ("host", "device") and source.streamed and not kept:
        return _keep_rows(source, "memory", arg)
    return source


def _keep_rows(source: RowSource, keep: str, arg: str) -> RowSource:
    kept = keep_rows(
        source.blocks(), source.shape[1:], source.dtype, keep=keep, arg=arg, rows=len(source)
    )
    kept.texts = source.texts
    return kept
