import pytest

from gpukeras.training.keras_steps import count_keras_steps


@pytest.mark.parametrize(("steps", "expected"), [(1, 1), (1023, 1), (3125, 3), (10**6, 20)])
def test_ticks(steps, expected):
    assert count_keras_steps(steps) == expected


@pytest.mark.parametrize(
    ("steps", "exact", "each", "expected"),
    [
        (600, True, True, 600),
        (600, False, False, 1),
        (None, False, False, 1),
        (9, False, True, 9),
        (None, False, True, None),
    ],
)
def test_ticks_of_rows_in_sequence(steps, exact, each, expected):
    assert count_keras_steps(steps, exact, each) == expected
