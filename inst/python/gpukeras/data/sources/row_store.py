"""Where rows live: features, labels or weights, one entry a row, read by their numbers.

What trains, evaluates and predicts asks a `RowSource` for rows and does not know whether they are
staged in memory, on a device, in a file, or in a form that is not dense.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.data.arrays import BLOCK_BYTES

Rows = np.ndarray | slice  # row numbers in any order, or a range of them
Gatherer = Callable[[np.ndarray], Any]  # row numbers to a tensor
LOAD_BYTES = 4 * BLOCK_BYTES  # of rows on their way to a device


class RowSource(ABC):
    """Rows that can be read in any order.

    Args:
        shape: Rows first.
        dtype: Of what is gathered.
        streamed: Why each block of rows must be made anew, or "" for rows that lie in memory.

    Attributes:
        texts: What codes stand for by the input's name ("" for the only one), where there are any.
        movable: Whether all rows lie ready, so that a device could take them; not so where making
            them costs much, or makes other rows each time.
    """

    movable = True
    texts: Mapping[str, Sequence[str]] = MappingProxyType({})

    def __init__(self, shape: tuple[int, ...], dtype: Any = np.float32, streamed: str = "") -> None:
        """Keeps what the plan needs to know."""
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.streamed = streamed
        self._loaded: dict[str, Any] = {}  # by device: all rows there

    def __len__(self) -> int:
        """Rows."""
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        """Bytes of one gathered row."""
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    @abstractmethod
    def resident_bytes(self) -> int:
        """Host memory that the source holds itself."""

    @abstractmethod
    def gather(self, rows: Rows) -> np.ndarray:
        """Those rows in host memory, in the order asked for."""

    def gatherer(self, place: str) -> Gatherer:
        """What gives tensors of rows on a device.

        On the CPU each block is made when it is asked for. On another device all rows are loaded
        once, a block at a time, and gathered there: the plan asks for that where they fit.
        """
        if place == "CPU:0":
            return lambda rows: runtime.adopt_array(self.gather(rows))
        if place not in self._loaded:
            self._loaded[place] = self._load(place)
        loaded, tf = self._loaded[place], runtime.tensorflow()
        return lambda rows: tf.gather(loaded, rows)

    def _load(self, place: str) -> Any:
        """All rows on a device, without more than a block of them in host memory."""
        tf, step = runtime.tensorflow(), max(1, LOAD_BYTES // max(1, self.row_bytes))
        with runtime.on_device(place, soft=True):
            loaded = tf.Variable(tf.zeros(self.shape, self.dtype), trainable=False)
            for start in range(0, len(self), step):
                rows = slice(start, min(start + step, len(self)))
                with tf.device("/CPU:0"):
                    block = tf.constant(self.gather(rows))
                loaded[rows].assign(block)
        return loaded


class MemoryRows(RowSource):
    """Rows in host memory; tensors adopt that memory on first use.

    Args:
        array: One entry a row; aligned if it is to be fed (see `arrays.aligned_empty()`).
    """

    def __init__(self, array: np.ndarray) -> None:
        """Keeps the array itself."""
        super().__init__(array.shape, array.dtype)
        self.array = array
        self._tensors: dict[str, Any] = {}

    @property
    def resident_bytes(self) -> int:
        """Bytes of the array."""
        return self.array.nbytes

    def gather(self, rows: Rows) -> np.ndarray:
        """Those rows; of a range without a copy."""
        return self.array[rows]

    def gatherer(self, place: str) -> Gatherer:
        """TensorFlow's own multi-threaded gather, where the rows are."""
        if self.dtype == np.uint8 and place != "CPU:0":
            # On a GPU TensorFlow 2.21 gathers bytes from variables (ResourceGather), not from
            # tensors (GatherV2 has no such kernel): the tensor would be gathered on the host.
            return super().gatherer(place)
        tensor, tf = self.tensor(place), runtime.tensorflow()
        return lambda rows: tf.gather(tensor, rows)

    def tensor(self, place: str) -> Any:
        """All rows as a tensor on a device; on the CPU without a copy."""
        if "CPU:0" not in self._tensors:
            with runtime.on_device("CPU:0", soft=True):
                self._tensors["CPU:0"] = runtime.adopt_array(self.array)
        if place not in self._tensors:
            with runtime.on_device(place, soft=True):
                self._tensors[place] = runtime.tensorflow().identity(self._tensors["CPU:0"])
        return self._tensors[place]


def row_numbers(rows: Rows, count: int) -> np.ndarray:
    """Row numbers of a range, or those given."""
    return np.arange(*rows.indices(count)) if isinstance(rows, slice) else np.asarray(rows)
