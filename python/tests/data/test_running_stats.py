import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from gpukeras.data import arrays
from gpukeras.data.arrays import RunningStats


@given(npst.arrays(np.float64, (20, 3), elements=st.floats(-1e6, 1e6)), st.integers(1, 20))
def test_moments_do_not_depend_on_the_blocks(values, block):
    merged = RunningStats()
    for start in range(0, 20, block):
        merged.add(values[start : start + block])
    mean, _ = arrays.moments(values, np.ones(20, dtype=bool))
    np.testing.assert_allclose(merged.mean, mean, rtol=1e-9, atol=1e-6)
    spread = values.std(axis=0)
    expected = np.where(spread > 1e-6, spread, merged.deviation)
    np.testing.assert_allclose(merged.deviation, expected, rtol=1e-6)


def test_what_is_constant_has_no_deviation_however_far_from_0():
    found = RunningStats()
    for block in (np.full(7, 1e15 + 0.1), np.full(5, 1e15 + 0.1)):
        found.add(block)
    assert (found.mean, found.deviation, found.count) == (1e15 + 0.1, 0.0, 12)


def test_no_rows_change_nothing():
    found = RunningStats()
    found.add(np.empty((0, 2)))
    found.add(np.array([[1.0, 2.0], [3.0, 2.0]]))
    found.add(np.empty((0, 2)))
    np.testing.assert_array_equal(found.mean, [2, 2])
    np.testing.assert_array_equal(found.deviation, [1, 0])
