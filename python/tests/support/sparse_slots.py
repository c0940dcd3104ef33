"""Sparse matrices as R sends them."""

import numpy as np


def slots(dense, names=()):
    """What R sends of a dgCMatrix."""
    dense = np.asarray(dense, dtype=np.float64)
    columns, rows = np.nonzero(dense.T)
    return {
        "kind": "sparse",
        "dim": list(dense.shape),
        "p": np.searchsorted(columns, np.arange(dense.shape[1] + 1)).astype(np.int32),
        "i": rows.astype(np.int32),
        "x": dense[rows, columns],
        "names": list(names),
    }
