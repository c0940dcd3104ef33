import numpy as np
import pytest

from gpukeras.search.sampling import draw_latin, draw_settings
from gpukeras.search.space import parse_space

SPACE = parse_space(
    {
        "rate": {"kind": "range", "low": 1e-4, "high": 1.0, "log": True},
        "units": {"kind": "range", "low": 1, "high": 10, "integer": True},
        "optimizer": {"kind": "values", "values": ["adam", "sgd"]},
        "momentum": {"kind": "range", "low": 0, "high": 1, "when": {"optimizer": "sgd"}},
    }
)


def test_a_latin_hypercube_has_each_part_of_each_range_once():
    points = draw_latin(50, 3, np.random.default_rng(1))
    assert points.shape == (50, 3)
    for column in (points * 50).astype(int).T:
        assert sorted(column.tolist()) == list(range(50))
    assert abs(np.corrcoef(points.T)[0, 1]) < 0.4  # no diagonal


def test_a_latin_design_covers_the_ranges_of_settings():
    drawn = draw_settings(SPACE, 20, "latin", seed=3)
    decades = np.floor(np.log10([each["rate"] for each in drawn])).astype(int)
    assert np.bincount(decades + 4).tolist() == [5, 5, 5, 5]
    assert np.bincount([each["units"] for each in drawn]).tolist() == [0, *[2] * 10]
    assert sum(each["optimizer"] == "sgd" for each in drawn) == 10
    assert all(("momentum" in each) == (each["optimizer"] == "sgd") for each in drawn)


@pytest.mark.parametrize("design", ["latin", "random"])
def test_the_same_seed_draws_the_same_settings(design):
    first, again, other = (draw_settings(SPACE, 8, design, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_designs_differ():
    assert draw_settings(SPACE, 8, "latin", 1) != draw_settings(SPACE, 8, "random", 1)


def test_more_trials_leave_the_first_ones_as_they_are_and_differ_from_them():
    first = draw_settings(SPACE, 8, "latin", 1)
    more = draw_settings(SPACE, 4, "latin", 1, first)
    assert len(more) == 4
    assert not [each for each in more if each in first]
    assert more == draw_settings(SPACE, 4, "latin", 1, first)


@pytest.mark.parametrize("design", ["latin", "random"])
def test_few_combinations_are_all_drawn_once(design):
    space = parse_space(
        {
            "a": {"kind": "values", "values": [1, 2, 3]},
            "b": {"kind": "values", "values": ["x", "y"]},
        }
    )
    drawn = draw_settings(space, 20, design, seed=1)
    assert sorted((each["a"], each["b"]) for each in drawn) == [
        (a, b) for a in (1, 2, 3) for b in "xy"
    ]
