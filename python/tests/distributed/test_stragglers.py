"""Workers that the others wait for."""

import pytest

from gpukeras.distributed.stragglers import explain_stragglers, find_stragglers


@pytest.mark.parametrize(
    ("own_s", "found"),
    [
        ([], []),
        ([5.0], []),
        ([2.0, 8.0], [1]),
        ([8.0, 2.0, 2.2, 1.9], [0]),
        ([7.0, 8.0], []),  # 0.875 of it: no straggler
        ([0.01, 0.9], []),  # less than a second in a whole training
        ([2.0, 9.0, 9.0, 2.0, 2.0], [1, 2]),
    ],
)
def test_a_straggler_is_slower_than_the_median_of_the_others(own_s, found):
    assert find_stragglers(own_s) == found


def test_a_straggler_is_named():
    (note,) = explain_stragglers([2.0, 8.25], ["worker 1 (a:1)", "worker 2 (b:1)"])
    assert note == (
        "Worker 2 (b:1) was slow: outside of the steps it took 8.2 s for its rows, callbacks and "
        "R, and the others 2.0 s (median), so they waited for it."
    )
