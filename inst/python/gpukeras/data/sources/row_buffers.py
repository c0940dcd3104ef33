"""Gathers rows into memory that is used again.

A block of 8 to 24 MiB stays with the C library once it is freed: over several epochs the heap of a
training grew to three times its rows (glibc, on a busy computer). Giving it back to the system
costs the page faults of the next block: half as much processor time again in a compiled epoch.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import numpy as np

from gpukeras.backend import tensor_ops
from gpukeras.core.memory import aligned_empty

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
