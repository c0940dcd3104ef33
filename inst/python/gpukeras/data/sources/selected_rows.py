"""Some rows of a source, such as those that a fold holds out."""

from __future__ import annotations

import numpy as np

from gpukeras.data.sources.row_store import Rows, RowSource


class SelectedRows(RowSource):
    """Rows of a source, read where they are.

    Args:
        base: The source.
        rows: Row numbers in any order (int32).
    """

    def __init__(self, base: RowSource, rows: np.ndarray) -> None:
        """Gathers nothing."""
        super().__init__((len(rows), *base.shape[1:]), base.dtype, base.streamed)
        self.movable, self.texts = base.movable, base.texts
        self._base, self._rows = base, rows

    def gather(self, rows: Rows) -> np.ndarray:
        """Returns the given rows."""
        return self._base.gather(self._rows[rows])
