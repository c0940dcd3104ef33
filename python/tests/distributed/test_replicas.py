"""Several devices of one process train, evaluate and end as one device does.

A child process has four logical devices of the CPU, see `distributed_child`.
"""

import functools
import json
import os

import pytest
from children import PATHS, SUPPORT
from keras_forks import run_fork
from nightly import few

pytestmark = pytest.mark.tf
NEAR = 1e-5

# Name of the case --> devices, rows that each takes of a full batch.
SAME = {
    "dense": (4, 8),
    "odd_devices": (3, 11),
    "batch_norm": (2, 16),
    "averages": (2, 16),
    "keras_averages": (2, 16),
    "loss_scale": (2, 16),
    "regularizer": (2, 16),
    "scalar_loss": (2, 16),
    "embedding": (2, 16),
    "own_step": (2, 16),
    "streamed": (2, 16),
    "every_batch": (2, 16),
}
# The others vary these: optimizers, layers, numbers of rows and of devices.
FEW = ("dense",)


@functools.cache
def told(case):
    """What a case found, in a child of its own."""
    quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": PATHS}
    child = run_fork([str(SUPPORT / "distributed_child.py"), case], {**os.environ, **quiet}, 600)
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("case", few(SAME, *FEW))
def test_several_devices_train_as_one(case):
    found, (devices, part) = told(case), SAME[case]
    assert found["weights"] < NEAR
    assert found["history"] < NEAR
    assert found["moved"] > 100 * NEAR  # it has trained
    assert (found["replicas"], found["part"]) == (devices, part)
    assert found["devices"] == [f"CPU:{place}" for place in range(devices)]
    assert found["engine"] == ("keras" if case == "every_batch" else "graph_loop")
    assert found["rows"][0] == found["rows"][1]
    assert found["skipped"][0] == found["skipped"][1]


@pytest.mark.nightly
def test_a_callback_sees_each_batch_of_several_devices():
    found = told("every_batch")
    assert found["batches"] == [18, 18]
    assert found["losses"] < NEAR


@pytest.mark.slow
def test_a_loss_that_adds_up_rows_trains_as_on_one_device():
    for found in told("sum_loss"):
        assert max(found["weights"], found["history"] / 100) < NEAR  # a loss of about 30
        assert found["moved"] > 100 * NEAR


@pytest.mark.nightly
def test_a_rate_is_scaled_only_as_asked_and_for_the_training_only():
    found = told("rate_scaling")
    assert max(found["weights"], found["history"]) < NEAR
    assert found["rates"] == pytest.approx([0.2, 0.2])
    assert found["rate"] == pytest.approx(0.1)
    assert found["told"] == '2 times the one given: rate_scaling = "linear"'


def test_several_devices_evaluate_as_one():
    found = told("evaluation")
    assert found["metrics"] < NEAR
    assert found["rows"] == [241, 241]
    assert found["names"] == ["loss", "accuracy", "weighted_accuracy"]
    assert found["note"] == ""


def test_metrics_that_are_no_sums_see_whole_batches():
    found = told("metrics")
    assert {"largest", "first_output", "val_largest", "val_first_output"} < found["apart"].keys()
    assert max(found["apart"].values()) < NEAR
    *given, of_layer = found["notes"]
    assert all("Metrics" not in note for note in given)
    assert "from those on one device: `recorded` has metrics of its own" in of_layer


@pytest.mark.slow
def test_a_training_goes_on_on_another_number_of_devices():
    found = told("resumption")
    assert max(found["weights"], found["history"]) < NEAR
    stopped, again, whole = found["ended"]  # how, epochs, those resumed, replicas
    assert (stopped[0], stopped[3]) == ("interrupted", 2)
    assert (again[0], again[2], again[3]) == ("interrupted", stopped[1] - 1, 1)
    assert whole == ["completed", 3, again[1] - 1, 2]


@pytest.mark.slow
def test_a_model_is_a_plain_one_afterwards():
    found = told("afterwards")
    assert set(found["classes"]) == {"Variable"}
    assert (found["places"], found["left"]) == (["CPU:0"], [])
    assert found["loaded"] == 0
    for what in ("predictions", "keras", "one device", "others"):
        assert found[what] < NEAR, what
    assert found["iterations"][0] == found["iterations"][1]


ENDS = {
    "not_finite": {"stopped": "non_finite", "weights": 0.0, "class": "Variable"},
    "interrupt": {"stopped": "interrupted", "epochs": 1, "finite": True, "classes": ["Variable"]},
    "failure": {
        "kind": "RuntimeError",
        "message": "a callback's own",
        "classes": ["Variable"],
        "then": "completed",
    },
    "one_device": {"weights": 0.0, "replicas": [1, 1, 1]},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDS)
def test_however_a_training_ends_its_model_is_a_plain_one(case):
    found = told(case)
    assert {what: found[what] for what in ENDS[case]} == ENDS[case]
    assert "no finite number at step 1 of epoch 1" in found.get("note", "") or case != "not_finite"


@pytest.mark.nightly
def test_each_device_draws_other_numbers_and_the_same_again():
    found = told("dropout")
    assert found["again"] == 0  # however the calls of the engine cut the epoch
    assert found["alone"] > NEAR
    assert found["seeds"][0] == found["seeds"][1]  # the model's generators end as on one device


@pytest.mark.nightly
def test_a_batch_size_that_was_not_asked_for_is_one_that_can_be_shared():
    found = told("auto_batch")
    assert found["size"] == 3 * found["part"]
    assert found["reason"].endswith("; 3 replicas share it")


@pytest.mark.parametrize(
    ("case", "kind", "message", "hint"),
    [
        ("no GPUs", "NoDeviceError", "`devices` asks for 2 GPUs, and TensorFlow sees none.", "gpu"),
        ("unknown", "NoDeviceError", "`devices` names CPU:9, and TensorFlow has CPU:0,", "gpu"),
        ("one other", "SpecError", "`devices` names CPU:1 alone, and models are on", "gpu_setup("),
        ("no names", "SpecError", '`devices` must be "all", a number of GPUs', ""),
        ("batch", "SpecError", "`batch_size` is 33, which 2 replicas", "Use 32 or 34."),
        ("asked", "SpecError", "`batch_size` is 9, which 2 replicas", "Use 8 or 10."),
        ("compiled", "SpecError", 'engine = "compiled" trains on one device', "auto"),
        ("eager", "ModelError", "The model is compiled with run_eagerly", ""),
        ("function", "ModelError", "The model has its own function", ""),
        ("evaluate", "NoDeviceError", "`devices` asks for 3 GPUs", "gpu_check()"),
    ],
)
def test_what_several_devices_cannot_do_is_refused(case, kind, message, hint):
    found = told("refusals")[case]
    assert found["kind"] == kind
    assert found["message"].startswith(message)
    assert hint in found["hint"]


def test_what_is_refused_has_changed_nothing():
    assert told("refusals")["weights"] == 0
