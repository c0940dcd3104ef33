import gc

import pytest
from small_fits import make_dataset

from gpukeras.training.batch_size_memo import (
    remember_batch_size,
    remembered_batch_size,
    remembered_size,
)


@pytest.mark.slow
def test_a_batch_size_is_kept_while_its_model_lives():
    model = type("Model", (), {})()
    assert remembered_batch_size(model) is None
    remember_batch_size(model, 64)
    remember_batch_size(model, 128)
    assert remembered_batch_size(model) == 128
    del model
    gc.collect()
    assert remembered_batch_size(make_dataset) is None


def test_no_batch_is_larger_than_the_rows_for_training():
    model, data = type("Model", (), {})(), make_dataset(100)
    assert remembered_size(model, data) is None
    remember_batch_size(model, 40)
    assert remembered_size(model, data) == 40
    remember_batch_size(model, 4000)
    assert remembered_size(model, data) == 100
