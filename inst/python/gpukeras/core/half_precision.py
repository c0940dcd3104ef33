"""Numbers of 16 bits, which mixed precision computes in, as NumPy and R know them.

NumPy takes bfloat16, an extension type, for bytes without a meaning; R has no such numbers at all.
"""

from __future__ import annotations

from typing import Any

import numpy as np

HALF = ("float16", "bfloat16")


def wide_dtype(dtype: np.dtype) -> np.dtype:
    """Returns float32, which holds them exactly, for numbers of 16 bits; else the dtype itself."""
    return np.dtype(np.float32) if dtype.name in HALF else dtype


def widen_half(values: Any) -> Any:
    """Returns an array of numbers of 16 bits as float32; anything else as it is."""
    if not isinstance(values, (np.ndarray, np.generic)):
        return values
    return values.astype(wide_dtype(values.dtype), copy=False)
