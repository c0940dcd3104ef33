"""What the core promises of a GPU, on a real one, on both backends; see `gpu_child`.

Besides: `test_diagnosis` (the check's verdict), `test_usage` (the proof of use) and `test_devices`
(a memory limit). At night the same parts run on the CPU, as far as they have a meaning there, so
that they still work on the day that somebody has a GPU.
"""

import functools
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from children import PATHS, needs_gpu

SUPPORT = Path(__file__).parents[1] / "support"
TOGETHER = (
    "placement",
    "growth",
    "precision",
    "xla",
    "loops",
    "prefetch",
    "monitor",
    "profiled",
    "mirrored",
)
FLOAT32, HALF = 1e-3, 0.1  # how far losses may be apart, relatively
# What is TensorFlow's alone: its profiler's messages, and several replicas.
ON_JAX = ("placement", "growth", "precision", "xla", "loops", "prefetch", "monitor")


class Place(NamedTuple):
    """A kind of device, and what Keras runs on."""

    kind: str
    backend: str


needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
GPU, CPU = Place("gpu", "tensorflow"), Place("cpu", "tensorflow")
TENSORFLOW = [
    pytest.param(GPU, marks=[pytest.mark.gpu, pytest.mark.tf, needs_gpu], id="gpu"),
    # The tests of each part hold the same of a CPU in each run.
    pytest.param(CPU, marks=[pytest.mark.tf, pytest.mark.nightly], id="cpu"),
]
on_jax = [pytest.mark.jax, needs_jax]
JAX = [
    pytest.param(Place("gpu", "jax"), marks=[*on_jax, pytest.mark.gpu, needs_gpu], id="jax-gpu"),
    pytest.param(Place("cpu", "jax"), marks=[*on_jax, pytest.mark.nightly], id="jax-cpu"),
]
each_device = pytest.mark.parametrize("place", [*TENSORFLOW, *JAX])
each_of_tensorflow = pytest.mark.parametrize("place", TENSORFLOW)


