"""Arrays in files, read and encoded a block of rows at a time.

    open_npy() --> NpyFile --FileFeatures: one pass over the file--> FileRows --> float32 rows

Each read maps only a part of the file and unmaps it afterwards: mapped pages count as memory of
this process, and shuffled rows touch all pages. Each read first checks that the file is unchanged
since it was opened, because a mapped file that shrinks kills the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.messages import mib
from gpukeras.data.arrays import (
    ALL_ROWS,
    FLOAT32_MAX,
    BadValues,
    EncodeOptions,
    Notes,
    RunningStats,
    row_blocks,
    standardise,
)
from gpukeras.data.files.files import (
    AGAIN,
    Stamp,
    check_unchanged,
    file_error,
    opening_error,
    read_stamp,
)
from gpukeras.data.reader.rows import (
    ArrayReader,
    ArraySchema,
    Features,
    Rows,
    RowSource,
    row_numbers,
)
from gpukeras.data.recipe.columns import Learning
from gpukeras.data.recipe.encoding import look_unlearned
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding, check_array
from gpukeras.data.stage_timer import end_stage

# Memory maps --------------------------------------------------------------------------------------

MAP_BYTES = 16 * 2**20  # mapped at once; 32 MiB was no faster and took 18 MiB more memory


@dataclass
class NpyFile(ArrayReader):
    """An array in a file, as described by the file's header.

    Args:
        path: Path of the file.
        arg: Name of the user's argument, for error messages.
        shape: Shape, rows first; a vector becomes one column.
        dtype: The dtype in the file.
        stamp: Size and modification time when the file was opened.
        offset: Bytes before the first value.
        fortran: Whether the file is in column-major (Fortran) order.
    """

    path: Path
    arg: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stamp: Stamp
    offset: int = 0
    fortran: bool = False

    def __post_init__(self) -> None:
        """Says what a reader of the rows has to know; reads no data."""
        super().__init__("npy", ArraySchema(self.shape[1:], self.dtype), self.arg)
        self.files = (self.path,)

    @property
    def width(self) -> int:
        """Number of values per row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    @property
    def known_rows(self) -> int:
        """Number of rows in the file."""
        return self.shape[0]

    @property
    def streamed(self) -> str:
        """Why each block of rows is read on access."""
        return self.describe(self.path.name)

    def describe(self, name: str) -> str:
        """Returns how rows are read, for the plan; `name` is what the file is called there."""
        slow = "; it is in Fortran order, which reads slowly" if self.fortran else ""
        return f"a block at a time from {name}, {mib(self.stamp[0], 1)}{slow}"

    def batches(self) -> Iterator[np.ndarray]:
        """Yields all rows in order, unchanged."""
        return map(self.read_range, row_blocks(self.known_rows, 8 * self.width))

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
        self, rows: Rows, dtype: Any, encode: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> np.ndarray:
        """Returns rows by number in the order requested; reads them in file order."""
        plain = encode is None and not self.fortran
        if plain and isinstance(rows, slice) and rows.step in (None, 1):
            return self._copy_range(rows, dtype)
        numbers = row_numbers(rows, self.known_rows)
        order = np.argsort(numbers, kind="stable")
        out = aligned_empty((len(numbers), *self.shape[1:]), dtype)
        end_stage("gather")
        for part, values in self.read(numbers[order]):
            end_stage("read")
            if encode is not None:
                values = encode(values)
                end_stage("decode")
            out[order[part]] = values
            end_stage("gather")
        return out

    def _copy_range(self, rows: slice, dtype: Any) -> np.ndarray:
        """Returns consecutive rows, of a file that is not in Fortran order."""
        start, stop, _ = rows.indices(self.known_rows)
        out, done = aligned_empty((max(0, stop - start), *self.shape[1:]), dtype), 0
        step = max(1, MAP_BYTES // (self.dtype.itemsize * self.width))
        for first in range(start, stop, step):
            with self._reading():
                block = self._map_rows(slice(first, min(first + step, stop)))
            out[done : done + len(block)] = block
            done += len(block)
        return out

    @contextmanager
    def _reading(self) -> Iterator[None]:
        check_unchanged(self.path, self.arg, self.stamp)
        try:
            yield
        except (OSError, ValueError) as error:
            raise file_error(self.path, self.arg, "cannot be read any more.", AGAIN) from error

    def _read_near(self, rows: np.ndarray) -> np.ndarray:
        with self._reading():
            return self._read_columns(rows) if self.fortran else self._read_rows(rows)

    def _read_rows(self, rows: np.ndarray) -> np.ndarray:
        near = self._map_rows(slice(int(rows[0]), int(rows[-1]) + 1))
        # As opaque items, of which NumPy copies whole rows instead of values.
        items = near.reshape(len(near), -1).view(f"V{self.width * self.dtype.itemsize}")[:, 0]
        chosen = items[rows - rows[0]]
        return chosen.view(self.dtype).reshape(len(rows), *self.shape[1:])

    def _map_rows(self, rows: slice) -> np.ndarray:
        count = rows.stop - rows.start
        mapped = self._map(rows.start * self.width, count * self.width)
        return mapped.reshape(count, *self.shape[1:])

    def _read_columns(self, rows: np.ndarray) -> np.ndarray:
        first, count = int(rows[0]), int(rows[-1] - rows[0]) + 1
        values = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for column in range(self.width):
            mapped = self._map(column * self.known_rows + first, count)
            cell: tuple[Any, ...] = np.unravel_index(column, self.shape[1:], order="F")
            values[(slice(None), *cell)] = mapped[rows - first]
        return values

    def _map(self, start: int, count: int) -> np.ndarray:
        offset = self.offset + start * self.dtype.itemsize
        mapped = np.memmap(self.path, self.dtype, "r", offset, (count,))
        return np.asarray(mapped)


class FileRows(RowSource):
    """Rows of a reader of an array, gathered one block at a time.

    Args:
        reader: The reader.
        streamed: Why each block is read on access, for the plan.
        dtype: The dtype of the rows; None for the reader's.
        encoding: By what they are standardised, or None.
    """

    def __init__(
        self,
        reader: ArrayReader,
        streamed: str,
        dtype: Any = None,
        encoding: ArrayEncoding | None = None,
    ) -> None:
        """Stores the arguments; reads no data."""
        shape = (reader.known_rows, *reader.schema.row_shape)
        super().__init__(shape, dtype or reader.schema.dtype, streamed)
        self.reader = reader
        learned = (None, None) if encoding is None else (encoding.center, encoding.scale)
        self._center, self._scale = (None if part is None else np.array(part) for part in learned)

    def standardise(self, values: np.ndarray) -> np.ndarray:
        """Returns the standardised values, still in float64."""
        return standardise(values, self._center, self._scale)

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows in the order requested."""
        scaled = self._center is not None or self._scale is not None
        return self.reader.gather(rows, self.dtype, self.standardise if scaled else None)


class FileFeatures(Features):
    """An array in files, whose rows are read and encoded on access.

    Args:
        reader: The reader.
    """

    refuses = "a file"

    def __init__(self, reader: ArrayReader) -> None:
        """Stores the reader; reads no data."""
        self.reader = reader
        self.arg = reader.arg
        self._ends: list[np.ndarray] = []
        self._seen = Notes()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.reader.known_rows

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one row."""
        return self.reader.schema.row_shape

    def learn(self, how: Learning) -> ArrayEncoding:
        """Learns the encoding; statistics come from the rows where `keep` is true."""
        statistics = self.scan(how.keep if how.spec.scale else None, how.spec.scale)
        if not how.spec.scale:
            return ArrayEncoding(self.row_shape)
        scale = how.scales(statistics.deviation)
        return ArrayEncoding(self.row_shape, center=tuple(statistics.mean), scale=scale)

    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> FileRows:
        """Returns the encoded rows."""
        encoding = check_array(encoding, self.row_shape, self.arg)
        if not self._ends:
            self.scan(None, not encoding.keeps_values)
        if how.notes is not None:
            how.notes.add(self._seen)
            look_unlearned(np.array(self._ends), encoding, self.arg, how.notes)
        source = FileRows(self.reader, self.reader.streamed, np.float32, encoding)
        with np.errstate(over="ignore"):
            ends = np.abs([source.standardise(end) for end in self._ends])
        if ends.max() > FLOAT32_MAX:
            column = int(ends.max(axis=0).argmax()) + 1
            problem = f"has values too large for float32 in column {column}."
            raise self.error(problem, "Rescale the values first.")
        return source

    def scan(self, keep: np.ndarray | None, scaled: bool) -> RunningStats:
        """Reads all rows once; returns the moments of the rows where `keep` is true.

        Args:
            keep: Mask of the training rows, or None to compute no moments.
            scaled: Whether the values are standardised.

        Raises:
            DataError: if values are missing or infinite; with their counts and the first such row.
        """
        width, bad = self.row_shape[-1], BadValues(limit=np.inf)
        moments = RunningStats()
        low = np.full(width, np.inf)
        high = np.full(width, -np.inf)
        start = 0
        for batch in self.reader.counted(self.reader.batches()):
            block = batch.astype(np.float64, copy=False)
            bad.add(block)
            self._seen.look(batch, (), self.arg, scaled)
            if bad.row is None:
                cells = block.reshape(-1, width)
                low, high = np.minimum(low, cells.min(axis=0)), np.maximum(high, cells.max(axis=0))
                if keep is not None:
                    kept = block[keep[start : start + len(block)]]
                    moments.add(kept.reshape(-1, width))
            start += len(block)
        if bad.row is not None:
            found = [f"{count:,} {what}" for what, count in bad.counts.items() if count]
            problem = f"has values that cannot be trained on: {' and '.join(found)}, the first in "
            hint = "Remove or impute those rows first."
            raise self.error(f"{problem}row {bad.row:,}.", hint, row=bad.row, **bad.counts)
        self._ends = [low, high]
        return moments

    def error(self, problem: str, hint: str, **details: Any) -> DataError:
        """Returns an error about the rows; the message names their file, if there is one."""
        path = self.reader.files[0] if self.reader.files else None
        return file_error(path, self.arg, problem, hint, **details)


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
    return NpyFile(file, arg, shape, mapped.dtype, stamp, offset=mapped.offset, fortran=fortran)


def read_npy_labels(file: NpyFile) -> dict[str, Any]:
    """Reads labels from a file into memory, in the form that R passes labels."""
    values = file.read_range(slice(0, file.known_rows))
    kind = {"b": "logical", "f": "numeric"}.get(file.dtype.kind, "integer")
    single = file.width == 1
    return {
        "kind": kind if single else "matrix",
        "values": values[:, 0] if values.shape[1:] == (1,) else values,
        "levels": [],
        "names": [],
    }
