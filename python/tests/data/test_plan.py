import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpukeras.core.options import DatasetSpec
from gpukeras.data import plan as data_plan

GIB = 2.0**30


def plan(device="GPU:0", free=8 * GIB, rows=1_000_000, streamed="", **options):
    facts = data_plan.PipelineFacts(rows, 0, 400, device, free, streamed=streamed)
    return data_plan.plan_pipeline(facts, DatasetSpec(**options))


@pytest.mark.parametrize(
    ("made", "mode", "reason"),
    [
        (plan(), "resident", "fit in half of 8,192 MiB free on GPU:0"),
        (plan(free=0.5 * GIB), "staged", "do not fit in half of 512 MiB"),
        (plan(free=None), "staged", "unknown"),
        (plan(device="CPU:0", free=1.0), "resident", "the CPU's own"),
        (plan(cache="host"), "staged", 'cache = "host"'),
        (plan(cache="device", free=1.0), "resident", 'cache = "device"'),
        (plan(streamed="from a file"), "streamed", "from a file"),
        (plan(streamed="from a file", device="CPU:0"), "streamed", "from a file"),
    ],
)
def test_where_rows_live_and_why(made, mode, reason):
    assert made.mode == mode
    assert reason in made.reason


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, 'refused: na = "error"'),
        ({"na": "drop", "dropped": 12}, "dropped: 12 of 1,000 rows with missing values"),
        ({"na": "drop"}, "dropped: 0 of 988 rows with missing values"),
        ({"na": "impute", "indicators": ("a", "b")}, "training rows, indicators for a, b"),
        ({"na": "impute", "indicators": tuple("abcdef")}, "for a, b, c, d, e, ..."),
        ({"na": "impute"}, "indicators for no column, as none lacked values"),
    ],
)
def test_what_happened_to_missing_values(facts, says):
    facts = data_plan.PipelineFacts(900, 88, 4, "CPU:0", **facts)
    made = data_plan.plan_pipeline(facts, DatasetSpec())
    assert made.na_reason.endswith(says)
    assert (made.na, made.dropped_rows) == (facts.na, facts.dropped)


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_steps_and_the_last_batch_add_up(rows, batch_size):
    facts = data_plan.PipelineFacts(rows, 0, 4, "CPU:0")
    made = data_plan.plan_pipeline(facts, DatasetSpec(batch_size=batch_size))
    assert made.batch_size == min(rows, batch_size)
    batch_size = made.batch_size
    assert (made.steps_per_epoch - 1) * batch_size + made.last_batch == rows
    assert 0 < made.last_batch <= batch_size


@pytest.mark.parametrize(
    ("rows", "size"), [(1, 1), (20, 20), (150, 32), (43_152, 512), (100_000, 1024), (10**8, 1024)]
)
def test_automatic_batch_size(rows, size):
    assert data_plan.choose_batch_size(rows, "auto")[0] == size


@given(
    st.integers(1, 2**30),
    st.integers(1, 10**6),
    st.sampled_from([1, 7, 1024, 4096]),
    st.sampled_from([data_plan.BLOCK_BYTES, 2**28]),
)
def test_a_block_is_bounded(batch_bytes, steps, most, block_bytes):
    batches = data_plan.choose_capacity(batch_bytes, steps, block_bytes, most=most)
    assert 1 <= batches <= min(steps, most)
    assert batches == 1 or batches * batch_bytes <= block_bytes
    blocks = math.ceil(steps / batches)
    assert blocks * batches - steps < blocks  # padding: less than a batch a block


MIB = 2**20


@pytest.mark.parametrize(
    ("facts", "mode", "size"),
    [
        ({"device": "CPU:0", "memory_bytes": None}, "resident", 9),
        ({"memory_bytes": None}, "resident", 9),
        ({"memory_bytes": 2 * GIB}, "resident", 9),
        ({"memory_bytes": 12 * GIB}, "resident", 48),
        ({"memory_bytes": 80 * GIB}, "resident", 320),
        ({"memory_bytes": 80 * GIB}, "staged", 125),  # an eighth of the rows
        ({"memory_bytes": 80 * GIB, "row_bytes": 2**14}, "staged", 320),
        ({"memory_bytes": 80 * GIB, "rows": 1000}, "staged", 9),
        ({"memory_bytes": 80 * GIB}, "streamed", 9),
        ({"memory_bytes": 80 * GIB, "varied": True}, "resident", 9),
    ],
)
def test_a_block_is_as_large_as_the_device_allows(facts, mode, size):
    given = {"rows": 1_024_000, "validation_rows": 0, "row_bytes": 1024, "device": "GPU:0", **facts}
    made = data_plan.PipelineFacts(**given)
    assert data_plan.choose_block_bytes(made, mode) == size * MIB


