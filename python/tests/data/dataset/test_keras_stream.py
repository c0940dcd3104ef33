"""Blocks of the batches that Keras takes: those of one size together, others alone."""

import numpy as np
import pytest
from small_fits import make_model

from gpukeras.core.errors import DataError
from gpukeras.data.dataset.passthrough import open_keras_rows

pytestmark = pytest.mark.tf

NONE = dict.fromkeys(("y", "sample_weight", "batch_size", "steps_per_epoch", "class_weight"))
ROWS = np.arange(20, dtype=np.int64)[:, None]


def blocks(x, capacity, epochs=1, **more):
    """The plan, and of each block: the numbers, its batches, and whether it is alone."""
    data, known = open_keras_rows(make_model(), {**NONE, "x": x, "shuffle": False, **more})
    reading = data.open_pass(0, capacity, True)
    found = []
    for epoch in range(1, epochs + 1):
        for arrays, batches, alone in reading.blocks(epoch):
            first = arrays[0] if isinstance(arrays, tuple) else arrays
            found.append((np.asarray(first).reshape(-1).tolist(), batches, alone))
    return data, known, found


def test_batches_of_one_size_fill_blocks_and_the_short_one_is_alone():
    data, known, found = blocks(ROWS, 2, y=ROWS, batch_size=6)
    assert known == 4
    numbers = list(range(20))
    assert found[0] == (numbers[:6] + [0] * 6, 1, False)  # read before blocks have a size
    assert found[1] == (numbers[6:18], 2, False)
    assert found[2] == (numbers[18:], 1, True)
    plan = data.plan("CPU:0")
    assert (plan.batch_size, plan.rows, plan.steps_per_epoch) == (6, 24, 4)
    (features, labels) = data.batch(3)
    assert (features.dtype.name, features.shape, labels.shape) == ("int64", (6, 1), (6, 1))


def test_batches_of_other_sizes_keep_their_places():
    import tensorflow as tf

    parts = [tf.data.Dataset.from_tensors(ROWS[:size]) for size in (3, 3, 2, 2, 3)]
    rows = parts[0]
    for part in parts[1:]:
        rows = rows.concatenate(part)
    _, _, found = blocks(rows, 9, epochs=2)
    told = [(batches, alone) for _, batches, alone in found]
    assert told[:5] == [(1, False), (1, False), (1, True), (1, True), (1, False)]
    assert told[5:] == [(2, False), (1, True), (1, True), (1, False)]


def test_what_cannot_be_joined_comes_one_by_one():
    import tensorflow as tf

    texts = tf.data.Dataset.from_tensor_slices(["a", "b", "c"]).batch(2)
    data, _, found = blocks(texts, 9)
    assert [(numbers, alone) for numbers, _, alone in found] == [
        ([b"a", b"b"], True),
        ([b"c"], True),
    ]
    assert data.reader.whole == "Keras' iterator gives text, a batch at a time"


@pytest.mark.filterwarnings("ignore:.*encountered in divide")
def test_a_pipeline_that_fails_is_told():
    import tensorflow as tf

    broken = tf.data.Dataset.from_tensors(ROWS / 0.0).map(
        lambda x: tf.debugging.check_numerics(x, "no number")
    )
    with pytest.raises(DataError, match="The tf.data dataset failed in epoch 1"):
        blocks(broken, 2)
