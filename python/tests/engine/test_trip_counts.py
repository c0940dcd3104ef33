"""When XLA is told how many steps a program has, and which programs serve a call."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukeras.engine import trip_counts


@pytest.mark.parametrize(
    ("device", "deterministic", "known"),
    [("CPU:0", False, False), ("GPU:0", False, True), ("GPU:1", True, False)],
)
def test_a_gpu_gets_known_trip_counts_unless_results_must_repeat(device, deterministic, known):
    assert trip_counts.knows_trip_counts(device, deterministic) is known


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


@pytest.mark.parametrize(
    ("batches", "batch_s", "size"),
    [
        (64, 0.012, 64),  # conv1d, where a batch takes as long as on two cores
        (22, 0.09, 22),
        (22, 0.1, 11),
        (22, 0.25, 6),  # 6, 6, 6 and 4
        (22, 3.0, 1),
        (22, math.inf, 1),
        (1, 100.0, 1),
        (0, 0.0, 1),
        (4096, 1e-4, 4096),
        (4096, 1e-3, 1024),
    ],
)
def test_a_call_takes_a_block_or_an_equal_part_of_it(batches, batch_s, size):
    assert trip_counts.choose_size(batches, batch_s) == size


@given(st.integers(1, 4096), st.floats(1e-6, 10.0))
def test_a_block_takes_two_calls_unless_these_would_last_too_long(batches, batch_s):
    size = trip_counts.choose_size(batches, batch_s)
    calls = -(-batches // size)
    assert size == 1 or size * batch_s <= trip_counts.LONGEST_CALL_S
    assert calls <= 2 or batches * batch_s > 2 * trip_counts.LONGEST_CALL_S - 2 * batch_s
    assert calls <= 1 or batches * batch_s > trip_counts.LONGEST_CALL_S


def test_a_number_of_batches_gets_a_program_when_it_comes_again():
    sizes = trip_counts.ProgramSizes()
    assert not sizes.wants(1)
    assert not sizes.wants(1)
    calls = []
    for count in (20, 22, 18, 22, 18, 22, 20):  # the rest of a first block, blocks, last blocks
        if sizes.wants(count):
            sizes.add(count)
        calls.append(len(sizes.split(count)))
    assert calls == [20, 22, 18, 1, 1, 1, 1]
    assert sizes.made == (22, 20, 18, 1)
    assert not sizes.is_next(22)
    assert [sizes.is_next(21), sizes.wants(21), sizes.is_next(21)] == [False, False, True]


def test_a_call_tells_a_time_once_its_program_is_there_or_does_not_come():
    sizes = trip_counts.ProgramSizes()
    assert sizes.is_settled(1)
    settled = []
    for _ in range(4):  # the second call asks for a program, which cannot be made
        settled.append(sizes.is_settled(22))
        sizes.wants(22)
    assert settled == [False, False, False, True]
    sizes.add(7)
    assert sizes.is_settled(7)


def test_lengths_without_end_make_no_programs_without_end():
    sizes = trip_counts.ProgramSizes()
    for count in range(2, 50):
        for _ in range(2):
            if sizes.wants(count):
                sizes.add(count)
    assert len(sizes.made) == trip_counts.MOST_PROGRAMS
    assert sizes.split(49) == [6] * 8 + [1]