@functools.cache
def run_parts(place, names):
    """The parts' records; one process for all that can share it, as backends start slowly."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": PATHS}
    environment["KERAS_BACKEND"] = place.backend
    if place.kind == "cpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "-1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(SUPPORT / "gpu_child.py"), place.kind, *names]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    lines = [line for line in child.stdout.splitlines() if line.startswith('{"part"')]
    return {one["part"]: one for one in map(json.loads, lines)}, child.stderr


def tell(place, name):
    together = ON_JAX if place.backend == "jax" else TOGETHER
    records, stderr = run_parts(place, together if name in together else (name,))
    assert name in records, stderr[-3000:]
    assert "failed" not in records[name], records[name]["failed"]
    return records[name]["found"]


def device_of(place):
    return f"{place.kind.upper()}:0"


def falls(losses):
    return np.isfinite(losses).all() and losses[-1] < losses[0]


@each_device
def test_a_training_is_where_it_was_set_up(place):
    found = tell(place, "placement")
    assert found["device"] == device_of(place)
    assert set(found["variables"]) == {device_of(place)}
    assert falls(found["loss"])


@each_device
def test_memory_grows_as_it_is_needed(place):
    found = tell(place, "growth")
    assert found["settings"]["memory"] == "growth"
    if place.kind == "cpu":
        assert found["peak_bytes"] is None
        return
    assert found["peak_bytes"] > 0
    assert min(found["taken"]) < 0.5


@each_device
@pytest.mark.parametrize(
    ("policy", "computes"),
    [("float32", "float32"), ("mixed_bfloat16", "bfloat16"), ("mixed_float16", "float16")],
)
def test_every_precision_trains(place, policy, computes):
    found = tell(place, "precision")[policy]
    assert (found["precision"], found["computes"], found["keeps"]) == (policy, computes, "float32")
    assert found["variables"].keys() == {device_of(place)}
    assert falls(found["loss"])
    np.testing.assert_allclose(
        found["loss"], tell(place, "precision")["float32"]["loss"], rtol=HALF
    )


@each_device
def test_precision_is_chosen_by_the_compute_capability(place):
    found = tell(place, "precision")
    weakest = min(map(float, found["capabilities"]), default=0.0)
    expected = "mixed_bfloat16" if weakest >= 8 else "mixed_float16" if weakest >= 7 else "float32"
    assert found["auto"]["chosen"] == expected
    assert found["auto"]["precision"] == expected


@each_device
def test_xla_trains_as_the_other_engines_do(place):
    found = tell(place, "xla")
    assert {name: one["engine"] for name, one in found.items()} == {name: name for name in found}
    for one in found.values():
        assert one["device"] == device_of(place)
        np.testing.assert_allclose(one["loss"], found["keras"]["loss"], rtol=FLOAT32)


@each_device
def test_loops_of_known_length_train_as_others_do(place):
    found = tell(place, "loops")
    if place.backend == "tensorflow":
        assert found["known"]["sizes"] == [found["known"]["batches"], 1]
        assert found["asked"]["sizes"] == []
    known, asked = found["known"]["weights"], found["asked"]["weights"]
    np.testing.assert_allclose(known, asked, rtol=FLOAT32, atol=1e-6)


@each_device
def test_blocks_lie_on_the_device_before_they_are_trained(place):
    found = tell(place, "prefetch")
    for one in found.values():
        assert len(one["places"]) == 1
        assert one["places"][0].endswith(device_of(place))
        assert one["rows"] == 4096
    assert found["device"]["mode"] == "resident"
    assert (found["host"]["mode"], found["host"]["ahead"]) == ("staged", 1)


@each_device
def test_the_monitor_sees_a_busy_gpu(place):
    found = tell(place, "monitor")
    assert found["samples"] > 1
    if place.kind == "cpu":
        assert found["gpus"] == []
        return
    first = found["gpus"][0]
    assert first["name"]
    assert "simulated" not in first["name"]
    assert first["utilization_percent"] > 0
    assert first["memory_bytes"] > 0
    assert found["verdict"].startswith(("GPU:0 computed", "Each of"))


@each_of_tensorflow
def test_a_profile_has_the_devices_own_lines(place):
    found = tell(place, "profiled")
    assert found["device"] == device_of(place)
    assert sum(name.startswith("dense") for name in found["layers"]) == 2
    if place.kind == "cpu":
        assert found["kernels"] == []
        assert found["bytes"] is None
        return
    assert found["kernels"]
    assert found["kernel_s"] > 0
    assert found["shares"]["kernels"] > 0
    assert found["bytes"]["to_device"] >= 0


@each_of_tensorflow
def test_one_device_is_a_team_of_one(place):
    found = tell(place, "mirrored")
    for name in ("named", "all"):
        assert found[name]["replicas"] == 1
        assert found[name]["variables"].keys() == {device_of(place)}
        assert falls(found[name]["loss"])
    assert falls(found["strategy"])


@each_of_tensorflow
def test_two_replicas_on_halves_of_a_device_train_as_one(place):
    found = tell(place, "split")
    assert found["two"]["replicas"] == 2
    assert found["two"]["devices"] == [f"{place.kind.upper()}:0", f"{place.kind.upper()}:1"]
    np.testing.assert_allclose(found["two"]["loss"], found["one"]["loss"], rtol=FLOAT32)


@pytest.mark.gpu
@pytest.mark.tf
@needs_gpu
def test_a_batch_that_does_not_fit_is_halved_until_it_does():
    found = tell(GPU, "memory")
    assert "GPU:0 ran out of memory at batch size 128" in found["stopped"]["error"]
    halved, narrow = found["halved"], found["narrow"]
    assert 1 <= halved["micro"] < found["batch"]
    assert halved["notes"][0].startswith("GPU:0 ran out of memory: batches of 128 rows go")
    assert (halved["rows"], halved["updates"]) == (narrow["rows"], narrow["updates"])
    for name, values in narrow["history"].items():
        np.testing.assert_allclose(halved["history"][name], values, rtol=FLOAT32)
