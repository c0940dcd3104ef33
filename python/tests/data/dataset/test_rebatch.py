"""Chunks of any sizes become blocks of one shape: every row once, in order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras.data.dataset.iterable_dataset import BlockMemory, Rebatcher, shuffle_rows


def chunks_of(sizes):
    start = 0
    for size in sizes:
        rows = np.arange(start, start + size)
        yield rows.astype(np.float32)[:, None], rows.astype(np.int32)
        start += size


def rows_of(blocks, batch_size):
    for arrays, batches, tail in blocks:
        count = len(arrays[0]) if tail else batches * batch_size
        assert arrays[0][:count, 0].tolist() == arrays[1][:count].tolist()
        yield arrays[1][:count].tolist()


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12),
    batch_size=st.integers(1, 20),
    capacity=st.integers(1, 5),
    drop_last=st.booleans(),
    fill_s=st.sampled_from([0.0, 60.0]),
)
def test_every_row_comes_once_in_order(sizes, batch_size, capacity, drop_last, fill_s):
    rebatcher = Rebatcher(batch_size, capacity, drop_last, fill_s)
    for _ in range(2):  # the second epoch meets memory that was used before
        blocks = rebatcher.blocks(chunks_of(sizes))
        rows = sum(rows_of(blocks, batch_size), [])
        full = sum(sizes) // batch_size * batch_size
        expected = full if drop_last and full else sum(sizes)
        assert rows == list(range(expected))


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=12), batch_size=st.integers(1, 9))
def test_blocks_have_one_shape_and_only_the_last_is_short(sizes, batch_size):
    blocks = list(Rebatcher(batch_size, 3, fill_s=60).blocks(chunks_of(sizes)))
    assert {len(arrays[0]) for arrays, _, tail in blocks if not tail} <= {3 * batch_size}
    assert [tail for _, _, tail in blocks[:-1]] == [False] * (len(blocks) - 1)
    for arrays, _, _ in blocks:
        assert all(array.ctypes.data % 64 == 0 for array in arrays)


def test_what_is_not_filled_is_zero():
    rebatcher = Rebatcher(2, 4, fill_s=60)
    list(rebatcher.blocks(chunks_of([8])))
    ((arrays, batches, _),) = rebatcher.blocks(chunks_of([4]))
    assert (batches, arrays[1].tolist()) == (2, [0, 1, 2, 3, 0, 0, 0, 0])


def test_the_next_chunk_is_asked_for_only_when_it_is_needed():
    asked = []

    def chunks():
        for number, chunk in enumerate(chunks_of([4] * 6)):
            asked.append(number)
            yield chunk

    blocks = Rebatcher(4, 2, fill_s=60).blocks(chunks())
    assert asked == []
    next(blocks)
    assert asked == [0, 1]


def test_memory_that_somebody_holds_is_not_used_again():
    memory, like = BlockMemory(), (np.zeros((2, 3), np.float32),)
    held = tuple(memory.take(like, 10))
    address = held[0].ctypes.data
    other = memory.take(like, 10)[0].ctypes.data
    assert other != address
    del held
    assert memory.take(like, 10)[0].ctypes.data == address


def test_a_slow_source_gives_what_there_is():
    blocks = Rebatcher(4, 100, fill_s=0.0).blocks(chunks_of([4, 4, 2, 6]))
    assert [batches for _, batches, _ in blocks] == [1, 1, 2]


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    buffer=st.integers(1, 50),
    seed=st.integers(0, 9),
)
def test_a_buffer_loses_no_row(sizes, buffer, seed):
    found = [c[1] for c in shuffle_rows(chunks_of(sizes), buffer, [seed, 1])]
    assert sorted(np.concatenate(found)) == list(range(sum(sizes)))


def test_a_buffer_shuffles_and_repeats_with_its_seed():
    def order(*seed):
        return np.concatenate([c[1] for c in shuffle_rows(chunks_of([10] * 20), 64, seed)])

    assert order(1, 1).tolist() == order(1, 1).tolist()
    assert order(1, 1).tolist() != order(1, 2).tolist()
    # A row moves ahead of the buffer's length only.
    assert (order(1, 1) - np.arange(200)).max() <= 64 + 10
