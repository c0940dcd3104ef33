"""What rows of all kinds are: as they are stored, as features, and as encoded rows.

    Reader --batches()--> Features --learn(), encode()--> RowSource --gather()--> rows on a device

A store's rows lie in host memory, in a file, or are computed on each access. It gives rows as a
NumPy array, or as tensors on a device; some stores are views of others.

A digest ignores the last digits of float32 features, in which standardised rows differ between
processors, and covers every bit of a label.
"""

from __future__ import annotations

import weakref
import zlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import SpecError
from gpukeras.core.memory import aligned_empty
from gpukeras.core.options import DatasetSpec
from gpukeras.core.progress import count_pass
from gpukeras.data.arrays import ALL_ROWS, BLOCK_BYTES, EncodeOptions, Notes, row_blocks
from gpukeras.data.files.files import AnyFile, Skipped
from gpukeras.data.recipe.columns import Learning, note_numbers
from gpukeras.data.recipe.recipe import ArrayEncoding, Encoding
from gpukeras.data.recipe.text_vectorization import TextSpec

# Buffers ------------------------------------------------------------------------------------------

LEAST_BYTES = 2**20  # the C library reuses smaller blocks itself


class RowBuffers:
    """Gathers rows of an array; a buffer is used again when no tensor refers to its rows.

    Args:
        array: One entry per row.
    """

    def __init__(self, array: np.ndarray) -> None:
        """Starts without buffers."""
        self._array = array
        # One at a time is free in a training; a further one, which a compilation held, is dropped.
        self._free: deque[np.ndarray] = deque(maxlen=1)

    def gather(self, rows: np.ndarray) -> Any:
        """Returns a tensor of the given rows, whose memory returns here when it is freed.

        Row numbers may have several axes, always the same ones after the first.

        The tensor and its slices refer to the array that is given away here, and they alone do:
        NumPy's slices would refer to the buffer.
        """
        buffer = self._take_buffer(rows.shape)
        gathered = buffer[: len(rows)]
        # A mode other than "raise" writes into `out` directly.
        np.take(self._array, rows, axis=0, out=gathered, mode="clip")
        weakref.finalize(gathered, self._free.append, buffer).atexit = False
        return tensor_ops.adopt_array(gathered)

    def _take_buffer(self, rows: tuple[int, ...]) -> np.ndarray:
        """Returns a free buffer; if none is large enough, they are of an earlier size."""
        while self._free:
            buffer = self._free.pop()
            if len(buffer) >= rows[0]:
                return buffer
        return aligned_empty((*rows, *self._array.shape[1:]), self._array.dtype)


# Stores -------------------------------------------------------------------------------------------

Rows = np.ndarray | slice  # row numbers in any order, or a range of them
Gatherer = Callable[[np.ndarray], Any]  # maps row numbers to a tensor
LOAD_BYTES = 4 * BLOCK_BYTES  # rows copied to a device at a time


