"""A profile on JAX reads JAX's trace, see `jax_tools`."""

import pytest
from jax_runs import needs_jax, run_part

pytestmark = [pytest.mark.process, needs_jax]


@pytest.mark.slow
@pytest.mark.tf
def test_kernels_are_attributed_to_layers_and_the_model_stays():
    found = run_part("jax_tools", "profiled")
    assert found["verdict"] != "undetermined"
    assert found["sum"] == pytest.approx(1.0, abs=1e-6)
    for layer in ("first", "inner/deep", "last"):
        assert min(found["layers"][layer]) > 0
    assert found["layers"]["optimizer"][0] > 0
    assert not any("Operations of a few microseconds" in note for note in found["notes"])
    assert found["changed"] == 0.0


def test_tensorflow_computes_beside_a_trace_and_after_it():
    assert run_part("jax_tools", "traced_beside_tensorflow") == [1.0, 2.0]
