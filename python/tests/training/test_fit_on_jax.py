"""What surrounds a training works on JAX, or says that it needs TensorFlow; see `jax_tools`."""

import pytest
from jax_runs import needs_jax, run_part

from gpukeras.backend.features import FEATURES

pytestmark = [pytest.mark.process, needs_jax]


@pytest.mark.slow
def test_half_precision_trains_as_keras_does():
    optimizer, apart = run_part("jax_tools", "precision")
    assert optimizer == "LossScaleOptimizer"
    assert apart < 1e-6


@pytest.mark.nightly
def test_bfloat16_trains_as_keras_does():
    optimizer, apart = run_part("jax_tools", "other_precision")
    assert optimizer == "Adam"
    assert apart < 1e-6


@pytest.mark.slow
def test_a_training_can_be_interrupted():
    found = run_part("jax_tools", "interrupted")
    assert found["stopped"] == "interrupted"
    assert found["epochs"] < 500


@pytest.mark.slow
def test_weights_that_the_optimizer_averages_are_final_after_an_error_too():
    assert run_part("jax_tools", "failed") < 1e-6


@pytest.mark.slow
def test_a_callback_may_evaluate_train_and_predict_by_keras_own_functions():
    assert run_part("jax_tools", "nested") < 1e-5


@pytest.mark.slow
def test_memory_that_runs_out_halves_the_batches_and_changes_no_result():
    found = run_part("jax_tools", "exhausted")
    kind, message = found.pop("stopped")
    assert kind == "OutOfMemoryError"
    assert message == "CPU:0 ran out of memory at batch size 32."
    for part in ("evaluated", "predicted", "kept", "threads"):
        assert found.pop(part) < 1e-6
    for engine in ("keras", "compiled"):
        assert found[engine]["size"] == 8
        assert len(found[engine]["notes"]) == 2
        assert found[engine]["rows"] == 400
        assert max(found[engine]["loss"], found[engine]["weights"]) < 1e-5


NEEDED = [key for key, one in FEATURES.items() if one.backend == "tensorflow" and not one.beside]


@pytest.mark.parametrize("name", NEEDED)
def test_what_needs_keras_on_tensorflow_says_so_in_the_users_words(name):
    kind, message, hint = run_part("jax_tools", "refused")[name]
    assert kind == "BackendError"
    asked = f"{FEATURES[name].name} needs Keras on TensorFlow, and Keras runs on JAX here."
    assert message == asked
    assert hint.endswith('tart a new session with gpu_setup(backend = "tensorflow").')


@pytest.mark.slow
def test_a_model_that_was_not_called_yet_predicts():
    found = run_part("jax_tools", "unbuilt")
    assert len(found) == 4
    assert max(found) < 1e-6
