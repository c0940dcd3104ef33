"""Rows whose checks XLA would drop are not trained in a stack.

Keras on TensorFlow without XLA is the reference, see `support/refused_rows.py`.
"""

import pytest
from nightly import few
from refused_rows import BATCH, CASES
from small_fits import make_dataset, make_model
from stacked import fit_many

from gpukeras.accelerate.rows import CallRows, dataset_of
from gpukeras.core.errors import RefusedRowsError
from gpukeras.many.plan import find_unchecked_rows

pytestmark = pytest.mark.tf
NO_COPY = "Embedding in a layer"  # a class without a configuration, which no copy is made of
BAD = [name for name, case in CASES.items() if not case.takes and name != NO_COPY]


def train(name, bad):
    model = CASES[name].compiled()
    options = {"shuffle": False, "batch_size": BATCH}
    data = dataset_of(CallRows(*CASES[name].rows(bad)), model, options)
    return fit_many([model], data, seeds=[1, 2], epochs=1)


@pytest.mark.varies
@pytest.mark.parametrize("name", few(BAD, *BAD[:3]))
def test_rows_that_keras_refuses_are_refused(name):
    with pytest.raises(RefusedRowsError):
        train(name, True)


@pytest.mark.varies
@pytest.mark.parametrize("name", few(BAD, *BAD[:3]))
def test_rows_that_keras_trains_are_trained(name):
    assert all(one.history.epochs == 1 for one in train(name, False).fitted)


def test_models_whose_rows_are_right_stay_a_stack():
    data = make_dataset(rows=64)
    assert find_unchecked_rows(make_model(), data) == ""
    assert fit_many([make_model()], data, seeds=[1, 2], epochs=1).plan.alone == ()
