"""A Parquet file of the rows that R has in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet


def write_rows(path: str, x: np.ndarray, y: np.ndarray) -> None:
    """Columns `x1`, ... of numbers, and the class `y` as text, so that it is one."""
    table = {f"x{column + 1}": x[:, column] for column in range(x.shape[1])}
    table["y"] = np.array([f"class {label}" for label in range(int(y.max()) + 1)])[y]
    pa.parquet.write_table(pa.table(table), path)
