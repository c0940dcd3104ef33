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


@pytest.mark.parametrize(
    ("batches", "longest", "size"),
    [
        (22, 22, 22),
        (22, 11, 22),  # a call may have twice the batches that were foreseen
        (22, 10, 11),
        (22, 3, 5),
        (22, 1, 2),
        (1, 1, 1),
        (4096, 1, 2),
        (4096, 10**9, 4096),
    ],
)
def test_a_call_takes_a_block_or_an_equal_part_of_it(batches, longest, size):
    assert trip_counts.choose_size(batches, longest) == size


@pytest.mark.parametrize(
    ("count", "left", "rounded"), [(1, 22, 1), (22, 22, 22), (7, 20, 11), (20, 21, 11), (5, 6, 6)]
)
def test_counts_are_those_that_come_again(count, left, rounded):
    assert trip_counts.round_count(count, left, batches=22, longest=10) == rounded


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


def test_lengths_without_end_make_no_programs_without_end():
    sizes = trip_counts.ProgramSizes()
    for count in range(2, 50):
        for _ in range(2):
            if sizes.wants(count):
                sizes.add(count)
    assert len(sizes.made) == trip_counts.MOST_PROGRAMS
    assert sizes.split(49) == [6] * 8 + [1]
