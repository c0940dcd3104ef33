"""Writes shards of saved rows as Parquet or TFRecord, laid out so that NumPy can map the values.

    create_shard(path, format, fields) --> ParquetShard | ExampleShard .write(arrays) ... .finish()

Other programs can read both formats. The values of a row are contiguous in the file, at offsets
stored in the shard's record, so that reading is a memory map without a decoder (Parquet's decoder
of lists reached 0.2 GB/s where the map reached 2 GB/s, measured). For this reason nothing is
compressed.
"""

from __future__ import annotations

import inspect
import json
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.errors import RuntimeMissingError
from gpukeras.data.saved.tf_example import ExampleLayout, Field, plan_layout
from gpukeras.system import pip

FORMATS = ("parquet", "tfrecord")
# Bytes per write: a Parquet row group of one page per column, or records. The processor's
# cache holds them: 4 MiB of Parquet were 1.4 times as fast as 16 MiB, and took 60 MiB of memory
# instead of 180 MiB; 1 MiB of records was 1.5 times as fast as 16 MiB.
GROUP_BYTES = {"parquet": 4 * 2**20, "tfrecord": 2**20}
PAGE_ROWS = 2**31 - 1  # since pyarrow 24, pages end after 20,000 rows by default
SHAPE_KEY = b"gpukeras.shape"  # metadata key of a column: the shape of one row


@dataclass(frozen=True)
class Place:
    """Location of a field's values in a file.

    Args:
        stride: Bytes from one row to the next.
        at: Offset of the first row and number of rows, for each run.
    """

    stride: int
    at: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Shard:
    """The record of one file of rows.

    Args:
        file: Name of the file.
        rows: Number of rows.
        bytes: Size of the file in bytes.
        crc32: CRC-32 of the file as 8 hexadecimal digits. It detects accidental damage, not
            tampering: 2.5 GB/s, where SHA-256 reached 0.5 GB/s.
        places: Location of each field, or None if the file must be decoded.
    """

    file: str
    rows: int
    bytes: int
    crc32: str
    places: Mapping[str, Place] | None


class Output:
    """A writable file that counts the bytes and computes their CRC-32."""

    def __init__(self, path: Path) -> None:
        """Creates the file."""
        self.path, self.size, self.crc = path, 0, 0
        self._file = path.open("xb")

    @property
    def closed(self) -> bool:
        """Whether the file is closed; pyarrow reads this attribute."""
        return self._file.closed

    def write(self, data: Any) -> int:
        """Appends bytes."""
        written = self._file.write(data)
        self.crc = zlib.crc32(data, self.crc)
        self.size += written
        return written

    def tell(self) -> int:
        """Returns the number of bytes written."""
        return self.size

    def flush(self) -> None:
        """Flushes buffered bytes to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Writes all bytes to the disk and closes the file."""
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def abandon(self) -> None:
        """Closes the file and ignores errors."""
        with suppress(OSError):  # buffered bytes may not fit on the disk
            self._file.close()


class ShardFile(ABC):
    """A shard that is being written.

    Args:
        path: Path of the new file.
        fields: Fields of a row.
    """

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        """Creates the file."""
        self._fields, self._rows, self._output = fields, 0, Output(path)

    @abstractmethod
    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Appends a group of rows, about `GROUP_BYTES`."""

    @abstractmethod
    def finish(self) -> Shard:
        """Closes the file and returns its record."""

    def abandon(self) -> None:
        """Closes the incomplete file."""
        self._output.abandon()

    def _record(self, places: Mapping[str, Place] | None) -> Shard:
        output = self._output
        return Shard(output.path.name, self._rows, output.size, f"{output.crc:08x}", places)


def create_shard(path: Path, format: str, fields: Mapping[str, Field]) -> ShardFile:  # noqa: A002
    """Creates a shard in one of `FORMATS`.

    Args:
        path: Path of the new file.
        format: "parquet" or "tfrecord".
        fields: Fields of a row.
    """
    return (ParquetShard if format == "parquet" else ExampleShard)(path, fields)


class ExampleShard(ShardFile):
    """A TFRecord file of `tf.train.Example` records."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        """Creates the file."""
        super().__init__(path, fields)
        self._layout: ExampleLayout = plan_layout(fields)

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Appends rows."""
        self._output.write(self._layout.pack(arrays).data)
        self._rows += len(next(iter(arrays.values())))

    def finish(self) -> Shard:
        """Closes the file and returns its record."""
        self._output.close()
        stride = self._layout.record_bytes
        starts = {name: self._layout.offset(name) for name in self._fields}
        return self._record(
            {name: Place(stride, ((start, self._rows),)) for name, start in starts.items()}
        )


