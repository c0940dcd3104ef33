"""Arrays in files: users' `.npy` files, and scratch files of rows that are encoded once.

    open_npy() --learn()/encode(): one pass over the file--> FileRows --gather()--> float32 rows
    RowsWriter.write(block) ... finish() --> MemoryRows | DiskRows

Each read maps only a part of the file and unmaps it afterwards: mapped pages count as memory of
this process, and shuffled rows touch all pages. Each read first checks that the file is unchanged
since it was opened, because a mapped file that shrinks kills the process. The operating system's
page cache serves a scratch file nearly as fast as memory, and shrinks when memory is needed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_empty, populate
from gpukeras.core.messages import mib
from gpukeras.core.progress import count_pass, count_rows
from gpukeras.data.arrays import (
    ALL_ROWS,
    FLOAT32_MAX,
    EncodeOptions,
    RunningStats,
    row_blocks,
    standardise,
)
from gpukeras.data.files.files import (
    AGAIN,
    RemoteFile,
    Stamp,
    check_unchanged,
    file_error,
    is_url,
    opening_error,
    read_stamp,
    store_reason,
)
from gpukeras.data.files.paths import check_file
from gpukeras.data.reader.rows import Features, MemoryRows, Rows, RowSource, row_numbers
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding, check_array
from gpukeras.data.stage_timer import end_stage
from gpukeras.system import host

# Memory maps --------------------------------------------------------------------------------------

MAP_BYTES = 16 * 2**20  # mapped at once; 32 MiB was no faster and took 18 MiB more memory


@dataclass(frozen=True)
class NpyFile(Features):
    """An array in a file, as described by the file's header.

    Args:
        path: Path of the file.
        arg: Name of the user's argument, for error messages.
        shape: Shape, rows first; a vector becomes one column.
        dtype: The dtype in the file.
        offset: Bytes before the first value.
        fortran: Whether the file is in column-major (Fortran) order.
        stamp: Size and modification time when the file was opened.
    """

    path: Path
    arg: str
    shape: tuple[int, ...]
    dtype: np.dtype
    offset: int
    fortran: bool
    stamp: Stamp
    _ends: list[np.ndarray] = field(default_factory=list, repr=False, compare=False)

    @property
    def width(self) -> int:
        """Number of values per row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    # Features

    refuses = "a file"

    @property
    def rows(self) -> int:
        """Number of rows in the file."""
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.shape[1:]

    def learn(self, how: Learning) -> ArrayEncoding:
        """Learns the encoding; statistics come from the rows where `keep` is true."""
        statistics = self.scan(how.keep if how.spec.scale else None)
        if not how.spec.scale:
            return ArrayEncoding(self.row_shape)
        center, scale = tuple(statistics.mean), tuple(statistics.deviation)
        return ArrayEncoding(self.row_shape, center=center, scale=scale)

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> FileRows:
        """Returns the encoded rows."""
        encoding = check_array(encoding, self.row_shape, self.arg)
        if not self._ends:
            self.scan(None)
        source = FileRows(self, self.path.name, np.float32, encoding)
        with np.errstate(over="ignore"):
            ends = np.abs([source.standardise(end) for end in self._ends])
        if ends.max() > FLOAT32_MAX:
            column = int(ends.max(axis=0).argmax()) + 1
            hint = "Rescale the values first."
            raise self.error(f"has values too large for float32 in column {column}.", hint)
        return source

    def scan(self, keep: np.ndarray | None) -> RunningStats:
        """Reads the whole file once; returns the moments of the rows where `keep` is true.

        Raises:
            DataError: if values are missing or infinite; with their counts and the first such row.
        """
        width, bad = self.row_shape[-1], _Bad()
        moments = RunningStats()
        low = np.full(width, np.inf)
        high = np.full(width, -np.inf)
        blocks = row_blocks(self.rows, 8 * self.width)
        for rows in count_pass(blocks, "reading", self.rows, count_rows):
            block = self.read_range(rows).astype(np.float64, copy=False)
            bad.count(block, rows.start)
            if not bad.row:
                cells = block.reshape(-1, width)
                low, high = np.minimum(low, cells.min(axis=0)), np.maximum(high, cells.max(axis=0))
                if keep is not None:
                    moments.add(block[keep[rows]].reshape(-1, width))
        bad.refuse(self)
        self._ends[:] = low, high
        return moments

    # Reading

    def read_range(self, rows: slice) -> np.ndarray:
        """Returns consecutive rows unchanged."""
        return np.concatenate([part for _, part in self.read(np.arange(rows.start, rows.stop))])

    def read(self, ascending: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yields slices of `ascending`, an ascending array of row numbers, with their values.

        Raises:
            DataError: if the file changed since it was opened.
        """
        if len(ascending) == 0:
            return
        row_bytes = self.dtype.itemsize * (1 if self.fortran else self.width)
        segments = ascending // max(1, MAP_BYTES // row_bytes)
        ends = [*(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(ascending)]
        for start, end in zip([0, *ends], ends, strict=False):
            yield slice(start, end), self._read_near(ascending[start:end])

    def gather(
        self,
        numbers: np.ndarray,
        dtype: Any,
        encode: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> np.ndarray:
        """Returns rows by number in the order requested; reads them in file order.

        Args:
            numbers: Row numbers.
            dtype: The dtype of the result.
            encode: Function applied to the values read, or None.
        """
        order = np.argsort(numbers, kind="stable")
        out = aligned_empty((len(numbers), *self.row_shape), dtype)
        end_stage("gather")
        for part, values in self.read(numbers[order]):
            end_stage("read")
            if encode is not None:
                values = encode(values)
                end_stage("decode")
            out[order[part]] = values
            end_stage("gather")
        return out

    def blocks(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Yields consecutive rows, read-only, of a file that is not in Fortran order."""
        step = max(1, MAP_BYTES // (self.dtype.itemsize * self.width))
        for first in range(start, stop, step):
            with self._reading():
                block = self._map_rows(slice(first, min(first + step, stop)))
            yield block

    @contextmanager
    def _reading(self) -> Iterator[None]:
        check_unchanged(self.path, self.arg, self.stamp)
        try:
            yield
        except (OSError, ValueError) as error:
            raise self.error("cannot be read any more.", AGAIN) from error

    def _read_near(self, rows: np.ndarray) -> np.ndarray:
        with self._reading():
            return self._read_columns(rows) if self.fortran else self._read_rows(rows)

    def _read_rows(self, rows: np.ndarray) -> np.ndarray:
        near = self._map_rows(slice(int(rows[0]), int(rows[-1]) + 1))
        # As opaque items, of which NumPy copies whole rows instead of values.
        items = near.reshape(len(near), -1).view(f"V{self.width * self.dtype.itemsize}")[:, 0]
        chosen = items[rows - rows[0]]
        return chosen.view(self.dtype).reshape(len(rows), *self.row_shape)

    def _map_rows(self, rows: slice) -> np.ndarray:
        count = rows.stop - rows.start
        mapped = self._map(rows.start * self.width, count * self.width)
        return mapped.reshape(count, *self.row_shape)

    def _read_columns(self, rows: np.ndarray) -> np.ndarray:
        first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
        values = np.empty((len(rows), *self.row_shape), self.dtype)
        for column in range(self.width):
            mapped = self._map(column * self.rows + first, count)
            cell: tuple[Any, ...] = np.unravel_index(column, self.row_shape, order="F")
            values[(slice(None), *cell)] = mapped[rows - first]
        return values

    def _map(self, start: int, count: int) -> np.ndarray:
        offset = self.offset + start * self.dtype.itemsize
        mapped = np.memmap(self.path, self.dtype, "r", offset, (count,))
        return np.asarray(mapped)

    def error(self, problem: str, hint: str, **details: Any) -> DataError:
        """Returns an error about the file; the message names the file without its folder."""
        return file_error(self.path, self.arg, problem, hint, **details)


class FileRows(RowSource):
    """Rows of a file, gathered one block at a time.

    Args:
        file: The file.
        name: What to call the file in the plan.
        dtype: The dtype of the rows; None for the file's.
        encoding: By what they are standardised, or None.
    """

    def __init__(
        self, file: NpyFile, name: str, dtype: Any = None, encoding: ArrayEncoding | None = None
    ) -> None:
        """Stores the arguments; reads no data."""
        slow = "; it is in Fortran order, which reads slowly" if file.fortran else ""
        reason = f"a block at a time from {name}, {mib(file.stamp[0], 1)}{slow}"
        super().__init__(file.shape, dtype or file.dtype, reason)
        self.file = file
        learned = (None, None) if encoding is None else (encoding.center, encoding.scale)
        self._center, self._scale = (None if part is None else np.array(part) for part in learned)

    def standardise(self, values: np.ndarray) -> np.ndarray:
        """Returns the standardised values, still in float64."""
        return standardise(values, self._center, self._scale)

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows in the order requested; reads them in file order."""
        scaled = self._center is not None or self._scale is not None
        if scaled or self.file.fortran or not isinstance(rows, slice) or rows.step not in (None, 1):
            encode = self.standardise if scaled else None
            return self.file.gather(row_numbers(rows, len(self)), self.dtype, encode)
        start, stop, _ = rows.indices(len(self))
        out, done = aligned_empty((max(0, stop - start), *self.shape[1:]), self.dtype), 0
        for block in self.file.blocks(start, stop):
            out[done : done + len(block)] = block
            done += len(block)
        return out


def open_npy(path: str, arg: str) -> NpyFile:
    """Reads the header of a `.npy` file.

    Raises:
        DataError: if the file does not exist, is no complete `.npy` file, or holds no numbers or no
            rows.
    """
    file = Path(path)
    hint = "Save it with numpy.save(), as an array of numbers."
    try:
        stamp = read_stamp(file)
        mapped = np.lib.format.open_memmap(file, mode="r")  # like numpy.load() without pickles
    except OSError as error:
        raise opening_error(file, arg, error) from error
    except (ValueError, TokenError) as error:  # the latter from Python 3.12 on
        problem = "is not a whole .npy file of numbers (Python objects are never loaded)."
        raise file_error(file, arg, problem, hint) from error
    if mapped.dtype.kind not in "fiub":
        raise file_error(file, arg, f"must hold an array of numbers, not {mapped.dtype}.", hint)
    if mapped.ndim == 0 or 0 in mapped.shape:
        raise file_error(file, arg, f"has no values: its shape is {mapped.shape}.", hint)
    shape = mapped.shape if mapped.ndim > 1 else (len(mapped), 1)
    fortran = not mapped.flags.c_contiguous
    return NpyFile(file, arg, shape, mapped.dtype, mapped.offset, fortran, stamp)


def read_npy_labels(file: NpyFile) -> dict[str, Any]:
    """Reads labels from a file into memory, in the form that R passes labels."""
    values = file.read_range(slice(0, file.rows))
    kind = {"b": "logical", "f": "numeric"}.get(file.dtype.kind, "integer")
    single = file.width == 1
    return {
        "kind": kind if single else "matrix",
        "values": values[:, 0] if values.shape[1:] == (1,) else values,
        "levels": [],
        "names": [],
    }


@dataclass
class _Bad:
    """Counts of missing and infinite values, and the first row that has one, counted from 1."""

    missing: int = 0
    infinite: int = 0
    row: int = 0

    def count(self, block: np.ndarray, start: int) -> None:
        bad = ~np.isfinite(block)
        if not bad.any():
            return
        missing = int(np.isnan(block).sum())
        self.missing += missing
        self.infinite += int(bad.sum()) - missing
        self.row = self.row or start + int(bad.reshape(len(bad), -1).any(axis=1).argmax()) + 1

    def refuse(self, file: NpyFile) -> None:
        if self.row:
            counts = {"missing": self.missing, "infinite": self.infinite}
            found = " and ".join(f"{number:,} {what}" for what, number in counts.items() if number)
            raise file.error(
                f"has values that cannot be trained on: {found}, the first in row {self.row:,}.",
                "Remove or impute those rows first.",
                row=self.row,
                **counts,
            )


# Encoded rows -------------------------------------------------------------------------------------

MEMORY_BYTES = 256 * 2**20  # limit of memory for `keep="auto"`; see the module docstring
STORAGES = {"host": "memory", "disk": "disk"}  # of rows that are encoded once, by `cache`
SPARE_BYTES = 256 * 2**20  # free disk space that a scratch file leaves


class DiskRows(FileRows):
    """Rows in a scratch file, which is deleted with the object.

    Args:
        file: The file.
    """

    def __init__(self, file: NpyFile) -> None:
        """Takes ownership of the file."""
        super().__init__(file, "a scratch file")
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
            file = NpyFile(path, self._arg, shape, self._dtype, 0, False, read_stamp(path))
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


# Opening ------------------------------------------------------------------------------------------

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
