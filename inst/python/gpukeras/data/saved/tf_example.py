"""Packs rows as `tf.train.Example` records of equal length, for NumPy to write and map whole.

    arrays --ExampleLayout.pack()--> records: [length][checksum][Example][checksum], one per row

Readers find the fields of an Example by name, and its other bytes are the same in every record: a
template, into which the values of all rows are copied field by field. Numbers of an int64_list use
a constant number of bytes, enough for the largest (longer than the shortest varint; every protocol
buffer reader accepts this), so that all records have the same length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpukeras.data.saved.crc32c import masked_crc32c

BYTES, FLOATS, INTEGERS = 1, 2, 3  # field numbers in tf.train.Feature
CODE_BYTES = 5  # varint bytes that hold an integer below 2**35


@dataclass(frozen=True)
class Field:
    """Dtype and shape of one row of a saved array.

    Args:
        dtype: "float32", "uint8", or "int32" (integers from 0).
        shape: Shape of one row.
    """

    dtype: str
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        """Number of values per row."""
        return math.prod(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes per row in an array."""
        return self.count * np.dtype(self.dtype).itemsize

    @property
    def record_bytes(self) -> int:
        """Bytes of the values in a record."""
        return self.count * (CODE_BYTES if self.dtype == "int32" else np.dtype(self.dtype).itemsize)


@dataclass(frozen=True)
class ExampleLayout:
    """Offsets of the fields' values in a record.

    Args:
        fields: The fields by name.
        template: An Example whose values are all zero bytes.
        offsets: Offset of each field's values in the template.
    """

    fields: dict[str, Field]
    template: bytes
    offsets: dict[str, int]

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, including its length and checksums."""
        return len(self.template) + 16

    def offset(self, name: str) -> int:
        """Returns the offset of a field's values in a record."""
        return 12 + self.offsets[name]

    def pack(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Packs rows into records.

        Args:
            arrays: One array per field, rows first.

        Returns:
            Array of uint8, shape `(rows, record_bytes)`.
        """
        rows, length = len(next(iter(arrays.values()))), len(self.template)
        records = np.empty((rows, self.record_bytes), np.uint8)
        head = np.frombuffer(np.uint64(length).tobytes(), np.uint8)
        records[:, :8] = head
        records[:, 8:12] = masked_crc32c(head[None]).astype("<u4").view(np.uint8)
        body = records[:, 12:-4]
        body[...] = np.frombuffer(self.template, np.uint8)
        for name, field in self.fields.items():
            start = self.offsets[name]
            body[:, start : start + field.record_bytes] = _to_bytes(arrays[name], field)
        records[:, -4:] = masked_crc32c(body).astype("<u4").view(np.uint8).reshape(rows, 4)
        return records


def plan_layout(fields: Mapping[str, Field]) -> ExampleLayout:
    """Returns the layout of records with these fields; map entries keep the fields' order."""
    entries, offsets, length = b"", {}, 0
    for name, field in fields.items():
        entry = _entry(name.encode(), field)
        entries += entry
        offsets[name] = len(entries) - field.record_bytes
    length = len(entries)
    head = b"\x0a" + _varint(length)
    offsets = {name: len(head) + offset for name, offset in offsets.items()}
    return ExampleLayout(dict(fields), head + entries, offsets)


def from_bytes(values: np.ndarray, field: Field) -> np.ndarray:
    """Decodes rows of a field from their bytes in records.

    Args:
        values: Contiguous array of uint8, shape `(rows, record_bytes of the field)`.
        field: The field.
    """
    shape = (len(values), *field.shape)
    if field.dtype != "int32":
        return values.view(np.dtype(field.dtype).newbyteorder("<")).reshape(shape)
    groups = values.reshape(len(values), field.count, CODE_BYTES) & 0x7F
    weights = 2 ** (7 * np.arange(CODE_BYTES, dtype=np.int64))
    return (groups @ weights).astype(np.int32).reshape(shape)


def _to_bytes(array: np.ndarray, field: Field) -> np.ndarray:
    rows = len(array)
    if field.dtype != "int32":
        plain = np.ascontiguousarray(array, np.dtype(field.dtype).newbyteorder("<"))
        return plain.reshape(rows, -1).view(np.uint8)
    shifts = 7 * np.arange(CODE_BYTES)
    groups = (np.asarray(array, np.int64).reshape(rows, -1, 1) >> shifts) & 0x7F
    groups[..., :-1] |= 0x80  # more bytes follow
    return groups.astype(np.uint8).reshape(rows, -1)


def _entry(name: bytes, field: Field) -> bytes:
    """Returns one entry of the features map; its values are zero bytes at the end."""
    values = bytes(field.record_bytes)
    kind = {"float32": FLOATS, "uint8": BYTES, "int32": INTEGERS}[field.dtype]
    feature = _message(kind, _message(1, values))
    return _message(1, _message(1, name) + _message(2, feature))


def _message(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
