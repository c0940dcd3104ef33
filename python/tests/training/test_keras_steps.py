from types import SimpleNamespace

import pytest

from gpukeras.training.keras_steps import KerasSteps, count_keras_steps


@pytest.mark.parametrize(("steps", "expected"), [(1, 1), (1023, 1), (3125, 3), (10**6, 20)])
def test_ticks(steps, expected):
    assert count_keras_steps(steps) == expected


@pytest.mark.parametrize(
    ("steps", "capacity", "expected"), [(3125, 3125, 1), (3125, 1563, 2), (3125, 44, 3)]
)
def test_a_step_is_at_least_a_block(steps, capacity, expected):
    assert count_keras_steps(steps, capacity=capacity) == expected


class Runner:
    """Takes the targets that it is given."""

    def __init__(self):
        self.targets = []

    def advance(self, target):
        """Notes a target."""
        self.targets.append(target)
        return {}


@pytest.mark.parametrize(
    ("steps", "capacity", "targets"),
    [
        (3125, 782, [782, 2346, 3125]),
        (3125, 1000, [1000, 2000, 3125]),
        (2048, 1024, [1024, 2048]),
        (2500, 1250, [1250, 2500]),
        (30_000, 44, [1496, 2992, 4488, 5984, 7480]),
    ],
)
def test_steps_end_where_blocks_do(steps, capacity, targets):
    loader, runner = SimpleNamespace(steps=steps, exact=True, capacity=capacity), Runner()
    mapped = KerasSteps(loader, runner, (), False, 1)
    for _ in range(mapped.count):
        mapped.advance()
    assert runner.targets[: len(targets)] == targets
    assert runner.targets[-1] == steps
    assert runner.targets == sorted(runner.targets)


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
