"""Features in a `.npy` file, read through memory maps of a block's rows, never of the whole file.

    open_npy() --learn()/encode(): one pass over the file--> NpyRows --gather()--> float32 rows

Each read maps only a part of the file and unmaps it afterwards: mapped pages count as memory of
this process, and shuffled rows touch all pages. Each read first checks that the file is unchanged
since it was opened, because a mapped file that shrinks kills the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import mib
from gpukeras.core.options import DatasetSpec
from gpukeras.data.arrays import FLOAT32_MAX, Notes, RunningStats, row_blocks, standardise
from gpukeras.data.files.errors import AGAIN, check_unchanged, file_error, opening_error, read_stamp
from gpukeras.data.files.remote_file import Stamp
from gpukeras.data.reader.base import Features
from gpukeras.data.reader.rows import Rows, RowSource, row_numbers
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding, check_array
from gpukeras.data.stage_timer import end_stage

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

    def learn(
        self, keep: np.ndarray, spec: DatasetSpec, complete: np.ndarray | None = None
    ) -> ArrayEncoding:
        """Learns the encoding; statistics come from the rows where `keep` is true."""
        found = self.scan(keep if spec.scale else None)
        if not spec.scale:
            return ArrayEncoding(self.row_shape)
        center, scale = tuple(found.mean), tuple(found.deviation)
        return ArrayEncoding(self.row_shape, center=center, scale=scale)

    def encode(
        self, encoding: Encoding, complete: np.ndarray | None = None, notes: Notes | None = None
    ) -> FileRows:
        """Returns the encoded rows."""
        encoding = check_array(encoding, self.row_shape, self.arg)
        if not self._ends:
            self.scan(None)
        source = FileRows(
            self, self.path.name, np.float32, center=encoding.center, scale=encoding.scale
        )
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
        for rows in row_blocks(self.rows, 8 * self.width):
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
        center: Subtracted from each row along the last axis, or None.
        scale: Divisor of each row along the last axis, or None.
    """

    def __init__(
        self,
        file: NpyFile,
        name: str,
        dtype: Any = None,
        *,
        center: tuple[float, ...] | None = None,
        scale: tuple[float, ...] | None = None,
    ) -> None:
        """Stores the arguments; reads no data."""
        slow = "; it is in Fortran order, which reads slowly" if file.fortran else ""
        reason = f"a block at a time from {name}, {mib(file.stamp[0], 1)}{slow}"
        super().__init__(file.shape, dtype or file.dtype, reason)
        self.file = file
        self._center = None if center is None else np.array(center)
        self._scale = None if scale is None else np.array(scale)

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
    except ValueError as error:
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