class RowSource(ABC):
    """Rows with random access.

    Args:
        shape: Shape, rows first.
        dtype: The dtype of gathered rows.
        streamed: Why each block of rows is made on access, or "" for rows in memory.

    Attributes:
        texts: Strings that the codes stand for, by input name ("" for a single input), if any.
        movable: Whether all rows are ready to be copied to a device; false if making them is
            expensive or random.
    """

    movable = True
    texts: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float32, streamed: str = "") -> None:
        """Stores the properties that the plan reads."""
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.streamed = streamed
        self._loaded: dict[str, Any] = {}  # by device: a tensor of all rows

    def __len__(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of one gathered row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes of all rows as a device would hold them."""
        return len(self) * self.row_bytes

    @property
    def resident_bytes(self) -> int:
        """Host memory of the source in bytes: none where each block is read from files."""
        return 0

    @abstractmethod
    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows in host memory, in the order requested."""

    def blocks(self) -> Iterator[np.ndarray]:
        """Yields all rows in order, a block at a time."""
        return (self.gather(rows) for rows in row_blocks(len(self), self.row_bytes))

    def gatherer(self, place: str) -> Gatherer:
        """Returns a function that gathers rows as tensors on a device.

        On the CPU each block is made on access. On another device all rows are loaded once, one
        block at a time, and gathered there; the plan requests this only if they fit.
        """
        if place == "CPU:0":
            return lambda rows: tensor_ops.adopt_array(self.gather(rows))
        if place not in self._loaded:
            self._loaded[place] = self._load(place)
        loaded = self._loaded[place]
        return lambda rows: tensor_ops.take(loaded, rows)

    def reusing_gatherer(self) -> Gatherer:
        """Returns a gatherer for the CPU, which may use the memory of freed tensors again."""
        return self.gatherer("CPU:0")

    def _load(self, place: str) -> Any:
        """Loads all rows onto a device, with at most one block of them in host memory."""
        step = max(1, LOAD_BYTES // max(1, self.row_bytes))
        with runtime.on_device(place, soft=True):
            loaded = tensor_ops.allocate(self.shape, self.dtype)
            for start in range(0, len(self), step):
                rows = slice(start, min(start + step, len(self)))
                loaded = tensor_ops.store(loaded, start, self.gather(rows))
        return loaded


class MemoryRows(RowSource):
    """Rows in host memory; tensors share that memory from their first use.

    Args:
        array: One entry per row; aligned if it feeds a model (see `memory.aligned_empty()`).
    """

    def __init__(self, array: np.ndarray) -> None:
        """Stores the array without a copy."""
        super().__init__(array.shape, array.dtype)
        self.array = array
        self._tensors: dict[str, Any] = {}

    @property
    def resident_bytes(self) -> int:
        """Size of the array in bytes."""
        return self.array.nbytes

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows; a range without a copy."""
        return self.array[rows]

    def gatherer(self, place: str) -> Gatherer:
        """Returns the backend's gather on the device; TensorFlow's is multi-threaded."""
        if self.dtype == np.uint8 and place != "CPU:0":
            # On a GPU TensorFlow 2.21 gathers uint8 from variables (ResourceGather), not from
            # tensors (GatherV2 has no such kernel): it would gather the tensor on the host.
            return super().gatherer(place)
        tensor = self.tensor(place)
        return lambda rows: tensor_ops.take(tensor, rows)

    def reusing_gatherer(self) -> Gatherer:
        """Returns a gatherer with buffers of its own for large blocks."""
        small, buffers = self.gatherer("CPU:0"), RowBuffers(self.array)

        def gather(rows: np.ndarray) -> Any:
            large = rows.size * self.row_bytes >= LEAST_BYTES
            return buffers.gather(rows) if large else small(rows)

        return gather

    def tensor(self, place: str) -> Any:
        """Returns all rows as a tensor on a device; on the CPU without a copy."""
        if "CPU:0" not in self._tensors:
            with runtime.on_device("CPU:0", soft=True):
                self._tensors["CPU:0"] = tensor_ops.adopt_array(self.array)
        if place not in self._tensors:
            with runtime.on_device(place, soft=True):
                self._tensors[place] = tensor_ops.put(self._tensors["CPU:0"], place)
        return self._tensors[place]


def row_numbers(rows: Rows, count: int) -> np.ndarray:
    """Returns the row numbers of a range, or the given row numbers."""
    return np.arange(*rows.indices(count)) if isinstance(rows, slice) else np.asarray(rows)


# Views of other stores ----------------------------------------------------------------------------


class RenumberedRows(RowSource):
    """Rows of a source under other numbers; a device holds them once.

    Args:
        base: The source.
        rows: How many rows there are.
        find: Returns the numbers that rows have in the source.
    """

    def __init__(
        self, base: RowSource, rows: int, find: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        """Gathers nothing."""
        super().__init__((rows, *base.shape[1:]), base.dtype, base.streamed)
        self.movable, self.texts = base.movable, base.texts
        self._base, self._number = base, find

    @property
    def resident_bytes(self) -> int:
        """Host memory of the source in bytes."""
        return self._base.resident_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of the source's rows."""
        return self._base.stored_bytes

    def _find(self, rows: Rows) -> np.ndarray:
        return self._number(row_numbers(rows, len(self))).astype(np.int32, copy=False)

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows."""
        return self._base.gather(self._find(rows))

    def gatherer(self, place: str) -> Gatherer:
        """Returns the source's gatherer on a device."""
        gather = self._base.gatherer(place)
        return lambda rows: gather(self._find(rows))

    def reusing_gatherer(self) -> Gatherer:
        """Returns the gatherer that may use memory again."""
        gather = self._base.reusing_gatherer()
        return lambda rows: gather(self._find(rows))


def repeat_rows(base: RowSource, times: int) -> RenumberedRows:
    """Returns a source's rows several times: number `len(base) + 3` is number 3 again."""
    return RenumberedRows(base, len(base) * times, lambda numbers: numbers % len(base))


class SelectedRows(RowSource):
    """Rows of a source, read where they are.

    Args:
        base: The source.
        rows: Row numbers in any order (int32).
    """

    def __init__(self, base: RowSource, rows: np.ndarray) -> None:
        """Gathers nothing."""
        super().__init__((len(rows), *base.shape[1:]), base.dtype, base.streamed)
        self.movable, self.texts = base.movable, base.texts
        self._base, self._rows = base, rows

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows."""
        return self._base.gather(self._rows[rows])


# Readers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ArraySchema:
    """What the rows of an array are.

    Args:
        row_shape: Shape of one row.
        dtype: The dtype of its values.
    """

    row_shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Reader(ABC):
    """Rows as they are stored: of columns in Arrow's record batches, of arrays in NumPy's arrays.

    Args:
        format: What is read, such as "csv".
        schema: Arrow's schema of the batches, or an `ArraySchema`.
        arg: Name of the user's argument, for error messages.
        notes: Sentences for the user.

    Attributes:
        files: The files; none of rows that come once.
        file_rows: Rows of each file that a pass has read to its end, of tables.
        skipped: Rows and files that the latest pass has left out so far.
    """

    files: tuple[AnyFile, ...] = ()

    def __init__(self, format: str, schema: Any, arg: str, notes: Iterable[str] = ()) -> None:
        """Stores the arguments; reads no data."""
        self.format = format
        self.schema = schema
        self.arg = arg
        self.file_rows: dict[AnyFile, int] = {}
        self.skipped = Skipped()
        self._notes = dict.fromkeys(notes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(self.schema.names)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user, including the findings of passes so far."""
        return tuple(self._notes)

    @property
    def known_rows(self) -> int | None:
        """Number of rows, or None if only reading reveals it."""
        return None

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """Yields all rows in order, in batches of a few MiB; each call reads them again.

        Raises:
            DataError: for rows that cannot be read; names file, row and column, where they are
                known.
        """

    def counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields the batches of a pass, and tells the call's listener how far it has come."""
        return count_pass(batches, "reading", self.known_rows, len)

    def note_rounded(self, name: str) -> None:
        """Notes that a column has integers beyond 2^53, which float64 (R, models) cannot hold."""
        said = f"Column `{name}` of `{self.arg}` has whole numbers beyond 2^53: they are rounded."
        self._notes.setdefault(said)


class ArrayReader(Reader):
    """Rows of an array, which have numbers and are read in any order."""

    schema: ArraySchema

    @property
    @abstractmethod
    def known_rows(self) -> int:
        """Number of rows."""

    @property
    @abstractmethod
    def streamed(self) -> str:
        """Why each block of rows is read on access, for the plan."""

    @abstractmethod
    def gather(
        self, rows: Rows, dtype: Any, encode: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> np.ndarray:
        """Returns rows by number in the order requested.

        Args:
            rows: Row numbers, or a range of them.
            dtype: The dtype of the result.
            encode: Function applied to the values read, or None.
        """


# Features -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FeatureRequest:
    """What features are opened, and how: one signature for rows of all kinds.

    Args:
        features: The features in the form that R passes them; see `registry.open_features()`.
        arg: Name of the user's argument, for error messages.
        spec: The dataset options for reading and learning.
        encoding: The learned encoding, if it is known.
        text: Which columns are text, and how they are encoded.
    """

    features: Mapping[str, Any]
    arg: str = "x"
    spec: DatasetSpec = field(default_factory=DatasetSpec)
    encoding: Encoding | None = None
    text: TextSpec | None = None


class Features(ABC):
    """Features of one dataset, from memory or from files.

    Attributes:
        arg: Name of the user's argument, for error messages.
        refuses: Noun for error messages if rows can be neither dropped nor imputed, or "".
        formula: R's formula of the label and the feature columns, or "".
        skipped: Description of what `on_error = "skip"` left out, or "".
        share: A phrase for the part of the files that this worker reads, or "".
        notes: Sentences about surprising properties of the data.
    """

    arg: str
    refuses: str = ""
    formula: str = ""
    skipped: str = ""
    share: str = ""
    notes: tuple[str, ...] = ()

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of rows."""

    @property
    @abstractmethod
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of one row, or None if only an encoding defines it."""

    @abstractmethod
    def learn(self, how: Learning) -> Encoding:
        """Learns the encoding.

        Args:
            how: The rows to learn from, and the dataset's options; who uses its `arg` and its
                `text` sets them.
        """

    @abstractmethod
    def encode(self, encoding: Encoding, how: EncodeOptions = ALL_ROWS) -> RowSource:
        """Returns the encoded rows.

        Args:
            encoding: The encoding to apply.
            how: The rows to use, and where to note what they lose.
        """

    def plain_encoding(self) -> Encoding:
        """Returns an encoding that uses numbers unchanged, for rows whose shape is known."""
        return ArrayEncoding(self.row_shape or ())

    def encode_later(self, encoding: Encoding, notes: Notes | None = None) -> RowSource:
        """Returns all rows for a single pass; encodes each on access where that costs nothing more.

        Errors and notes are those of `encode()`, but may come later.
        """
        return self.encode(encoding, EncodeOptions(notes=notes))

    def order_as(self, encoding: Encoding) -> Features:
        """Returns the same rows with columns in the encoding's order, if columns have names."""
        return self

    def texts(self) -> Collection[str]:
        """Returns the names of the text columns."""
        return ()

    def remarks(self, encoding: Encoding, spec: DatasetSpec) -> tuple[str, ...]:
        """Returns sentences about surprising properties of the learned encoding."""
        chosen = () if isinstance(spec.encode, str) else spec.encode
        texts = [name for name in self.texts() if name not in chosen]
        return note_numbers(encoding.columns, texts, self.arg)

    def labels(self) -> Mapping[str, Any] | None:
        """Returns the labels in the data, as R passes labels, or None; call it once."""
        return None

    def weights(self) -> np.ndarray | None:
        """Returns the weights in the data, or None; call it once."""
        return None

    def images(self, complete: np.ndarray | None = None) -> tuple[Any, Any] | None:
        """Returns the image files of the rows to use and the form of their rows, or None."""
        return None

    def find_complete(self, known: Collection[str] | None = None) -> np.ndarray:
        """Returns the mask of rows without a missing feature; the mask may be all False."""
        return self.count_missing(known)[0]

    def count_missing(self, known: Collection[str] | None) -> tuple[np.ndarray, dict[str, int]]:
        """Returns the mask of rows without a missing feature, and the missing counts by column.

        See `imputation`.
        """
        raise self._refuse("drop")

    def check_policy(self, na: str) -> None:
        """Checks that the source supports a policy for missing values.

        Raises:
            SpecError: if rows can be neither dropped nor imputed.
        """
        if na != "error" and self.refuses:
            raise self._refuse(na)

    def _refuse(self, na: str) -> SpecError:
        return SpecError(
            f'`na` = "{na}" needs rows in memory: `{self.arg}` is {self.refuses}.',
            hint="Drop or impute the missing values first.",
            arg="na",
        )


# Digests ------------------------------------------------------------------------------------------

MOST_ROWS = 10_000  # digests of a dataset
MOST_BYTES = 16 * 2**20  # of the rows that are read for them: 0.05 s
SAMPLED_ROWS = 32  # of sources that compute their rows, such as images


def round_floats(values: np.ndarray) -> np.ndarray:
    """Returns the bits of float32 numbers without the last 12 (uint32)."""
    bits: np.ndarray = values.astype(np.float32, copy=False).view(np.uint32) >> np.uint32(12)
    return bits


def sample_rows(source: RowSource, rows: np.ndarray, most: int = MOST_ROWS) -> np.ndarray:
    """Returns evenly spread row numbers, as many as are cheap to read; all of a small dataset.

    Args:
        source: The features.
        rows: The row numbers to choose from.
        most: The most rows.
    """
    cheap = SAMPLED_ROWS if source.streamed else MOST_BYTES // max(1, source.row_bytes)
    count = min(len(rows), most, max(1, cheap))
    places = np.linspace(0, len(rows) - 1, count).round().astype(np.int64)
    return rows[np.unique(places)] if count < len(rows) else rows


def digest_rows(sources: Sequence[RowSource], rows: np.ndarray) -> np.ndarray:
    """Returns a digest of each row's features and labels (uint32).

    Args:
        sources: The features and the labels.
        rows: Row numbers.
    """
    total = np.zeros(len(rows), np.uint64)
    for place, source in enumerate(sources):
        bits = _to_bits(source, source.gather(rows), exact=place > 0)
        draw = np.random.default_rng(place)
        factors = draw.integers(2**63, size=bits.shape[1], dtype=np.uint64) * np.uint64(2)
        factors += np.uint64(1)
        for column, factor in enumerate(factors) if len(rows) > len(factors) else ():
            total += bits[:, column] * factor
        if len(rows) <= len(factors):  # few wide rows, such as images
            total += np.array([(row * factors).sum(dtype=np.uint64) for row in bits], np.uint64)
    return (total >> np.uint64(32)).astype(np.uint32)


def can_digest(sources: Sequence[RowSource]) -> bool:
    """Whether rows of equal values have equal digests: not those of several inputs with texts."""
    return all(set(source.texts) <= {""} for source in sources)


def _to_bits(source: RowSource, values: np.ndarray, exact: bool) -> np.ndarray:
    """Returns the numbers of each row (rows, numbers; uint64); texts count by their bytes."""
    values = values.reshape(len(values), -1)
    if source.texts:
        known = [zlib.crc32(text.encode("utf-8", "replace")) for text in source.texts[""]]
        bits = np.array(known, np.uint64)[values.astype(np.int64)]
    elif values.dtype.kind != "f":
        bits = values.astype(np.int64, copy=False).view(np.uint64)
    elif exact:
        bits = values.astype(np.float32, copy=False).view(np.uint32).astype(np.uint64)
    else:
        bits = round_floats(np.ascontiguousarray(values)).astype(np.uint64)
    return bits
