"""Many models at once end as each alone, on JAX; see `jax_many`."""

import pytest
from jax_runs import needs_jax, run_part
from nightly import NIGHTLY
from precisions import tolerance

pytestmark = [pytest.mark.process, needs_jax]


@pytest.mark.slow
def test_models_end_as_each_alone():
    found = run_part("jax_many", "many")
    assert found["folds"] < 1e-5
    assert found["settings"] < tolerance(1e-4)  # Adam's first steps are signs
    assert found["structures"] == 1
    assert found["accumulated"] < 1e-5
    assert found["stacks"] == [[0, 1]]
    assert found["rows"] == 20


@pytest.mark.slow
def test_a_stack_trains_in_the_memory_of_its_old_state():
    found = run_part("jax_many", "donated")
    assert found["taken"]
    assert found["left"] == 0
    assert found["loss"][0] == found["loss"][1] > 0


@NIGHTLY
def test_models_of_workers_end_as_each_alone():
    found = run_part("jax_many", "workers")
    assert found["apart"] < 1e-5
    assert found["reason"].endswith("2 models in 2 worker processes with 1 thread each")
