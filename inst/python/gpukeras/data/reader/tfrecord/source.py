"""Features of TFRecord files: one array or image per record, or scalars as table columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.progress import count_pass
from gpukeras.data.arrays import ALL_ROWS, BadValues, EncodeOptions, Notes, check_some, moments
from gpukeras.data.reader.image.source import ImageSpec, choose_form
from gpukeras.data.reader.rows import FeatureRequest, Features, RowSource
from gpukeras.data.reader.storage import STORAGES, RowsWriter, keep_rows
from gpukeras.data.reader.tfrecord.schema import (
    Description,
    RecordField,
    RecordFiles,
    build_parser,
    check_text,
    explain_fault,
    open_files,
    read_description,
)
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.encoding import stage_float32
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    Encoding,
    ImageEncoding,
    check_array,
    check_form,
)

IMAGE_OPTIONS = ("image_size", "color")


class RecordArray(Features):
    """One feature of fixed shape, with the labels and weights of the same records.

    Args:
        asked: The features as they are asked for.
        files: The files.
        description: The fields to read.
        image: Options for decoding images.
        note: Sentence about what was inferred, or "".
    """

    refuses = "a TFRecord file of arrays"

    def __init__(
        self,
        asked: FeatureRequest,
        files: RecordFiles,
        description: Description,
        image: ImageSpec,
        note: str,
    ) -> None:
        """Stores the arguments; reads no data."""
        self.arg, encoding = asked.arg, asked.encoding
        self._files, self._description = files, description
        self._keep = STORAGES.get(asked.spec.cache, "auto")
        self._name = description.array or ""
        self._field = description.fields[self._name]
        self._note, self._seen = note, Notes()
        self._images = self._field.dtype == "image"
        if self._images:
            self._form = image.form
            if isinstance(encoding, ImageEncoding):
                self._form = choose_form(image, encoding)
        self._source: RowSource | None = None
        self._rows: int | None = None  # known once the files were read
        self._beside: dict[str, list[np.ndarray]] = {}

    @property
    def rows(self) -> int:
        """Number of records in all files."""
        if self._rows is None:
            self._read()
        return self._rows or 0

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self._form.shape if self._images else self._field.shape

    @property
    def skipped(self) -> str:  # type: ignore[override] # known when the files were read
        """Description of what `on_error = "skip"` left out, or ""."""
        return self._files.skipped.explain("record") if self.rows else ""

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override] # complete only then
        """Sentences about what was inferred, and about numbers that float32 rounds."""
        return tuple(note for note in (self._note, *self._seen.sentences) if note)

    def labels(self) -> dict[str, Any] | None:
        """Returns the labels, or None."""
        self._read()
        if not self._beside.get("y"):
            return None
        name = str(self._description.label)
        return _to_labels(self._beside.pop("y"), self._description.fields[name], name, self.arg)

    def weights(self) -> np.ndarray | None:
        """Returns the weights, or None."""
        self._read()
        parts = self._beside.pop("w", None)
        return None if parts is None else np.concatenate(parts).reshape(-1).astype(np.float64)

    def learn(self, how: Learning) -> Encoding:
        """Learns the encoding; there is nothing to learn of images."""
        shape = self.row_shape
        if self._images:
            return self._form.learn(how.spec.scale)
        if not how.spec.scale:
            return ArrayEncoding(shape)
        center, deviation = moments(self._read().blocks(), how.keep)
        return ArrayEncoding(shape, how.scales(deviation), center=tuple(center))

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> RowSource:
        """Returns the rows: unchanged, or standardised."""
        if self._images:
            check_form(encoding, ImageEncoding, self.row_shape, self.arg)
            return self._read()
        encoding = check_array(encoding, self.row_shape, self.arg)
        source = self._read()
        if encoding.keeps_values:
            return source
        told = count_pass(source.blocks(), "encoding", len(source), len)
        seen = EncodeOptions(notes=how.notes)
        blocks = (stage_float32(block, encoding, self.arg, seen) for block in told)
        self._source = None  # frees memory; the files can be read again
        return keep_rows(blocks, source.shape[1:], keep=self._keep, arg=self.arg, rows=len(source))

    def _read(self) -> RowSource:
        """Returns all rows, read once: float32, or uint8 for images."""
        if self._source is not None:
            return self._source
        dtype = np.uint8 if self._images else np.float32
        self._beside = {kind: [] for kind, _ in self._names_beside()}
        with RowsWriter(self.row_shape, dtype, self._keep, self.arg) as writer:
            self._write(writer)
            self._source = writer.finish()
        self._rows = len(self._source)
        check_some(self._rows, self.arg)
        return self._source

    def _write(self, writer: RowsWriter) -> None:
        shape = self._form.shape if self._images else None
        parse = build_parser(self._description.fields, shape)
        self._seen, bad = Notes(), BadValues(limit=np.inf)
        records = self._files.read(parse, explain_fault, self._description.record_bytes)
        for arrays in count_pass(records, "reading", None, lambda read: len(read[self._name])):
            block = arrays[self._name]
            if self._field.dtype == "int64":
                self._seen.look(block.reshape(len(block), -1), (), self.arg, scaled=False)
            if block.dtype.kind == "f" and bad.add(block):
                raise DataError(
                    f"Feature `{self._name}` of `{self.arg}` has missing or infinite values, "
                    f"the first in record {bad.row:,}.",
                    hint="Remove or correct those records first.",
                    arg=self.arg,
                    column=self._name,
                    row=bad.row,
                )
            writer.write(block)
            for kind, name in self._names_beside():
                self._beside[kind].append(arrays[name])

    def _names_beside(self) -> list[tuple[str, str]]:
        """Returns the names of the labels (key "y") and the weights (key "w")."""
        names = {"y": self._description.label, "w": self._description.weights}
        return [(kind, name) for kind, name in names.items() if name]


def _to_labels(
    parts: Sequence[np.ndarray], field: RecordField, name: str, arg: str
) -> dict[str, Any]:
    """Returns labels in the form that R passes."""
    values = np.concatenate(parts)
    if field.dtype in ("factor", "string"):
        kind = "factor" if field.dtype == "factor" else "character"
        distinct, codes = np.unique(values, return_inverse=True)
        texts = distinct.tolist()
        levels = check_text(texts, name, arg) if values.dtype == object else map(str, texts)
        codes = (codes.reshape(-1) + 1).astype(np.int32)
        return {"kind": kind, "name": "y", "values": codes, "levels": list(levels)}
    if field.shape:
        values = values.reshape(len(values), *field.shape).astype(np.float64)
        return {"kind": "matrix", "name": "y", "values": values, "levels": [], "names": []}
    kind = "integer" if field.dtype == "int64" else "numeric"
    return {"kind": kind, "name": "y", "values": values, "levels": []}


def describe_records(features: Mapping[str, Any]) -> dict[str, str]:
    """Returns the kind of features in TFRecord files, inferred from their first record.

    Args:
        features: See `open_records()`.

    Returns:
        `{kind}`: "columns", "array" or "images".
    """
    description, _ = read_description(features, open_files(features, "x", "skip"), "x")
    if description.array is None:
        return {"kind": "columns"}
    image = description.fields[description.array].dtype == "image"
    return {"kind": "images" if image else "array"}


def open_records(asked: FeatureRequest) -> Features:
    """Opens features of foreign TFRecord files.

    Args:
        asked: With features `{kind: "records", paths, description, label, weights, image_size,
            color}`; all except the paths may be missing. `description` maps a name to a dtype of
            `schema.DTYPES`, or to a dtype and a shape; without it, the fields are inferred from the
            first record.

    Raises:
        SpecError: for an invalid description.
        DataError: if the files cannot be read.
    """
    image = ImageSpec(**{name: asked.features.get(name) for name in IMAGE_OPTIONS})
    files = open_files(asked.features, asked.arg, asked.spec.on_error)
    description, file = read_description(asked.features, files, asked.arg, asked.encoding)
    if description.array is not None:
        return RecordArray(asked, files, description, image, description.note(file))
    # Imports pyarrow, which takes 0.3 s.
    from gpukeras.data.reader.tfrecord.tables import RecordReader, RecordTable

    reader = RecordReader(files, description, asked.arg, description.note(file))
    return RecordTable(replace(asked, features={**asked.features, "reader": reader}))
