"""Rows in sequence as blocks on the device; their sources are tested in streams."""

import numpy as np
import pytest
from streamed import Function, rows_of, stream

from gpukeras.data.loader import loader
from gpukeras.data.plan import STREAM_BLOCK_BATCHES

pytestmark = pytest.mark.tf


@pytest.mark.parametrize(("batch_size", "most", "batches"), [(1, None, 1024), (8, 2, 2)])
def test_a_block_has_few_batches_as_the_first_one_is_waited_for(batch_size, most, batches):
    x, codes = rows_of(1200)
    data = stream(Function(x, codes, [300] * 4), batch_size=batch_size, shuffle=False)
    feed = loader.open_loader(data, data.plan("CPU:0"), most=most)
    blocks = list(feed.epoch(0))
    assert max(block.batches for block in blocks) == batches <= STREAM_BLOCK_BATCHES
    rows = [np.asarray(block.arrays[0])[: block.batches * block.rows] for block in blocks]
    np.testing.assert_allclose(np.concatenate(rows), x, rtol=1e-6)
