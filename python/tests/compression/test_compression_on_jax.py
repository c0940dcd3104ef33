"""Models are made smaller on JAX as on TensorFlow, see `jax_models`."""

import pytest
from jax_runs import needs_jax, run_part
from nightly import few

pytestmark = [pytest.mark.slow, pytest.mark.process, needs_jax]


@pytest.mark.parametrize("name", few(["once", "compiled"], "once"))
def test_pruned_weights_stay_zero_in_further_training(name):
    found = run_part("jax_models", "pruned" if name == "once" else "pruned_more")[name]
    assert found["zeros"] == pytest.approx(0.8, abs=0.01)
    assert found["stay"]
    assert found["drop"] is not None
    assert min(found["runs"]) >= 30


def test_the_optimizer_has_its_own_variables_again_after_pruning():
    found = run_part("jax_models", "pruned")
    assert {one["variables"] for one in found.values()} == {2 + 2 * 4}  # of Adam


@pytest.mark.nightly
def test_structured_pruning_takes_units():
    found = run_part("jax_models", "pruned_more")["units"]
    before, after = found["flops"]
    assert after < before
    assert found["shapes"][0][1] < 8


def test_masks_grow_within_the_steps_of_every_engine():
    found = run_part("jax_models", "growing")
    assert found["keras"] == found["compiled"] == pytest.approx(0.5, abs=0.02)
    assert found["keras zeros"]
    assert found["compiled zeros"]
    assert found["apart"] < 1e-5


def test_what_is_timed_gives_the_model_s_own_numbers():
    assert run_part("jax_models", "growing")["timed"] < 1e-6


@pytest.mark.nightly
@pytest.mark.parametrize(("mode", "apart"), [("int8", 0.02), ("int4", 0.1), ("float8", 0.1)])
def test_quantized_models_predict_as_keras_does(mode, apart):
    found = run_part("jax_models", "quantized")[mode]
    assert found["layers"] == 2
    assert found["part"] == "validation"
    assert 0 < found["original"] < apart
    if mode != "float8":  # whose scales gpukeras calibrates
        assert found["keras"] == 0.0


@pytest.mark.nightly
def test_a_student_learns_and_its_teacher_stays():
    found = run_part("jax_models", "distilled")
    assert found["units"] == 4
    assert found["losses"][-1] < found["losses"][0]
    assert found["changed"] == 0.0
    assert not found["own"]
