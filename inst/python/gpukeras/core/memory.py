"""Allocates memory that TensorFlow and JAX can use without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

ALIGNMENT = 64  # bytes; with a smaller alignment of adopted memory TensorFlow aborts the process


def aligned_empty(shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    """Returns an uninitialised C-ordered array whose memory starts on a 64-byte boundary."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    buffer = np.empty(count * dtype.itemsize + ALIGNMENT, dtype=np.uint8)
    offset = -buffer.ctypes.data % ALIGNMENT
    return buffer[offset : offset + count * dtype.itemsize].view(dtype).reshape(shape)
