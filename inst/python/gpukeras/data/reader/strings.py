"""Strings that reach the model as strings: for models with layers such as TextVectorization.

    character matrix or columns --encode()--> rows of codes, and the strings they stand for

A row stays one row of numbers, so that all data movement handles a single array. `unpacking`
replaces the codes by the strings in host memory, the only place where TensorFlow stores strings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.backend.features import require_feature
from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import count_of
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import EXACT_FLOAT32, Notes, column_fault
from gpukeras.data.reader.inputs import InputsFeatures
from gpukeras.data.reader.rows import Features, MemoryRows
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.recipe import (
    Encoding,
    InputsEncoding,
    TextEncoding,
    check_form,
    check_names,
    lacking_column,
)

NUMBERS = ("numeric", "integer", "logical")
TEXTS = ("character", "factor")


class StringFeatures(Features):
    """Strings in memory: `{kind: "strings", values, levels, names}` with R's codes as `values`."""

    refuses = "text"

    def __init__(self, features: Mapping[str, Any], arg: str) -> None:
        """Stores the features."""
        require_feature("texts")
        self.features, self.arg = features, arg

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

    def encode(
        self, encoding: Encoding, complete: np.ndarray | None = None, notes: Notes | None = None
    ) -> MemoryRows:
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
        out = aligned_empty(codes.shape)
        out[...] = codes
        kept = MemoryRows(out)
        kept.texts = {"": ["", *levels]}
        return kept


def keeps_text(spec: DatasetSpec | None, encoding: Encoding | None) -> bool:
    """Whether a data frame's columns reach the model unencoded, strings as strings."""
    if encoding is not None:
        return isinstance(encoding, (TextEncoding, InputsEncoding))
    return spec is not None and spec.encode == "none"


def open_kept(
    columns: Sequence[Mapping[str, Any]],
    arg: str,
    encoding: Encoding | None,
    open_part: Callable[..., Features],
) -> StringFeatures | InputsFeatures:
    """Opens unencoded columns: one input if all are strings, else one input per column.

    Args:
        columns: Columns of a data frame, see `columns`.
        arg: Name of the user's argument, for error messages.
        encoding: The learned encoding, or None to use all columns.
        open_part: Opens the features of one input: `registry.open_features()`.

    Raises:
        DataError: for a column that is missing, or holds neither strings nor numbers.
    """
    check_names([column["name"] for column in columns], arg)
    columns = _choose(columns, arg, encoding)
    single = isinstance(encoding, TextEncoding)
    if single or (encoding is None and all(c["kind"] in TEXTS for c in columns)):
        return StringFeatures(_join_texts(columns, arg), arg)
    inputs = [
        {"name": column["name"], "features": _as_input(column, arg), "scale": False}
        for column in columns
    ]
    return InputsFeatures({"kind": "inputs", "inputs": inputs}, arg, open_part, None, encoding)


def _choose(
    columns: Sequence[Mapping[str, Any]], arg: str, encoding: Encoding | None
) -> Sequence[Mapping[str, Any]]:
    """Selects the columns of an encoding, in its order."""
    names = () if encoding is None else encoding.names or [part.name for part in encoding.parts]
    by_name = {column["name"]: column for column in columns}
    for name in names:
        if name not in by_name:
            raise lacking_column(name, arg)
    return [by_name[name] for name in names] or columns


def _as_input(column: Mapping[str, Any], arg: str) -> dict[str, Any]:
    if column["kind"] in TEXTS:
        return _join_texts([column], f"{arg}${column['name']}")
    if column["kind"] not in NUMBERS:
        raise _refuse(column, arg, "numbers or texts")
    return {"kind": "array", "values": np.asarray(column["values"]).reshape(-1, 1), "names": []}


def _join_texts(columns: Sequence[Mapping[str, Any]], arg: str) -> dict[str, Any]:
    """Joins string columns side by side, with shared levels."""
    levels: dict[str, int] = {}
    parts = []
    for column in columns:
        if column["kind"] not in TEXTS:
            raise _refuse(column, arg, "texts, as in training")
        own = [levels.setdefault(level, len(levels) + 1) for level in column["levels"]]
        codes = np.asarray(column["values"]).reshape(-1).astype(np.int64)
        parts.append(np.array([0, *own])[codes])
    names = [column["name"] for column in columns]
    values = np.stack(parts, axis=1)
    return {"kind": "strings", "values": values, "levels": list(levels), "names": names}


def _refuse(column: Mapping[str, Any], arg: str, expected: str) -> DataError:
    problem = f"must hold {expected}, not {column['kind']}."
    hint = 'With `encode = "none"` columns are given to the model as they are.'
    return column_fault(column["name"], arg, problem, hint)
