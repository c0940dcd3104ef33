"""Scalars of TFRecord files as table columns, in Arrow record batches."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.data.files.arrow import pa
from gpukeras.data.reader.rows import Reader
from gpukeras.data.reader.table.features import TableFeatures
from gpukeras.data.reader.table.schema import Wanted
from gpukeras.data.reader.tfrecord.schema import (
    Arrays,
    Description,
    RecordField,
    RecordFiles,
    build_parser,
    check_text,
    explain_fault,
)

TYPES = {"float32": pa.float32(), "int64": pa.int64()}


class RecordReader(Reader):
    """Reader of scalar features.

    Args:
        files: The files.
        description: Description of the scalar features.
        arg: Name of the user's argument, for error messages.
        note: Sentence about what was inferred, or "".
    """

    def __init__(self, files: RecordFiles, description: Description, arg: str, note: str) -> None:
        """Stores the arguments; reads no data."""
        self._records, self._description = files, description
        self.fields = dict(description.fields)
        super().__init__("tfrecord", self._make_schema(), arg, (note,) if note else ())
        self.files = files.paths

    def select(self, names: Collection[str]) -> None:
        """Restricts the reader to some columns."""
        self.fields = {name: field for name, field in self.fields.items() if name in names}
        self.schema = self._make_schema()

    def _make_schema(self) -> pa.Schema:
        types = {name: TYPES.get(field.dtype, pa.string()) for name, field in self.fields.items()}
        return pa.schema(list(types.items()))

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yields all records in batches; each call reads the files again."""
        parse, size = build_parser(self.fields), self._description.record_bytes
        for arrays in self._records.read(parse, explain_fault, size):
            self.skipped = self._records.skipped
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

    def _open(self, features: Mapping[str, Any], wanted: Wanted) -> Reader:
        self._records: RecordReader = features["reader"]
        self._records.select(replace(wanted, columns=None).choose(self._records.names, self.arg))
        return self._records

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
