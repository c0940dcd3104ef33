"""What a training tells whose batches do not fit into the device's memory."""

import pytest
from small_fits import make_model

from gpukeras.backend import runtime
from gpukeras.training.memory import MemoryUse

pytestmark = pytest.mark.tf


def compiled_with(reduction):
    model = make_model()
    model.compile("sgd", runtime.keras().losses.MeanSquaredError(reduction=reduction))
    return model


def test_parts_of_batches_are_told_and_where_they_may_differ():
    plain = MemoryUse(compiled_with("sum_over_batch_size"), 100, microbatch_size=100)
    assert "50 at a time" in plain.halve()
    assert "differ" not in plain.halve()
    weighted = MemoryUse(compiled_with("mean_with_sample_weight"), 100, microbatch_size=100)
    assert "may differ from whole batches: the loss `mean_squared_error` (red" in weighted.halve()


def test_an_error_tells_why_batches_could_not_be_split():
    sums = MemoryUse(compiled_with("sum"), 100, microbatch_size=100)
    assert "its loss adds up rows, which cannot be split" in str(sums.explain())
