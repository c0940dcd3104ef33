"""Masks of pruning as a member of an archive: a bit a weight."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MEMBER = "gpukeras-masks.npz"


def pack_masks(masks: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """Masks as a member of the archive, a bit a weight, in their order; none of no masks."""
    if not masks:
        return {}
    file = io.BytesIO()
    bits = [np.packbits(np.asarray(mask, dtype=bool)) for mask in masks.values()]
    members: dict[str, Any] = {str(place): array for place, array in enumerate(bits)}
    np.savez(file, **members)
    return {MEMBER: file.getvalue()}


def unpack_masks(content: bytes, listed: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The masks of `pack_masks()`, by path.

    Args:
        content: The member of the archive.
        listed: `{path, shape}` of each.

    Raises:
        ValueError, KeyError: if they are not those.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        found = {}
        for place, entry in enumerate(listed):
            shape = tuple(int(size) for size in entry["shape"])
            packed, size = file[str(place)], math.prod(shape)
            if packed.shape != (-(-size // 8),):  # unpackbits() would add zeros
                raise ValueError("a mask of another shape")
            bits = np.unpackbits(packed, count=size)
            found[str(entry["path"])] = bits.reshape(shape).astype(bool)
    return found
