"""The files of a folder of saved rows: a `.npy` file for each field, and a manifest.

    gpukeras-dataset.json  {"version": 2, "rows": 150, "block_rows": 100, "fields": {"x": {"dtype":
                           "float32", "shape": [4], "crc32": ["0f3c8a1d", "5b0e7711"]}, ...},
                           "recipe": {...}, "spec": {...}, "crc32": of the other entries}
    x.npy                  and, if present, y.npy, weights.npy and validation.npy

Each `block_rows` rows of a field have a checksum, the last ones too if they are fewer.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.errors import SpecError
from gpukeras.core.messages import system_reason
from gpukeras.core.options import DatasetSpec
from gpukeras.core.safe_files import open_regular
from gpukeras.data.files.files import path_error

MANIFEST = "gpukeras-dataset.json"
VERSION = 2
FIELDS = ("x", "y", "weights", "validation")
DTYPES = {"float32": "<f4", "uint8": "|u1", "int32": "<i4"}  # by name: that in a .npy file
MOST = 2**53  # larger numbers are no valid counts
MOST_AXES = 32  # of a NumPy array, the rows included
# What an entry that nobody saved so can raise.
FORGED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, SpecError)


@dataclass(frozen=True)
class Field:
    """One entry of a row, such as its features.

    Args:
        dtype: One of `DTYPES`.
        shape: Shape of the entry in one row.
        crc32: CRC-32 of each block of rows, as 8 hexadecimal digits. They detect accidental damage,
            not tampering: 2.5 GB/s, where SHA-256 reached 0.5 GB/s.
    """

    dtype: str
    shape: tuple[int, ...]
    crc32: tuple[str, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def header(self, rows: int) -> bytes:
        """Returns the start of the field's file: the header of a `.npy` file, version 1.0.

        Its length does not depend on the number of rows, which can be written last.

        Args:
            rows: Number of rows.
        """
        size = -(-(len(self._describe(MOST)) + 11) // 64) * 64  # 10 bytes before it, a newline
        start = b"\x93NUMPY\x01\x00" + (size - 10).to_bytes(2, "little")
        return start + self._describe(rows).ljust(size - 11).encode() + b"\n"

    def _describe(self, rows: int) -> str:
        shape = (rows, *self.shape)
        described = {"descr": DTYPES[self.dtype], "fortran_order": False, "shape": shape}
        return str(described)[:-1] + ", }"  # as NumPy writes it


@dataclass(frozen=True)
class Manifest:
    """The contents of a manifest.

    Args:
        rows: Number of rows.
        block_rows: Rows of a block, which has a checksum for each field.
        fields: The fields by name: "x", and if present "y", "weights" and "validation" (1 for
            validation rows, else 0).
        recipe: The recipe that encoded the rows, see `serialization`.
        spec: Options of the saved dataset: `seed`, `validation` (share), `na`, `dropped` (rows).
    """

    rows: int
    block_rows: int
    fields: Mapping[str, Field]
    recipe: Mapping[str, Any]
    spec: Mapping[str, Any]

    @property
    def files(self) -> list[str]:
        """Names of the fields' files."""
        return [f"{name}.npy" for name in self.fields]

    def to_text(self) -> str:
        """Returns the manifest as JSON."""
        plain = {"version": VERSION, **asdict(self)}
        return json.dumps({**plain, "crc32": _sum_of(plain)}, indent=1)


def read_manifest(folder: Path, arg: str) -> Manifest:
    """Reads the manifest of a folder, and checks its numbers before memory is taken for them.

    Args:
        folder: The folder.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if it cannot be read, is damaged, or was written by another version of gpukeras.
    """
    path = folder / MANIFEST
    try:
        with open_regular(path) as file:
            text = file.read().decode("utf-8", "replace")
    except OSError as error:
        message = f"{MANIFEST} in {folder.name} cannot be read: {system_reason(error)}."
        raise path_error(path, arg, message, "Check its permissions.") from error
    try:
        plain = json.loads(text)
        version, stored_sum = plain["version"], plain.pop("crc32")
        if is_count(version) and version != VERSION:
            other = f"its format is {version}, this one reads {VERSION}"
            message = f"{folder.name} was saved by another version of gpukeras ({other})."
            raise path_error(path, arg, message, "Update gpukeras, or save the dataset again.")
        if stored_sum != _sum_of(plain):
            raise ValueError("another checksum")
        return _parse(plain)
    except FORGED as error:
        message = f"{MANIFEST} in {folder.name} is not as gpu_dataset_save() wrote it."
        raise path_error(path, arg, message, "Save the dataset again.") from error


def is_count(value: Any) -> bool:
    """Whether a JSON value is an integer from 0; `true` and 3.0 are not."""
    return type(value) is int and 0 <= value < MOST


def _sum_of(plain: Mapping[str, Any]) -> str:
    """Returns the checksum of a JSON object."""
    return f"{zlib.crc32(json.dumps(plain, sort_keys=True).encode()):08x}"


def _parse(plain: Mapping[str, Any]) -> Manifest:
    """Checks the entries; the files' sizes are compared with them when they are opened.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, SpecError: for an entry that is none.
    """
    rows = plain["rows"]
    block_rows = plain["block_rows"]
    spec = plain["spec"]
    counts = (plain["version"], rows, block_rows, spec["dropped"])
    if not all(map(is_count, counts)) or not rows * block_rows:
        raise ValueError(counts)
    if not isinstance(plain["recipe"], Mapping):
        raise ValueError("no recipe")
    DatasetSpec.from_dict({name: spec[name] for name in ("seed", "validation", "na")})
    blocks = -(-rows // block_rows)
    fields = {name: _parse_field(plain["fields"][name], blocks) for name in plain["fields"]}
    if "x" not in fields or not set(fields) <= set(FIELDS):
        raise ValueError(list(fields))
    if sum(field.row_bytes for field in fields.values()) * rows >= MOST:
        raise ValueError(rows)
    return Manifest(rows, block_rows, fields, plain["recipe"], spec)


def _parse_field(plain: Mapping[str, Any], blocks: int) -> Field:
    field = Field(plain["dtype"], tuple(plain["shape"]), tuple(plain["crc32"]))
    known = field.dtype in DTYPES and len(field.shape) < MOST_AXES
    if not known or not all(is_count(size) and size > 0 for size in field.shape):
        raise ValueError(field.shape)
    if len(field.crc32) != blocks or not all(isinstance(crc, str) for crc in field.crc32):
        raise ValueError(len(field.crc32))
    return field
