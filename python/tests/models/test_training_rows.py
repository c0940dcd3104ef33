import numpy as np
import pytest

from gpukeras.models.training_rows import judge_found, tie_stored


def test_many_rows_are_known_by_some_of_them():
    draw = np.random.default_rng(4)
    known, asked = draw.integers(2**32, size=(2, 100_000), dtype=np.uint32)
    for share in (0.0, 0.3, 1.0):
        count = int(share * len(asked))
        rows = np.concatenate([known[:count], asked[count:]])
        assert judge_found(rows, known[::10], len(known)) == pytest.approx(share, abs=0.03)


def test_some_equal_rows_are_no_training_rows():
    known = np.repeat(np.arange(50, dtype=np.uint32), [4] * 25 + [1] * 25)  # 100 of 125 have a twin
    asked = np.concatenate([np.arange(25), np.arange(100, 105)]).astype(np.uint32)
    assert judge_found(asked, known, len(known)) == 0  # 25 of 30, where 24 are expected
    assert judge_found(known, known, len(known)) == 1
    assert judge_found(known[:0], known, len(known)) == 0


@pytest.mark.parametrize(
    "damage", [7, [3], [{}], [{"count": 1, "digests": "00000000ffffffff"}], [{"count": "x"}]]
)
def test_damaged_rows_are_refused(damage):
    with pytest.raises((TypeError, ValueError, KeyError)):
        tie_stored(object(), damage)