def test_the_plan_has_the_bytes_of_a_block():
    facts = data_plan.PipelineFacts(10**6, 0, 400, "GPU:0", 8 * GIB, 12 * GIB)
    made = data_plan.plan_pipeline(facts, DatasetSpec())
    assert (made.mode, made.block_bytes) == ("resident", 48 * MIB)
    assert data_plan.choose_capacity(MIB, 1000, made.block_bytes) == 48
    assert made.even_blocks
    on_cpu = plan(device="CPU:0")
    assert (on_cpu.block_bytes, on_cpu.even_blocks) == (data_plan.BLOCK_BYTES, False)


@pytest.mark.parametrize(
    ("steps", "fit", "capacity"),
    [
        (625, 625, 625),
        (625, 624, 313),  # 313 and 312: 125 would be less than half
        (625, 312, 125),  # instead of 209, 209 and 207
        (625, 249, 125),
        (128, 127, 64),
        (128, 43, 32),  # instead of 43, 43 and 42
        (390, 100, 78),  # instead of 98, 98, 98 and 96
        (391, 100, 98),  # 17 and 23 divide it, which are too few
        (7, 1, 1),
        (1, 9, 1),
        (0, 9, 1),
    ],
)
def test_the_last_block_is_as_long_as_the_others_where_it_can_be(steps, fit, capacity):
    assert data_plan.choose_capacity(1, steps, fit, even=True) == capacity


@given(st.integers(1, 10**5), st.integers(1, 5000))
def test_even_blocks_are_at_least_half_as_long(steps, fit):
    even, uneven = (data_plan.choose_capacity(1, steps, fit, even) for even in (True, False))
    assert even <= uneven <= 2 * even
    assert steps % even == 0 or even == uneven


@pytest.mark.parametrize(
    ("capacity", "steps", "batches"), [(625, 625, 79), (4, 625, 4), (1024, 5, 1), (1024, None, 64)]
)
def test_blocks_of_a_pipeline_are_small_parts_of_an_epoch(capacity, steps, batches):
    assert data_plan.choose_ahead(capacity, steps) == batches


@given(st.integers(1, 10**7), st.integers(1, 10**6))
def test_evaluation_rows_are_bounded(row_bytes, rows):
    size = data_plan.choose_evaluation_rows(row_bytes, rows)
    assert 1 <= size <= min(rows, data_plan.EVALUATION_ROWS)


def test_balanced_weights_give_each_class_the_same_total():
    counts = np.array([90, 10])
    weights = data_plan.balanced_weights(counts)
    np.testing.assert_allclose(weights * counts, [50, 50])


MOVABLE = {"streamed": "a block at a time from a scratch file, 4.0 GiB", "movable": True}


@pytest.mark.parametrize(
    ("device", "free", "cache", "mode", "reason"),
    [
        ("GPU:0", 80 * GIB, "auto", "resident", "fit in half of"),
        ("GPU:0", 2 * GIB, "auto", "streamed", "scratch file, 4.0 GiB: "),
        ("GPU:0", 80 * GIB, "disk", "streamed", "a block at a time"),
        ("GPU:0", 2 * GIB, "device", "resident", 'cache = "device"'),
        ("GPU:0", None, "auto", "streamed", "is unknown"),
        ("CPU:0", None, "auto", "streamed", "a block at a time"),
    ],
)
def test_rows_of_a_scratch_file_move_to_a_device_that_has_room(device, free, cache, mode, reason):
    facts = data_plan.PipelineFacts(10_000_000, 0, 400, device, free, **MOVABLE)
    made = data_plan.plan_pipeline(facts, DatasetSpec(cache=cache))
    assert made.mode == mode
    assert reason in made.reason


def test_rows_that_are_made_anew_never_move():
    facts = data_plan.PipelineFacts(1000, 0, 400, "GPU:0", 80 * GIB, streamed="from a file")
    assert data_plan.plan_pipeline(facts, DatasetSpec()).mode == "streamed"


@pytest.mark.parametrize(
    ("rows", "drop_last", "steps", "last"),
    [(100, False, 4, 4), (100, True, 3, 32), (96, True, 3, 32), (20, True, 1, 20)],
)
def test_a_short_last_batch_can_be_left_out(rows, drop_last, steps, last):
    spec = DatasetSpec(batch_size=min(32, rows), drop_last=drop_last)
    made = data_plan.plan_pipeline(data_plan.PipelineFacts(rows, 0, 4, "CPU:0"), spec)
    assert (made.steps_per_epoch, made.last_batch) == (steps, last)
    assert made.drop_last == (drop_last and rows % 32 == 4)
