"""Trainings on JAX end as Keras' own, see `jax_child`: a child, as Keras has one backend a process.

The machine's packages decide whether JAX is there; `python/requirements-dev.txt` names it.
"""

import functools
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from children import CORE
from nightly import few

SUPPORT = Path(__file__).parents[1] / "support"
EQUAL = (
    "adam_dropout",
    "own_step",
    "sgd",
    "batch_norm",
    "regularizer",
    "clipping",
    "accumulation",
    "averages",
    "decay",
    "images",
    "recurrent",
)
OURS = (
    "columns",
    "features",
    "resumed",
    "not_a_number",
    "batches",
    "refused",
    "parts",
    "several",
    "streams",
)
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed"),
]


@functools.cache
def run_parts(names):
    paths = os.pathsep.join([str(CORE), str(SUPPORT)])
    environment = {**os.environ, "KERAS_BACKEND": "jax", "PYTHONPATH": paths}
    command = [sys.executable, str(SUPPORT / "jax_child.py"), *names]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    lines = [line for line in child.stdout.splitlines() if line.startswith('{"part"')]
    return {one["part"]: one for one in map(json.loads, lines)}, child.stderr


def found_in(name, group=OURS):
    records, stderr = run_parts(group)
    assert name in records, stderr[-3000:]
    assert "failed" not in records[name], records[name]["failed"]
    return records[name]["found"]


@pytest.mark.parametrize("name", few(EQUAL, "adam_dropout", "own_step"))
def test_each_engine_trains_as_keras_does(name):
    found = found_in(name, (name,))
    assert found["moved"] > 0.001
    for engine in ("keras", "compiled"):
        assert found[engine]["weights"] < 1e-6
        assert found[engine]["logs"] < 1e-6


def test_a_data_frame_is_learned_predicted_and_saved():
    found = found_in("columns")
    assert found["engine"] == "compiled"
    assert "XLA compiles every engine" in found["reason"]
    assert found["val_accuracy"] == found["evaluated"] > 0.8
    assert found["same"]


@pytest.mark.parametrize("name", ["several", "streams"])
def test_several_inputs_and_rows_in_sequence_train_as_rows_in_memory(name):
    found = found_in(name)
    assert max(found.values()) < 1e-6


def test_neither_training_nor_prediction_imports_tensorflow():
    assert not found_in("columns")["tensorflow"]


def test_schedules_averages_and_clipping_are_the_same_on_each_engine():
    found = found_in("features")
    assert found["loss"][-1] < found["loss"][0]
    assert found["weights"] < 1e-6
    assert found["losses"] < 1e-6


def test_a_resumed_training_ends_as_an_undisturbed_one():
    assert found_in("resumed") == {"stopped": 2, "epochs": 4, "weights": 0.0}


def test_a_loss_that_is_no_number_ends_the_training_with_earlier_weights():
    assert found_in("not_a_number") == {"stopped": "non_finite", "weights": 0.0}


def test_a_callback_sees_every_batch_and_its_changes_count():
    found = found_in("batches")
    assert found["seen"] == list(range(6))
    assert found["engine"] == "keras"
    assert found["rate"] == pytest.approx(0.005)


@pytest.mark.parametrize("size", ["8", "12"])
def test_a_batch_in_parts_gives_the_update_of_a_whole_one(size):
    weights, loss = found_in("parts")[size]
    assert weights < 1e-5
    assert loss < 1e-5


def test_what_needs_tensorflow_says_so():
    found = found_in("refused")
    assert found["superstep"] == [
        "SpecError",
        'The engine "superstep" runs on TensorFlow only, and Keras runs on JAX here. '
        'Use `engine = "compiled"`, the same loop over many batches.',
    ]
    assert found["tensorboard"][0] == "BackendError"
