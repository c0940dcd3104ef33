"""The searches give on JAX what they give on TensorFlow, see `jax_tools`."""

import pytest
from jax_runs import needs_jax, run_part

pytestmark = [pytest.mark.slow, pytest.mark.process, needs_jax]


def test_losses_of_a_search_are_those_of_keras_single_steps():
    assert run_part("jax_tools", "rates") < 1e-5


@pytest.mark.nightly
def test_losses_of_an_eager_search_are_those_of_keras_single_steps():
    assert run_part("jax_tools", "eager_rates") < 1e-5


def test_rates_reach_the_weights_and_the_optimizer_is_left_as_it_was():
    found = run_part("jax_tools", "rates_of_optimizers")
    assert all(moved > 10 for moved, _, _ in found.values())
    assert all(rest == [0.0, True] for _, *rest in found.values())


def test_a_batch_size_is_found():
    found = run_part("jax_tools", "sizes")
    assert found["engine"] == "compiled"
    assert found["recommended"] in found["sizes"]
    assert all(found["rates"])
    assert found["changed"] == 0.0
