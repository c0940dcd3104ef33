"""Which loader is opened for a dataset, and the rows that it yields."""

import numpy as np
import pytest
from small_fits import make_dataset

from gpukeras.backend import runtime
from gpukeras.core.memory import aligned_empty
from gpukeras.data.dataset import map_dataset
from gpukeras.data.loader import loader
from gpukeras.data.reader.rows import MemoryRows

pytestmark = pytest.mark.tf


def test_evaluation_leaves_no_row_out():
    data = make_dataset(100, validation=0.3, drop_last=True)
    for part, rows in (("all", 100), ("train", 70), ("validation", 30)):
        feed = loader.open_evaluation(data, "CPU:0", part, batch_size=8)
        fed = [
            block.arrays[0].shape[0] if block.tail else 8 * block.batches for block in feed.epoch(0)
        ]
        assert sum(fed) == rows
        assert data.has_rows(part)
    assert not make_dataset(10, batch_size=5).has_rows("validation")


def test_a_function_of_the_users_takes_what_the_model_would_take():
    from gpukeras.training import predict

    keras, tf = runtime.keras(), runtime.tensorflow()
    features = {"kind": "array", "values": np.arange(10.0).reshape(-1, 1)}
    data = map_dataset.build_dataset(features, {"batch_size": 5, "shuffle": False})
    rows = aligned_empty((10, 1), np.uint8)
    rows[...] = np.arange(10)[:, None]
    data.sources, data.map = (MemoryRows(rows),), lambda features: features * 2
    (block,) = loader.open_loader(data, data.plan("CPU:0")).epoch(0)
    assert block.arrays.dtype == tf.float32
    np.testing.assert_array_equal(block.arrays[:, 0], 2 * np.arange(10))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Identity()])
    values = predict.predict(model, data=data)["values"]
    np.testing.assert_array_equal(values.reshape(-1), 2 * np.arange(10))
    assert loader.sample_rows(data, 3)[0][2, 0] == 4
