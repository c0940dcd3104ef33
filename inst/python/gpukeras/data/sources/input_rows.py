"""Rows of several inputs, each in its own storage: images as bytes beside numbers as floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.memory import aligned_empty
from gpukeras.data.sources.row_store import Gatherer, Rows, RowSource, row_numbers


class InputRows(RowSource):
    """Rows of several inputs, flattened side by side as float32 when they are gathered.

    Images keep their bytes in storage, a quarter of float32's memory.

    Args:
        parts: The rows of each input.
    """

    def __init__(self, parts: Sequence[RowSource]) -> None:
        """Gathers nothing."""
        self._parts = tuple(parts)
        self._widths = [int(np.prod(part.shape[1:])) for part in parts]
        streamed = "; ".join(part.streamed for part in parts if part.streamed)
        super().__init__((len(parts[0]), sum(self._widths)), np.float32, streamed)
        self.movable = all(part.movable for part in parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all rows as a device would hold them."""
        return sum(part.stored_bytes for part in self._parts)

    @property
    def resident_bytes(self) -> int:
        """Host memory of the inputs' rows in bytes."""
        return sum(part.resident_bytes for part in self._parts)

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows in host memory."""
        numbers = row_numbers(rows, len(self))
        packed, start = aligned_empty((len(numbers), self.shape[1])), 0
        for part, width in zip(self._parts, self._widths, strict=True):
            packed[:, start : start + width] = part.gather(numbers).reshape(-1, width)
            start += width
        return packed

    def gatherer(self, place: str) -> Gatherer:
        """Returns a function that gathers rows as tensors; on a device, from the stored bytes."""
        if place == "CPU:0":
            return super().gatherer(place)
        ops, gatherers = runtime.keras().ops, [part.gatherer(place) for part in self._parts]

        def gather(rows: np.ndarray) -> Any:
            parts = [take(rows) for take in gatherers]
            flat = [
                ops.reshape(ops.cast(part, "float32"), (-1, width))
                for part, width in zip(parts, self._widths, strict=True)
            ]
            return ops.concatenate(flat, axis=1)

        return gather
