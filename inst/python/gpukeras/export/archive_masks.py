"""Stores pruning masks as a member of an archive, one bit per weight."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MEMBER = "gpukeras-masks.npz"


def pack_masks(masks: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    """Packs masks into a member of the archive, one bit per weight, in order; {} without masks."""
    if not masks:
        return {}
    file = io.BytesIO()
    bits = [np.packbits(np.asarray(mask, dtype=bool)) for mask in masks.values()]
    members: dict[str, Any] = {str(place): array for place, array in enumerate(bits)}
    np.savez(file, **members)
    return {MEMBER: file.getvalue()}


def unpack_masks(content: bytes, listed: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Returns the masks that `pack_masks()` packed, by path.

    Args:
        content: The member of the archive.
        listed: `{path, shape}` of each mask.

    Raises:
        ValueError, KeyError: if the content does not match.
    """
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        masks = {}
        for place, entry in enumerate(listed):
            shape = tuple(int(size) for size in entry["shape"])
            packed, size = file[str(place)], math.prod(shape)
            if packed.shape != (-(-size // 8),):  # unpackbits() would add zeros
                raise ValueError("a mask of another shape")
            bits = np.unpackbits(packed, count=size)
            masks[str(entry["path"])] = bits.reshape(shape).astype(bool)
    return masks
