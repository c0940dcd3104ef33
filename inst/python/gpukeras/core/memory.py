"""Allocates memory that TensorFlow and JAX can use without a copy."""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes; with a smaller alignment of adopted memory TensorFlow aborts the process

PAGE = mmap.PAGESIZE
POPULATE = 23  # MADV_POPULATE_WRITE, of Linux from 5.14 on
POPULATE_BYTES = 8 * 2**20  # per call, between which other threads may map memory


def aligned_empty(shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    """Returns an uninitialised C-ordered array whose memory starts on a 64-byte boundary."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    buffer = np.empty(count * dtype.itemsize + ALIGNMENT, dtype=np.uint8)
    offset = -buffer.ctypes.data % ALIGNMENT
    return buffer[offset : offset + count * dtype.itemsize].view(dtype).reshape(shape)


def aligned_copy(values: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
    """Returns a copy in aligned, C-ordered memory."""
    out = aligned_empty(values.shape, dtype)
    out[...] = values
    return out


def populate(array: np.ndarray) -> threading.Thread | None:
    """Asks the system for an array's memory in a thread, ahead of whoever writes it.

    A page is cleared when it is first written. A virtual machine may have to get it from its host
    first: 250 MiB took 0.6 s, as long as the encoding of the rows that they were for.

    Args:
        array: A contiguous array; its values are left alone.

    Returns:
        The thread, or None where the system cannot do it.
    """
    if sys.platform != "linux":
        return None
    thread = threading.Thread(target=_populate, args=(array,), name="gpukeras-memory", daemon=True)
    thread.start()
    return thread


def _populate(array: np.ndarray) -> None:
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    end = array.ctypes.data + array.nbytes
    for start in range(-(-array.ctypes.data // PAGE) * PAGE, end, POPULATE_BYTES):
        size = min(POPULATE_BYTES, end - start) // PAGE * PAGE
        if advise(start, size, POPULATE) != 0:
            return
