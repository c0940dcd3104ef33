"""A model costs on JAX what it costs on TensorFlow, see `jax_models`."""

import costed
import pytest
from jax_runs import needs_jax, run_part

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.tf, needs_jax]


@pytest.fixture(scope="module")
def on_tensorflow():
    return costed.cost_all()


@pytest.mark.parametrize("name", ["dense", "images", "series"])
def test_layers_cost_the_same_on_both_backends(on_tensorflow, name):
    found, expected = run_part("jax_models", "cost")[name], on_tensorflow[name]
    assert found["layers"] == expected["layers"]
    assert found["flops"] == expected["flops"]
    assert found["notes"] == expected["notes"] == []
    assert 0.5 < found["kept"] / expected["kept"] < 2
    assert 0.5 < found["total"] / expected["total"] < 2


def test_operations_of_a_layer_of_ones_own_cost_the_same(on_tensorflow):
    found = run_part("jax_models", "cost")["operations"]
    assert found["layers"][0][3] == "operations"
    assert found["flops"] == pytest.approx(on_tensorflow["operations"]["flops"], rel=0.01)
    assert found["notes"] == []


@pytest.mark.parametrize("name", ["dense", "images", "operations"])  # XLA counts one step of a loop
def test_the_count_is_close_to_that_of_xla(name):
    found = run_part("jax_models", "cost")[name]
    assert found["flops"] == pytest.approx(found["xla"], rel=0.1)


def test_an_open_dimension_needs_the_shape_of_a_row():
    message, hint, flops = run_part("jax_models", "open_cost")
    assert message.endswith("inputs of shape ? x 4: a dimension is open.")
    assert hint == "Give the shape of a row as `input_shape`."
    assert flops == 5 * (2 * 4 * 2 + 2)
