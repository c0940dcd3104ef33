"""Rows that are made once and kept: in memory while they are few, in a scratch file beyond that.

    RowsWriter.write(block) ... finish() --> MemoryRows | DiskRows

A scratch file is read through a memory map, a part at a time (see `npy`): the operating system's
page cache serves it nearly as fast as memory, and gives way when memory is needed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.messages import mib
from gpukeras.data.arrays import aligned_empty
from gpukeras.data.sources.npy import NpyFile, read_stamp
from gpukeras.data.sources.row_store import MemoryRows, Rows, RowSource, row_numbers
from gpukeras.system import host

MEMORY_BYTES = 256 * 2**20  # what is kept in memory without being asked; see the module's top
SPARE_BYTES = 256 * 2**20  # of the disk that a scratch file leaves to others


class DiskRows(RowSource):
    """Rows in a scratch file, gathered a block at a time; the file goes with its last user.

    Args:
        file: The file.
    """

    def __init__(self, file: NpyFile) -> None:
        """Takes the file over."""
        size = mib(file.stamp[0], 1)
        super().__init__(file.shape, file.dtype, f"a block at a time from a scratch file, {size}")
        self.file = file
        weakref.finalize(self, _remove, file.path)

    @property
    def resident_bytes(self) -> int:
        """Nothing stays in memory."""
        return 0

    def gather(self, rows: Rows) -> np.ndarray:
        """Those rows, read in the file's order and put into the order asked for."""
        return self.file.gather(row_numbers(rows, len(self)), self.dtype)


class RowsWriter:
    """Collects rows in their order.

    Args:
        row_shape: Shape of one row.
        dtype: Of the rows.
        keep: "memory", "disk", or "auto": in memory up to `MEMORY_BYTES`, on disk beyond.
        arg: The user's name for the rows, for messages.
        rows: How many will come, or None; known, one piece of memory takes them all.
    """

    def __init__(
        self,
        row_shape: tuple[int, ...],
        dtype: Any = np.float32,
        keep: str = "auto",
        arg: str = "x",
        rows: int | None = None,
    ) -> None:
        """Chooses where the rows go, as far as it can be known."""
        self._shape, self._dtype, self._keep, self._arg = row_shape, np.dtype(dtype), keep, arg
        self._row_bytes = int(np.prod(row_shape, dtype=np.int64)) * self._dtype.itemsize
        self._rows, self._count = rows, 0
        self._blocks: list[np.ndarray] = []
        self._whole: np.ndarray | None = None
        self._disk: BinaryIO | None = None
        self._room: np.ndarray | None = None  # handed out last
        self._buffer: np.ndarray | None = None  # handed out again and again
        if keep == "disk" or (rows is not None and self._overflows(rows)):
            self._open_disk()
        elif rows is not None:
            self._check_memory(rows)
            self._whole = aligned_empty((rows, *row_shape), dtype)

    def __enter__(self) -> RowsWriter:
        """Gives up at an error inside."""
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Removes the scratch file after an error; else `finish()` gives the rows."""
        if error is not None:
            self.close()

    def room(self, rows: int) -> np.ndarray:
        """Aligned memory for the next rows, to be filled and given to `write()`."""
        if self._whole is not None:
            self._room = self._whole[self._count : self._count + rows]
        elif self._disk is None:  # it will be kept
            self._room = aligned_empty((rows, *self._shape), self._dtype)
        else:
            if self._buffer is None or len(self._buffer) < rows:
                self._buffer = aligned_empty((rows, *self._shape), self._dtype)
            self._room = self._buffer[:rows]
        return self._room

    def write(self, block: np.ndarray) -> None:
        """Appends rows of the row shape; those made in `room()` are not copied."""
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
        """The rows; the writer is done."""
        if self._disk is not None:
            self._disk.close()
            shape, path = (self._count, *self._shape), Path(self._disk.name)
            file = NpyFile(path, self._arg, shape, self._dtype, 0, False, read_stamp(path))
            return DiskRows(file)
        if self._whole is None:
            self._check_memory(self._count)
            self._whole = aligned_empty((self._count, *self._shape), self._dtype)
            start = 0
            while self._blocks:  # each block's memory is free again once it is copied
                block = self._blocks.pop(0)
                self._whole[start : start + len(block)] = block
                start += len(block)
        return MemoryRows(self._whole[: self._count])

    def close(self) -> None:
        """Gives up: removes the scratch file, if there is one."""
        if self._disk is not None:
            self._disk.close()
            _remove(Path(self._disk.name))

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
        folder = scratch_folder()
        needed = (self._rows or 0) * self._row_bytes
        check_disk(folder, needed, self._arg)
        handle, path = tempfile.mkstemp(prefix="gpukeras-", suffix=".rows", dir=folder)
        os.close(handle)
        self._disk = open(path, "wb")  # noqa: SIM115 (closed by finish() or close())

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


def scratch_folder() -> Path:
    """Where scratch files go: R's session folder, which R removes, or the system's temporary one.

    Both follow the environment variable TMPDIR when the session starts.
    """
    return Path(os.environ.get("R_SESSION_TMPDIR") or tempfile.gettempdir())


def check_disk(folder: Path, needed: int, arg: str) -> None:
    """Refuses a scratch file that does not fit.

    Raises:
        DataError: with the bytes needed and free.
    """
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise disk_full(folder, arg, f"{mib(needed)} of {mib(free)} free")


def disk_full(folder: Path, arg: str, sizes: str = "") -> DataError:
    """The error for a scratch file that does not fit; `sizes` says what it needs, if known."""
    asked = f": it needs {sizes}" if sizes else ""
    return DataError(
        f"`{arg}` does not fit into the temporary folder{asked}.",
        hint="Set the environment variable TMPDIR to a larger disk before the session starts.",
        arg=arg,
        path=str(folder),
    )


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
