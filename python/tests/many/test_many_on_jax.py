"""Many models at once end as each alone, on JAX; see `jax_many`."""

import pytest
from jax_runs import needs_jax, run_part

pytestmark = [pytest.mark.process, needs_jax]


def test_models_end_as_each_alone():
    found = run_part("jax_many", "many")
    assert found["folds"] < 1e-5
    assert found["settings"] < 1e-4  # Adam's first steps are signs
    assert found["structures"] == 1
    assert found["rows"] == 20
