import numpy as np

from gpukeras.data.reader.rows import MemoryRows, SelectedRows


def test_rows_are_those_of_the_source():
    base = MemoryRows(np.arange(20, dtype=np.float32).reshape(10, 2))
    some = SelectedRows(base, np.array([7, 1, 4], np.int32))
    assert (len(some), some.row_bytes) == (3, 8)
    np.testing.assert_array_equal(some.gather(slice(0, 2)), base.gather(np.array([7, 1])))
    np.testing.assert_array_equal(some.gather(np.array([2, 0])), base.gather(np.array([4, 7])))
