"""The rows of a source several times, one after another, without copies."""

from __future__ import annotations

import numpy as np

from gpukeras.data.sources.row_store import Gatherer, Rows, RowSource, row_numbers


class RepeatedRows(RowSource):
    """Rows of a source: number `len(base) + 3` is number 3 again.

    Args:
        base: The source.
        times: How often its rows come.
    """

    def __init__(self, base: RowSource, times: int) -> None:
        """Gathers nothing."""
        super().__init__((len(base) * times, *base.shape[1:]), base.dtype, base.streamed)
        self.movable, self.texts = base.movable, base.texts
        self._base = base

    @property
    def resident_bytes(self) -> int:
        """Host memory of the source in bytes."""
        return self._base.resident_bytes

    @property
    def stored_bytes(self) -> int:
        """Bytes of the source's rows, which a device holds once."""
        return self._base.stored_bytes

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows."""
        return self._base.gather(self._find(rows))

    def gatherer(self, place: str) -> Gatherer:
        """Returns the source's gatherer on a device."""
        gather = self._base.gatherer(place)
        return lambda rows: gather(self._find(rows))

    def reusing_gatherer(self) -> Gatherer:
        """Returns the gatherer that may use memory again."""
        gather = self._base.reusing_gatherer()
        return lambda rows: gather(self._find(rows))

    def _find(self, rows: Rows) -> np.ndarray:
        found = row_numbers(rows, len(self)) % len(self._base)
        return found.astype(np.int32, copy=False)