class ParquetShard(ShardFile):
    """A Parquet file: one row group per write, with one page per column."""

    def __init__(self, path: Path, fields: Mapping[str, Field]) -> None:
        """Creates the file."""
        parquet = _parquet()
        super().__init__(path, fields)
        self._schema = _schema(fields)
        self._groups: list[dict[str, int]] = []  # CRC of each field's values, by group
        known = inspect.signature(parquet.ParquetWriter.__init__).parameters
        more = {"max_rows_per_page": PAGE_ROWS} if "max_rows_per_page" in known else {}
        self._writer = parquet.ParquetWriter(
            self._output,
            self._schema,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
            data_page_size=2**30,
            **more,
        )

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Appends a row group."""
        import pyarrow as pa

        plain = {
            name: np.ascontiguousarray(arrays[name], field.dtype)
            for name, field in self._fields.items()
        }
        columns = [_column(plain[name], self._schema.field(name).type) for name in self._fields]
        batch = pa.record_batch(columns, schema=self._schema)
        self._writer.write_batch(batch, row_group_size=batch.num_rows)
        self._groups.append({name: zlib.crc32(array.data) for name, array in plain.items()})
        self._rows += batch.num_rows

    def finish(self) -> Shard:
        """Closes the file and returns its record, with the locations found in the file."""
        self._writer.close()
        self._output.close()
        return self._record(_find_values(self._output.path, self._fields, self._groups))

    def abandon(self) -> None:
        """Closes the incomplete file, which gets no footer."""
        super().abandon()
        with suppress(OSError, ValueError):  # ValueError: the file is closed
            self._writer.close()


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise RuntimeMissingError(
            "pyarrow is needed to write Parquet files.",
            hint=pip.hint_import(error, "pyarrow", "pyarrow") + ' Or use `format = "tfrecord"`.',
        ) from error
    return pyarrow.parquet


def _schema(fields: Mapping[str, Field]) -> Any:
    """Returns the Arrow schema; uint8 is a fixed-size binary: Parquet has no one-byte numbers."""
    import pyarrow as pa

    def kind(field: Field) -> Any:
        if field.dtype == "uint8":
            return pa.binary(field.count)
        number = pa.from_numpy_dtype(field.dtype)
        if not field.shape:
            return number
        return pa.list_(pa.field("element", number, nullable=False), field.count)

    return pa.schema(
        pa.field(name, kind(field), False, {SHAPE_KEY: json.dumps(list(field.shape)).encode()})
        for name, field in fields.items()
    )


def _column(array: np.ndarray, kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_fixed_size_binary(kind):
        return pa.FixedSizeBinaryArray.from_buffers(kind, len(array), [None, pa.py_buffer(array)])
    values = pa.array(array.reshape(-1))
    return values if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(values, type=kind)


def _find_values(
    path: Path, fields: Mapping[str, Field], groups: list[dict[str, int]]
) -> dict[str, Place] | None:
    """Locates the values of each row group: at the end of a column's page, if it has one page.

    Returns:
        The location of each field; None if the CRCs there differ from those written, as with a
        pyarrow that writes other pages.
    """
    metadata = _parquet().read_metadata(path)
    runs: dict[str, list[tuple[int, int]]] = {name: [] for name in fields}
    for number, sums in enumerate(groups):
        group = metadata.row_group(number)
        for position, (name, field) in enumerate(fields.items()):
            column, size = group.column(position), group.num_rows * field.row_bytes
            start = column.data_page_offset + column.total_compressed_size - size
            # Maps piece by piece: mapped pages count as memory of this process.
            if (
                start < 0
                or zlib.crc32(np.memmap(path, np.uint8, "r", start, (size,)).data) != sums[name]
            ):
                return None
            runs[name].append((start, group.num_rows))
    return {name: Place(fields[name].row_bytes, tuple(at)) for name, at in runs.items()}


def decode_shard(
    path: Path, fields: Mapping[str, Field], rows: int
) -> Iterator[dict[str, np.ndarray]]:
    """Decodes a Parquet file and yields its rows, one row group at a time.

    Args:
        path: Path of the file.
        fields: Fields of a row.
        rows: Expected number of rows.

    Raises:
        ValueError, KeyError: if the file has other rows or fields.
    """
    file = _parquet().ParquetFile(path)
    if file.metadata.num_rows != rows:
        raise ValueError(rows)
    for number in range(file.num_row_groups):
        table = file.read_row_group(number, columns=list(fields)).combine_chunks()
        yield {name: _decode(table[name], field) for name, field in fields.items()}


def _decode(column: Any, field: Field) -> np.ndarray:
    shape = (len(column), *field.shape)
    if field.dtype == "uint8":
        return np.frombuffer(b"".join(column.to_pylist()), np.uint8).reshape(shape)
    values = column.chunk(0).flatten() if field.shape else column.chunk(0)
    return values.to_numpy(zero_copy_only=False).reshape(shape)
