"""Scalars of TFRecord files as table columns, in Arrow record batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from gpukeras.data.files.arrow import pa
from gpukeras.data.files.errors import Skipped
from gpukeras.data.reader.table.features import TableFeatures, choose_columns
from gpukeras.data.reader.tfrecord.reader import Arrays, RecordFiles
from gpukeras.data.reader.tfrecord.schema import (
    Description,
    RecordField,
    build_parser,
    check_text,
    explain_fault,
)

TYPES = {"float32": pa.float32(), "int64": pa.int64()}


class RecordReader:
    """Reader of scalar features, with the interface of `table.base.TableReader`.

    Args:
        files: The files.
        description: Description of the scalar features.
        arg: Name of the user's argument, for error messages.
        note: Sentence about what was inferred, or "".
        only: Names of the columns to read, or None for all.
    """

    format = "tfrecord"
    known_rows = None

    def __init__(
        self,
        files: RecordFiles,
        description: Description,
        arg: str,
        note: str,
        only: Collection[str] | None = None,
    ) -> None:
        """Stores the arguments; reads no data."""
        self.files, self.arg = files.paths, arg
        self.notes = (note,) if note else ()
        self.fields = {
            name: field
            for name, field in description.fields.items()
            if only is None or name in only
        }
        self.names = tuple(self.fields)
        self.schema = pa.schema(
            pa.field(name, TYPES.get(field.dtype, pa.string()))
            for name, field in self.fields.items()
        )
        self._files, self._description, self._note = files, description, note

    @property
    def skipped(self) -> Skipped:
        """Rows and files that the latest pass has left out so far."""
        return self._files.skipped

    def only(self, names: Collection[str]) -> RecordReader:
        """Returns a reader of fewer columns."""
        return RecordReader(self._files, self._description, self.arg, self._note, names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all records in batches; each call reads the files again."""
        parse, size = build_parser(self.fields), self._description.record_bytes
        for arrays in self._files.read(parse, explain_fault, size):
            columns = [self._column(name, arrays) for name in self.names]
            yield pa.record_batch(columns, schema=self.schema)

    def _column(self, name: str, arrays: Arrays) -> pa.Array:
        values = arrays[name]
        if values.dtype == object:
            return pa.array(check_text(values, name, self.arg), pa.string())
        if self.fields[name].dtype == "factor":
            return pa.array(values).cast(pa.string())
        return pa.array(values)


class RecordTable(TableFeatures):
    """Features from scalars, one per column."""

    def _open(self, features: Mapping[str, Any]) -> None:
        reader: RecordReader = features["reader"]
        arg, encoding = self.arg, self._encoding
        self.columns = choose_columns(reader.names, self._beside, None, encoding, arg)
        self._records = reader.only({*self.columns, *self._beside})
        self.reader = self._records  # has all that is asked of a reader

    def _take_label(self, name: str) -> Mapping[str, Any]:
        """Returns the label column; levels of integer classes are in numeric order."""
        labels, field = super()._take_label(name), self._records.fields[name]
        return _order_levels(labels, field) if field.dtype == "factor" else labels


def _order_levels(labels: Mapping[str, Any], field: RecordField) -> dict[str, Any]:
    """Sorts a factor's integer levels as numbers instead of strings."""
    if field.stored != "int64":
        return {**labels, "kind": "factor"}
    levels = sorted(labels["levels"], key=int)
    places = {level: place for place, level in enumerate(levels, start=1)}
    codes = np.array([0, *(places[level] for level in labels["levels"])], np.int32)
    values = codes[np.asarray(labels["values"])]
    return {**labels, "kind": "factor", "values": values, "levels": levels}
