"""Keeps rows that are encoded once, in memory or in a scratch file.

    RowsWriter.write(block) ... finish() --> MemoryRows | DiskRows

The operating system's page cache serves a scratch file nearly as fast as memory, and shrinks when
memory is needed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_empty, populate
from gpukeras.core.messages import mib
from gpukeras.data.files.files import read_stamp
from gpukeras.data.files.scratch import disk_full, make_scratch
from gpukeras.data.reader.npy import FileRows, NpyFile
from gpukeras.data.reader.rows import MemoryRows, RowSource
from gpukeras.system import host

MEMORY_BYTES = 256 * 2**20  # limit of memory for `keep="auto"`
STORAGES = {"host": "memory", "disk": "disk"}  # of rows that are encoded once, by `cache`


class DiskRows(FileRows):
    """Rows in a scratch file, which is deleted with the object.

    Args:
        file: The file.
    """

    def __init__(self, file: NpyFile) -> None:
        """Takes ownership of the file."""
        super().__init__(file, file.describe("a scratch file"))
        weakref.finalize(self, file.path.unlink, missing_ok=True)


class RowsWriter:
    """Collects rows in order.

    Args:
        row_shape: Shape of one row.
        dtype: The dtype of the rows.
        keep: "memory", "disk", or "auto": in memory up to `MEMORY_BYTES`, on disk beyond.
        arg: Name of the user's argument, for error messages.
        rows: Number of rows to come, or None; a known number is allocated at once.
    """

    def __init__(
        self,
        row_shape: tuple[int, ...],
        dtype: Any = np.float32,
        keep: str = "auto",
        arg: str = "x",
        rows: int | None = None,
    ) -> None:
        """Chooses the storage, if the number of rows is known."""
        self._shape = row_shape
        self._dtype = np.dtype(dtype)
        self._keep = keep
        self._arg = arg
        self._row_bytes = int(np.prod(row_shape, dtype=np.int64)) * self._dtype.itemsize
        self._rows, self._count = rows, 0
        self._blocks: list[np.ndarray] = []
        self._whole: np.ndarray | None = None
        self._disk: BinaryIO | None = None
        self._room: np.ndarray | None = None  # last result of room()
        self._buffer: np.ndarray | None = None  # reused by room() for rows that go to disk
        if keep == "disk" or (rows is not None and self._overflows(rows)):
            self._open_disk()
        elif rows is not None:
            self._check_memory(rows)
            self._whole = aligned_empty((rows, *row_shape), dtype)
            populate(self._whole)

    def __enter__(self) -> RowsWriter:
        """Returns the writer; `__exit__` cleans up after an error."""
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Removes the scratch file after an error; otherwise `finish()` returns the rows."""
        if error is not None:
            self.close()

    def room(self, rows: int) -> np.ndarray:
        """Returns aligned memory for the next rows; the caller fills it and calls `write()`."""
        if self._whole is not None:
            self._room = self._whole[self._count : self._count + rows]
        elif self._disk is None:  # the block stays in memory
            self._room = aligned_empty((rows, *self._shape), self._dtype)
        else:
            if self._buffer is None or len(self._buffer) < rows:
                self._buffer = aligned_empty((rows, *self._shape), self._dtype)
            self._room = self._buffer[:rows]
        return self._room

    def write(self, block: np.ndarray) -> None:
        """Appends rows of the row shape; does not copy those made in `room()`."""
        own, self._room = block is self._room, None
        start, self._count = self._count, self._count + len(block)
        if self._whole is not None:
            if not own:
                self._whole[start : self._count] = block
        elif self._disk is not None:
            self._write_disk(block)
        else:
            self._blocks.append(block if own else np.array(block, self._dtype))
            if self._overflows(self._count):
                self._spill()

    def finish(self) -> RowSource:
        """Returns the rows and closes the writer."""
        if self._disk is not None:
            self._disk.close()
            shape, path = (self._count, *self._shape), Path(self._disk.name)
            stamp = read_stamp(path)
            file = NpyFile(
                path, self._arg, shape, self._dtype, offset=0, fortran=False, stamp=stamp
            )
            return DiskRows(file)
        if self._whole is None:
            self._check_memory(self._count)
            self._whole = aligned_empty((self._count, *self._shape), self._dtype)
            start = 0
            while self._blocks:  # frees each block's memory after its copy
                block = self._blocks.pop(0)
                self._whole[start : start + len(block)] = block
                start += len(block)
        return MemoryRows(self._whole[: self._count])

    def close(self) -> None:
        """Discards the rows and removes the scratch file, if any."""
        if self._disk is not None:
            self._disk.close()
            Path(self._disk.name).unlink(missing_ok=True)

    def _overflows(self, rows: int) -> bool:
        return self._keep == "auto" and rows * self._row_bytes > MEMORY_BYTES

    def _check_memory(self, rows: int) -> None:
        needed, free = rows * self._row_bytes, host.read_free_memory()
        if free is not None and needed > free:
            raise DataError(
                f"`{self._arg}` takes {mib(needed)} as a whole, more than the {mib(free)} free.",
                hint='Use `cache = "disk"` or `cache = "auto"`.',
                arg=self._arg,
            )

    def _open_disk(self) -> None:
        path = make_scratch(".rows", (self._rows or 0) * self._row_bytes, self._arg)
        self._disk = path.open("wb")

    def _spill(self) -> None:
        blocks, self._blocks = self._blocks, []
        self._open_disk()
        for block in blocks:
            self._write_disk(block)

    def _write_disk(self, block: np.ndarray) -> None:
        assert self._disk is not None  # opened before
        try:
            np.ascontiguousarray(block, self._dtype).tofile(self._disk)
        except OSError as error:
            self.close()
            raise disk_full(Path(self._disk.name).parent, self._arg) from error


def keep_rows(
    blocks: Iterable[np.ndarray],
    row_shape: tuple[int, ...],
    dtype: Any = np.float32,
    **how: Any,
) -> RowSource:
    """Returns rows that come in blocks as `RowsWriter` keeps them; for `how` see there."""
    with RowsWriter(row_shape, dtype, **how) as writer:
        for block in blocks:
            writer.write(block)
    return writer.finish()


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
    streamed = source.streamed and cache in ("host", "device")
    if isinstance(source, DiskRows) or not (streamed or cache == "disk"):
        return source
    kept = keep_rows(
        source.blocks(),
        source.shape[1:],
        source.dtype,
        keep=STORAGES.get(cache, "memory"),
        arg=arg,
        rows=len(source),
    )
    kept.texts = source.texts
    return kept
