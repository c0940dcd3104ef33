"""Storage of rows: features, labels or weights, one entry per row, read by row number.

Training, evaluation and prediction read rows from a `RowSource`, whether they are staged in memory,
on a device, in a file, or in a sparse form.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gpukeras.backend import runtime, tensor_ops
from gpukeras.data.arrays import BLOCK_BYTES, row_blocks
from gpukeras.data.sources.row_buffers import LEAST_BYTES, RowBuffers

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
        lease: What keeps the files of the rows as long as it lives, or None.
    """

    movable = True
    lease: Any = None
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
