import numpy as np
import pytest
from conftest import make_dataset

from gpukeras import SpecError, assembly, costs

pytestmark = pytest.mark.tf


def batches(epoch, batch):
    rows = {"kind": "array", "values": np.ones((8, 2)), "names": []}
    labels = {"kind": "numeric", "values": np.ones(8), "levels": []}
    return {"features": rows, "labels": labels, "weights": None}


def test_each_stage_of_rows_in_memory_is_measured():
    found = costs.measure_costs(make_dataset(rows=2000))
    assert [cost.stage for cost in found] == ["gather", "send", "finish"]
    assert all(0 < cost.row_s < 1 for cost in found)


def test_a_costly_function_is_seen_where_it_is():
    import keras

    def slow(rows):
        for _ in range(20):
            rows = keras.ops.qr(keras.ops.matmul(rows[:, :, None], rows[:, None, :]))[0][:, :, 0]
        return rows

    x = {"kind": "array", "values": np.random.default_rng(1).normal(size=(500, 16))}
    data = assembly.assemble(x, {"batch_size": 50}, map=slow)
    found = {cost.stage: cost.row_s for cost in costs.measure_costs(data)}
    assert found["finish"] > found["gather"] + found["send"]


def test_a_tf_data_pipeline_is_pulled():
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((np.ones((40, 3), np.float32), np.ones(40)))
    features = {"kind": "tfdata", "dataset": rows.batch(8), "steps": None, "batched": None}
    found = costs.measure_costs(assembly.assemble(features, {}))
    assert [cost.stage for cost in found] == ["pull", "send", "finish"]


def test_a_function_that_is_called_in_each_epoch_is_refused():
    features = {"kind": "generator", "call": batches, "steps": 3}
    data = assembly.assemble(features, {})
    with pytest.raises(SpecError, match="cannot be measured for a function"):
        costs.measure_costs(data)
    kept = assembly.assemble(features, {"cache": True})
    assert [cost.stage for cost in costs.measure_costs(kept)][0] == "gather"
