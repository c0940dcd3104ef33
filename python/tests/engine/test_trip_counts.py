"""When XLA is told how many steps a program has, and which programs serve a call."""

import pytest

from gpukeras.engine import trip_counts


@pytest.mark.parametrize(
    ("device", "deterministic", "static", "reason"),
    [
        ("CPU:0", False, False, "as fast"),
        ("GPU:0", False, True, "wait for the host"),
        ("GPU:1", True, False, "last bit"),
    ],
)
def test_a_gpu_gets_known_trip_counts_unless_results_must_repeat(
    device, deterministic, static, reason
):
    choice = trip_counts.choose_loop(device, deterministic)
    assert choice.static is static
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("batches", "sizes"),
    [(0, (1,)), (1, (1,)), (7, (1,)), (8, (8, 1)), (391, (64, 8, 1)), (10**9, (512, 64, 8, 1))],
)
def test_no_program_is_longer_than_a_call(batches, sizes):
    assert trip_counts.choose_sizes(batches) == sizes


@pytest.mark.parametrize(
    ("count", "sizes", "parts"),
    [
        (0, (8, 1), []),
        (3, (1,), [1, 1, 1]),
        (17, (64, 8, 1), [8, 8, 1]),
        (1024, (512, 64, 8, 1), [512, 512]),
        (586, (512, 64, 8, 1), [512, 64, 8, 1, 1]),
    ],
)
def test_a_call_is_served_by_the_largest_programs_that_fit(count, sizes, parts):
    assert trip_counts.split_count(count, sizes) == parts
