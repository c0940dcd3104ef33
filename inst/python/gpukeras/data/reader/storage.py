"""Scratch files: of rows that are encoded once and do not stay in memory, and of remote arrays.

    RowsWriter.write(block) ... finish() --> MemoryRows | DiskRows

The operating system's page cache serves a scratch file nearly as fast as memory, and shrinks when
memory is needed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_empty, populate
from gpukeras.core.messages import mib
from gpukeras.data.files.files import (
    RemoteFile,
    check_unchanged,
    file_error,
    is_url,
    opening_error,
    read_stamp,
    store_reason,
)
from gpukeras.data.files.paths import check_file
from gpukeras.data.reader.npy import FileRows, NpyFile, open_npy
from gpukeras.data.reader.rows import MemoryRows, RowSource
from gpukeras.system import host

# Files --------------------------------------------------------------------------------------------

SPARE_BYTES = 256 * 2**20  # free disk space that a scratch file leaves


def make_scratch(suffix: str, needed: int, arg: str) -> Path:
    """Returns a new scratch file, which is empty.

    Args:
        suffix: How its name ends.
        needed: What it will take at least, in bytes.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if that does not fit on the disk.
    """
    folder = scratch_folder()
    check_disk(folder, needed, arg)
    handle, path = tempfile.mkstemp(prefix="gpukeras-", suffix=suffix, dir=folder)
    os.close(handle)
    return Path(path)


def scratch_folder() -> Path:
    """Returns the folder for scratch files.

    It is R's session folder, which R removes, or the system's temporary folder. Both follow the
    environment variable TMPDIR at the start of the session.
    """
    return Path(os.environ.get("R_SESSION_TMPDIR") or tempfile.gettempdir())


def check_disk(folder: Path, needed: int, arg: str) -> None:
    """Checks that a scratch file fits on the disk.

    Args:
        folder: The folder for the file.
        needed: Size of the file in bytes.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if it does not fit; with the bytes needed and free.
    """
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise disk_full(folder, arg, f"{mib(needed)} of {mib(free)} free")


def disk_full(folder: Path, arg: str, sizes: str = "") -> DataError:
    """Returns the error for a scratch file that does not fit.

    Args:
        folder: The folder for the file.
        arg: Name of the user's argument, for error messages.
        sizes: The bytes needed and free as text, if known, or "".
    """
    asked = f": it needs {sizes}" if sizes else ""
    return DataError(
        f"`{arg}` does not fit into the temporary folder{asked}.",
        hint="Set the environment variable TMPDIR to a larger disk before the session starts.",
        arg=arg,
        path=str(folder),
    )


@contextmanager
def writing(path: Path, arg: str) -> Iterator[None]:
    """Removes a scratch file that cannot be written.

    Args:
        path: The file.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: if the disk is full, or fails.
    """
    try:
        yield
    except OSError as error:
        with suppress(OSError):  # it may be open, as Windows minds
            path.unlink(missing_ok=True)
        raise disk_full(path.parent, arg) from error


# Encoded rows -------------------------------------------------------------------------------------

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
        with writing(Path(self._disk.name), self._arg):
            np.ascontiguousarray(block, self._dtype).tofile(self._disk)


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


# Remote arrays ------------------------------------------------------------------------------------

CHUNK_BYTES = 8 * 2**20


def open_npy_anywhere(path: str, arg: str) -> NpyFile:
    """Opens a `.npy` file; a copy of a remote one is removed with the object returned.

    Args:
        path: Path or address.
        arg: Name of the user's argument, for error messages.

    Raises:
        DataError: as `open_npy()` raises; if the store fails, the object changes meanwhile, or its
            copy does not fit into the temporary folder.
    """
    if not is_url(path):
        return open_npy(path, arg)
    from gpukeras.data.files.stores import find_objects  # imports pyarrow

    objects = find_objects(path, arg)
    if len(objects) != 1:
        raise file_error(
            objects[0], arg, "is one of several: they cannot be one array.", "Give one."
        )
    folder = Path(tempfile.mkdtemp(prefix="gpukeras-", suffix=".npy", dir=scratch_folder()))
    try:
        file = open_npy(str(_copy(objects[0], folder, arg)), arg)
        weakref.finalize(file, shutil.rmtree, folder, ignore_errors=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return file


def _copy(remote: RemoteFile, folder: Path, arg: str) -> Path:
    stamp = check_file(remote, arg)
    check_disk(folder, stamp[0], arg)
    copy = folder / remote.name
    copy.touch(mode=0o600)
    try:
        with remote.open() as source, copy.open("wb") as file:
            shutil.copyfileobj(source, file, CHUNK_BYTES)
    except OSError as error:
        check_unchanged(remote, arg, stamp)
        if not store_reason(error):  # the disk's
            raise disk_full(folder, arg) from error
        raise opening_error(remote, arg, error) from None
    check_unchanged(remote, arg, stamp)
    return copy
