"""Rows are gathered into memory that is used again, never while a tensor refers to it."""

import numpy as np
import pytest

from gpukeras.core.memory import aligned_empty
from gpukeras.data.reader import rows
from gpukeras.data.reader.rows import RowBuffers

pytestmark = pytest.mark.tf
ROWS = aligned_empty((64, 16))
ROWS[:] = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)


def place(tensor):
    return np.asarray(memoryview(tensor)).ctypes.data  # TensorFlow shows its own memory


def test_memory_is_used_again_once_no_tensor_refers_to_it():
    buffers = RowBuffers(ROWS)
    one, other = buffers.gather(np.array([7, 0, 0])), buffers.gather(np.array([1, 2, 63]))
    np.testing.assert_array_equal(one.numpy(), ROWS[[7, 0, 0]])
    taken = place(one)
    assert taken != place(other)
    del one
    shorter = buffers.gather(np.array([5]))
    assert place(shorter) == taken
    np.testing.assert_array_equal(shorter.numpy(), ROWS[[5]])
    np.testing.assert_array_equal(other.numpy(), ROWS[[1, 2, 63]])


def test_a_slice_keeps_the_memory_of_its_tensor():
    buffers = RowBuffers(ROWS)
    part = buffers.gather(np.array([3, 4]))[1:]
    later = [buffers.gather(np.array([0, 1])) for _ in range(3)]
    np.testing.assert_array_equal(part.numpy(), ROWS[[4]])
    assert len({place(tensor) for tensor in later}) == 3


def test_larger_blocks_replace_the_memory_of_smaller_ones():
    buffers = RowBuffers(ROWS)
    buffers.gather(np.array([0]))
    np.testing.assert_array_equal(buffers.gather(np.arange(64)).numpy(), ROWS)
    assert [len(buffer) for buffer in buffers._free] == [64]


def test_what_more_tensors_needed_at_once_is_not_kept():
    buffers = RowBuffers(ROWS)
    held = [buffers.gather(np.array([row])) for row in range(4)]
    del held
    assert len(buffers._free) == 1
    again = {place(buffers.gather(np.array([row]))) for row in range(4)}
    assert len(again) == 1


def test_small_and_large_blocks_of_a_source_have_their_rows(monkeypatch):
    monkeypatch.setattr(rows, "LEAST_BYTES", 3 * 16 * 4)
    gather = rows.MemoryRows(ROWS).reusing_gatherer()
    for taken in ([5], [6, 7, 8], [9, 9]):
        np.testing.assert_array_equal(gather(np.array(taken)).numpy(), ROWS[taken])
