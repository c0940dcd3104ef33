"""What a model takes: bytes, weights, FLOPs, rows to time it with."""

import numpy as np
import pytest
from lazy_modules import keras
from small_fits import make_dataset, make_model

from gpukeras.compression import metrics
from gpukeras.training import fit

pytestmark = pytest.mark.tf


@pytest.mark.slow
def test_the_optimizer_s_state_is_not_counted():
    model, data = make_model(optimizer="adam"), make_dataset()
    before = metrics.measure_disk(model)
    optimizer = model.optimizer
    fit.fit(model, data, {"epochs": 1, "engine": "keras"})
    assert metrics.measure_disk(model)[0] == pytest.approx(before[0], rel=0.02)
    assert model.optimizer is optimizer
    assert before[1] < before[0]


def test_zeros_are_counted_and_compress():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
    (full,) = metrics.measure([model])
    kernel = model.layers[0].kernel
    kernel.assign(np.where(np.arange(64 * 64).reshape(64, 64) % 4, 0.0, kernel.numpy()))
    (sparse,) = metrics.measure([model])
    assert full.parameters == sparse.parameters == 64 * 64 + 64
    assert full.nonzeros == 64 * 64
    assert sparse.nonzeros == 64 * 16
    assert sparse.packed_bytes < 0.6 * full.packed_bytes
    assert sparse.disk_bytes == full.disk_bytes
    assert full.flops == 2 * 64 * 64 + 64


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_scales_of_quantized_weights_are_no_parameters(mode):
    model = keras.Sequential([keras.Input((7,)), keras.layers.Dense(5), keras.layers.Dense(3)])
    before = metrics.count_weights(model)[0]
    model.layers[0].quantize(mode)
    model.layers[1].quantize(mode)
    assert metrics.count_weights(model)[0] == before == 7 * 5 + 5 + 5 * 3 + 3


def test_rows_are_repeated_to_fill_a_batch():
    model, data = make_model(), make_dataset(rows=10, shuffle=False, batch_size=5)
    batch = np.asarray(metrics.read_batch(model, data, 25))
    assert batch.shape == (25, 5)
    np.testing.assert_array_equal(batch[:10], batch[10:20])
    assert np.asarray(metrics.read_batch(model, None, 3)).tolist() == [[0.0] * 5] * 3
    (figures,) = metrics.measure([model], data)
    assert [one.rows for one in figures.latency] == [1, 5]  # the data's own batch


@pytest.mark.parametrize(
    ("given", "data", "rows"),
    [(None, None, 32), (7, None, 7), (7, {"batch_size": 16}, 7), (None, {"batch_size": 16}, 16)],
)
def test_the_batch_is_the_data_s_own_unless_asked_for(given, data, rows):
    made = None if data is None else make_dataset(**data)
    assert metrics.choose_batch(given, made) == rows


def test_validation_rows_are_preferred():
    model = make_model()
    kept, plain = make_dataset(validation=0.25), make_dataset(seed=2)
    assert metrics.evaluate_model(model, kept, None)[1] == "validation"
    assert metrics.evaluate_model(model, plain, None)[1] == "all"
    assert metrics.evaluate_model(model, plain, kept)[1] == "validation"
    assert metrics.evaluate_model(model, None, None) == ({}, "")
    model.compiled = False
    assert metrics.evaluate_model(model, kept, None) == ({}, "")
