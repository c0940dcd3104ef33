"""Times of predictions: taken in turns, of the numbers and not of a promise of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lazy_modules import keras, tf
from small_fits import make_model

from gpukeras.compression import latency


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=50))
def test_percentiles_are_within_what_was_measured(times):
    found = latency.summarize(times, 3)
    assert min(times) <= found.median_s <= found.p95_s * (1 + 1e-12)
    assert found.p95_s <= max(times) * (1 + 1e-12)
    assert (found.rows, found.runs) == (3, len(times))


def test_models_take_turns_and_every_other_round_is_reversed(monkeypatch):
    monkeypatch.setattr(latency, "BUDGET_S", float("inf"))  # the computer may stand still
    order = []
    times = latency._take_turns([lambda: order.append("a"), lambda: order.append("b")])
    assert order[:8] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert [len(one) for one in times] == [latency.MOST_RUNS] * 2


def test_a_slow_model_is_measured_the_least_number_of_times(monkeypatch):
    monkeypatch.setattr(latency, "BUDGET_S", 0.0)
    assert [len(one) for one in latency._take_turns([lambda: None])] == [latency.LEAST_RUNS]


@pytest.mark.tf
@pytest.mark.parametrize("compiled", [False, True])
def test_a_call_gives_the_model_s_own_numbers(compiled):
    model = make_model(layers=[keras.layers.Dropout(0.5)])
    model.jit_compile = compiled
    rows = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
    np.testing.assert_allclose(latency.open_call(model, rows)()[0], model(rows), atol=1e-6)


@pytest.mark.tf
def test_a_model_that_xla_refuses_runs_without():
    class Text(keras.layers.Layer):
        def call(self, rows):
            return tf.strings.length(tf.strings.as_string(rows))

    model = keras.Sequential([keras.Input((1,)), Text()])
    model.jit_compile = True
    assert latency.open_call(model, np.ones((2, 1), np.float32))()[0].shape == (2, 1)


@pytest.mark.tf
def test_every_model_has_its_latency():
    models = [make_model(), make_model()]
    found = latency.measure_latencies(models, [np.zeros((2, 5), np.float32)] * 2, 2)
    assert len(found) == 2
    assert all(one.runs >= latency.LEAST_RUNS and 0 < one.median_s <= one.p95_s for one in found)
