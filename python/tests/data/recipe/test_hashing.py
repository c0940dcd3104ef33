import numpy as np
import pytest

from gpukeras.data.recipe import columns


@pytest.mark.parametrize(
    ("level", "number"),
    [
        ("", 13020603013274838756),
        ("a", 3405396810240292928),
        ("größe", 16832822397561338100),
        ("日本", 4223062404410717160),
    ],
)
def test_the_hash_never_changes(level, number):
    assert columns.choose_bin(level, 2**64) == number


def test_bins_do_not_depend_on_the_other_levels():
    levels = [f"level {i}" for i in range(1000)]
    bins = columns.choose_bins(levels, 64)
    assert bins.dtype == np.int32
    np.testing.assert_array_equal(columns.choose_bins(levels[::-1], 64), bins[::-1])
    assert bins[7] == columns.choose_bin("level 7", 64)


def test_levels_spread_evenly():
    counts = np.bincount(columns.choose_bins(map(str, range(64_000)), 64), minlength=64)
    assert 850 < counts.min() <= counts.max() < 1150


def test_a_text_that_is_no_valid_unicode_has_a_bin():
    assert 0 <= columns.choose_bin("\ud800", 8) < 8
