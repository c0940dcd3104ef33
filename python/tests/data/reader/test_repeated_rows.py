import numpy as np

from gpukeras.core.memory import aligned_empty
from gpukeras.data.reader.rows import MemoryRows, repeat_rows


def test_rows_come_again_without_a_copy():
    array = aligned_empty((4, 2))
    array[...] = np.arange(8).reshape(4, 2)
    rows = repeat_rows(MemoryRows(array), 3)
    assert (len(rows), rows.stored_bytes) == (12, array.nbytes)
    np.testing.assert_array_equal(rows.gather(np.array([5, 0, 11])), array[[1, 0, 3]])
    np.testing.assert_array_equal(rows.gather(slice(3, 6)), array[[3, 0, 1]])
