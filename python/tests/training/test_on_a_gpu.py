"""What the core promises of a GPU, on a real one; see `gpu_child` for what is done there.

Besides: `test_diagnosis` (the check's verdict), `test_usage` (the proof of use) and `test_devices`
(a memory limit). Here the same parts run on the CPU too, as far as they have a meaning there, so
that they still work on the day that somebody has a GPU.
"""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from children import CORE, needs_gpu

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
on_gpu = [pytest.mark.gpu, needs_gpu]
on_cpu = [pytest.mark.tf]
each_device = pytest.mark.parametrize(
    "kind", [pytest.param("gpu", marks=on_gpu), pytest.param("cpu", marks=on_cpu)]
)


@functools.cache
def run_parts(kind, names):
    """The parts' records; one process for all that can share it, as TensorFlow starts slowly."""
    paths = os.pathsep.join([str(CORE), str(SUPPORT)])
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": paths}
    if kind == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = "-1"
    command = [sys.executable, str(SUPPORT / "gpu_child.py"), kind, *names]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    lines = [line for line in child.stdout.splitlines() if line.startswith('{"part"')]
    return {one["part"]: one for one in map(json.loads, lines)}, child.stderr


def tell(kind, name):
    records, stderr = run_parts(kind, TOGETHER if name in TOGETHER else (name,))
    assert name in records, stderr[-3000:]
    assert "failed" not in records[name], records[name]["failed"]
    return records[name]["found"]


def device_of(kind):
    return f"{kind.upper()}:0"


def falls(losses):
    return np.isfinite(losses).all() and losses[-1] < losses[0]


@each_device
def test_a_training_is_where_it_was_set_up(kind):
    found = tell(kind, "placement")
    assert found["device"] == device_of(kind)
    assert set(found["variables"]) == {device_of(kind)}
    assert falls(found["loss"])


@each_device
def test_memory_grows_as_it_is_needed(kind):
    found = tell(kind, "growth")
    assert found["settings"]["memory"] == "growth"
    if kind == "cpu":
        assert found["peak_bytes"] is None
        return
    assert found["peak_bytes"] > 0
    assert min(found["taken"]) < 0.5


@each_device
@pytest.mark.parametrize(
    ("policy", "computes"),
    [("float32", "float32"), ("mixed_bfloat16", "bfloat16"), ("mixed_float16", "float16")],
)
def test_every_precision_trains(kind, policy, computes):
    found = tell(kind, "precision")[policy]
    assert (found["precision"], found["computes"], found["keeps"]) == (policy, computes, "float32")
    assert found["variables"].keys() == {device_of(kind)}
    assert falls(found["loss"])
    np.testing.assert_allclose(found["loss"], tell(kind, "precision")["float32"]["loss"], rtol=HALF)


@each_device
def test_precision_is_chosen_by_the_compute_capability(kind):
    found = tell(kind, "precision")
    weakest = min(map(float, found["capabilities"]), default=0.0)
    expected = "mixed_bfloat16" if weakest >= 8 else "mixed_float16" if weakest >= 7 else "float32"
    assert found["auto"]["chosen"] == expected
    assert found["auto"]["precision"] == expected


@each_device
def test_xla_trains_as_the_other_engines_do(kind):
    found = tell(kind, "xla")
    assert {name: one["engine"] for name, one in found.items()} == {name: name for name in found}
    for one in found.values():
        assert one["device"] == device_of(kind)
        np.testing.assert_allclose(one["loss"], found["keras"]["loss"], rtol=FLOAT32)


@each_device
def test_loops_of_known_length_train_as_others_do(kind):
    found = tell(kind, "loops")
    assert (found["known"]["sizes"], found["asked"]["sizes"]) == ([8, 1], [])
    known, asked = found["known"]["weights"], found["asked"]["weights"]
    np.testing.assert_allclose(known, asked, rtol=FLOAT32, atol=1e-6)


@each_device
def test_blocks_lie_on_the_device_before_they_are_trained(kind):
    found = tell(kind, "prefetch")
    for one in found.values():
        assert len(one["places"]) == 1
        assert one["places"][0].endswith(device_of(kind))
        assert one["rows"] == 4096
    assert found["device"]["mode"] == "resident"
    assert (found["host"]["mode"], found["host"]["ahead"]) == ("staged", 1)


@each_device
def test_the_monitor_sees_a_busy_gpu(kind):
    found = tell(kind, "monitor")
    assert found["samples"] > 1
    if kind == "cpu":
        assert found["gpus"] == []
        return
    first = found["gpus"][0]
    assert first["name"]
    assert "simulated" not in first["name"]
    assert first["utilization_percent"] > 0
    assert first["memory_bytes"] > 0
    assert found["verdict"].startswith(("GPU:0 computed", "Each of"))


@each_device
def test_a_profile_has_the_devices_own_lines(kind):
    found = tell(kind, "profiled")
    assert found["device"] == device_of(kind)
    assert sum(name.startswith("dense") for name in found["layers"]) == 2
    if kind == "cpu":
        assert found["kernels"] == []
        assert found["bytes"] is None
        return
    assert found["kernels"]
    assert found["kernel_s"] > 0
    assert found["shares"]["kernels"] > 0
    assert found["bytes"]["to_device"] >= 0


@each_device
def test_one_device_is_a_team_of_one(kind):
    found = tell(kind, "mirrored")
    for name in ("named", "all"):
        assert found[name]["replicas"] == 1
        assert found[name]["variables"].keys() == {device_of(kind)}
        assert falls(found[name]["loss"])
    assert falls(found["strategy"])


@each_device
def test_two_replicas_on_halves_of_a_device_train_as_one(kind):
    found = tell(kind, "split")
    assert found["two"]["replicas"] == 2
    assert found["two"]["devices"] == [f"{kind.upper()}:0", f"{kind.upper()}:1"]
    np.testing.assert_allclose(found["two"]["loss"], found["one"]["loss"], rtol=FLOAT32)


@pytest.mark.gpu
@needs_gpu
def test_a_batch_that_does_not_fit_is_halved_until_it_does():
    found = tell("gpu", "memory")
    assert "GPU:0 ran out of memory at batch size 128" in found["stopped"]["error"]
    halved, narrow = found["halved"], found["narrow"]
    assert 1 <= halved["micro"] < found["batch"]
    assert halved["notes"][0].startswith("GPU:0 ran out of memory: batches of 128 rows go")
    assert (halved["rows"], halved["updates"]) == (narrow["rows"], narrow["updates"])
    for name, values in narrow["history"].items():
        np.testing.assert_allclose(halved["history"][name], values, rtol=FLOAT32)
