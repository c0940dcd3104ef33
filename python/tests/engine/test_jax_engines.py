"""Trainings on JAX end as Keras' own, see `jax_child`: a child, as Keras has one backend a process.

The machine's packages decide whether JAX is there; `python/requirements-dev.txt` names it.
"""

import pytest
from jax_runs import needs_jax, run_part
from nightly import few

EQUAL = (
    *("adam_dropout", "own_step", "loss_scale", "sgd", "batch_norm", "regularizer", "clipping"),
    *("accumulation", "averages", "decay", "images", "recurrent"),
)
pytestmark = [pytest.mark.process, needs_jax]


def found_in(name):
    return run_part("jax_child", name)


# Before the others, some of which train by Keras' own fit(), which imports TensorFlow.
def test_neither_training_nor_prediction_imports_tensorflow():
    assert not found_in("columns")["tensorflow"]


def test_a_data_frame_is_learned_predicted_and_saved():
    found = found_in("columns")
    assert found["engine"] == "compiled"
    assert "XLA compiles every engine" in found["reason"]
    assert found["val_accuracy"] == found["evaluated"] > 0.8
    assert found["same"]


@pytest.mark.varies
@pytest.mark.parametrize("name", few(EQUAL, "adam_dropout", "own_step"))
def test_each_engine_trains_as_keras_does(name):
    found = found_in(name)
    assert found["moved"] > 0.001
    for engine in ("keras", "compiled"):
        assert found[engine]["weights"] < 1e-6
        assert found[engine]["logs"] < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", few(["several", "streams"], "streams"))
def test_several_inputs_and_rows_in_sequence_train_as_rows_in_memory(name):
    found = found_in(name)
    assert max(found.values()) < 1e-6


@pytest.mark.slow
def test_schedules_averages_and_clipping_are_the_same_on_each_engine():
    found = found_in("features")
    assert found["loss"][-1] < found["loss"][0]
    assert found["weights"] < 1e-6
    assert found["losses"] < 1e-6


def test_a_resumed_training_ends_as_an_undisturbed_one():
    assert found_in("resumed") == {"stopped": 2, "epochs": 4, "weights": 0.0}


@pytest.mark.slow
def test_a_loss_that_is_no_number_ends_the_training_with_earlier_weights():
    assert found_in("not_a_number") == {"stopped": "non_finite", "weights": 0.0}


@pytest.mark.slow
def test_a_callback_sees_every_batch_and_its_changes_count():
    found = found_in("batches")
    assert found["seen"] == list(range(6))
    assert found["engine"] == "keras"
    assert found["rate"] == pytest.approx(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["8", "12"])
def test_a_batch_in_parts_gives_the_update_of_a_whole_one(size):
    weights, loss = found_in("parts")[size]
    assert weights < 1e-5
    assert loss < 1e-5


def test_calls_are_few_from_the_first_block_on():
    found = found_in("lengths")
    first = [["any", 1], ["any", 39]]  # compiles and is timed; the rest of the block
    assert found["calls"] == [*first, ["any", 40], *[["known", 40]] * 2, ["known", 20]]
    assert found["weights"] < 1e-6
    assert found["compiled"] == 5


def test_what_needs_tensorflow_says_so():
    assert found_in("refused") == [
        "SpecError",
        'The engine "graph_loop" runs on TensorFlow only, and Keras runs on JAX here. '
        'Use `engine = "compiled"`, the same loop over many batches.',
    ]
