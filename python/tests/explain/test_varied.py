import numpy as np

from gpukeras.data.reader.rows import MemoryRows
from gpukeras.explain.varied import Variation, VariedRows


def replaced(rows, places, values):
    rows = rows.copy()
    rows[..., places] = values
    return rows


def test_rows_of_all_variations_follow_one_another():
    for shape in ((4,), (3, 4)):
        x = np.random.default_rng(1).normal(size=(5, *shape)).astype(np.float32)
        taken = np.array([4, 0, 2])
        rows = x[taken]
        own = np.arange(np.prod(rows[..., :2].shape)).reshape(rows[..., :2].shape)
        variations = [
            Variation(np.zeros(0, int), np.zeros(0)),
            Variation(np.array([1, 3]), own),
            Variation(np.array([2]), np.array([7.0])),
        ]
        varied = VariedRows(MemoryRows(x), taken, variations)
        expected = np.concatenate([rows, replaced(rows, [1, 3], own), replaced(rows, [2], 7)])
        assert varied.shape == expected.shape
        for some in (slice(0, 9), slice(2, 7), slice(8, 20), np.array([8, 0, 3])):
            np.testing.assert_array_equal(varied.gather(some), expected[some])
        assert varied.gather(slice(0, 2)).ctypes.data % 64 == 0
    np.testing.assert_array_equal(x[taken], rows)
