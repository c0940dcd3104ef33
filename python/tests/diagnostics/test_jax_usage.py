"""The check where Keras runs on JAX, on this computer: in processes, as Keras has one backend."""

import sys
from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from children import PATHS, needs_no_gpu, run_script

from gpukeras.diagnostics import child_probes
from gpukeras.diagnostics.jax_usage import count_kernels

needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed")
FACTS = {"python": {"executable": sys.executable}, "keras": {"backend": "jax"}}


def a_plane(name, line, *lengths):
    events = [SimpleNamespace(duration_ns=length) for length in lengths]
    return SimpleNamespace(name=name, lines=[SimpleNamespace(name=line, events=events)])


def test_kernels_are_what_runs_on_the_streams_of_gpus():
    planes = [
        a_plane("/device:GPU:0", "Stream #13(Compute)", 2e6, 3e6),
        a_plane("/device:GPU:0", "XLA Ops", 9e6),
        a_plane("/host:CPU", "Stream #1", 7e6),
    ]
    assert count_kernels(planes) == {"kernels": 2, "kernel_s": 0.005, "gpu_planes": 2}
    assert count_kernels([]) == {"kernels": 0, "kernel_s": 0, "gpu_planes": 0}


def on_jax(test):
    """Marks a test that starts a process of JAX."""
    return pytest.mark.slow(pytest.mark.process(needs_jax(test)))


def jax_environment(environment):
    return {**environment, "PYTHONPATH": PATHS, "JAX_PLATFORMS": "cpu"}


@on_jax
def test_jax_lists_its_devices_in_a_process_of_its_own():
    facts = dict(FACTS)
    with child_probes.quiet_environment("jax") as environment:
        child_probes.read_listings(facts, jax_environment(environment))
    found = facts["listings"]["as it is"]
    assert (found["ok"], found["gpus"], found["error"]) == (True, [], "")
    assert found["version"] == version("jax")


@on_jax
def test_a_platform_that_jax_cannot_start_is_an_error_in_its_words():
    facts = dict(FACTS)
    with child_probes.quiet_environment("jax") as environment:
        broken = {**jax_environment(environment), "JAX_PLATFORMS": "no_such"}
        child_probes.read_listings(facts, broken)
    found = facts["listings"]["as it is"]
    assert found["gpus"] == []
    assert "no_such" in found["error"]


@on_jax
def test_the_cpu_proves_itself_on_jax():
    with child_probes.quiet_environment("jax") as environment:
        proof = child_probes.prove_device("CPU:0", sys.executable, jax_environment(environment))
    assert (proof["ok"], proof["ended"], proof["error"]) == (True, "", "")
    assert [stage["name"] for stage in proof["stages"]] == ["product", "convolution", "fit"]
    use = proof["use"]
    assert use["variables"] == {"CPU:0": 4}
    assert use["trace"]["kernels"] == 0
    assert use["unread"].keys() == {"peak_rise_bytes"}


@on_jax
@needs_no_gpu
def test_the_check_names_jax_and_does_not_start_it():
    script = """
    import sys
    from gpukeras.diagnostics import check as diagnosis
    found = diagnosis.check()
    rows = {one.id: one.title for one in found.findings}
    answer = [found.cause_id, rows, "jax" in sys.modules, found.facts["unread"]]
    """
    cause, rows, imported, unread = run_script(script, KERAS_BACKEND="jax")
    assert (cause, imported, unread) == ("A1", False, {})
    assert {
        "jax": "JAX",
        "gpus": "GPUs in JAX",
        "memory": "GPU memory in JAX",
    }.items() <= rows.items()
    assert not {"tensorflow", "D6", "C1", "C0"} & rows.keys()


@pytest.mark.nightly  # on TensorFlow in each run, by `test_usage.py` and `test_collect.py`
@needs_jax
@pytest.mark.process
def test_training_of_ones_own_is_observed_and_the_model_is_restored():
    script = """
    import numpy as np
    from small_fits import make_dataset, make_model
    from gpukeras.diagnostics import check as diagnosis
    model = make_model(optimizer="adam")
    before = [np.array(each) for each in model.get_weights()]
    facts = diagnosis.check(None, model, make_dataset(200)).facts
    same = all(np.array_equal(*pair) for pair in zip(before, model.get_weights()))
    answer = [same, facts["use"], facts["jax"]]
    """
    same, use, session = run_script(script, fork=True, KERAS_BACKEND="jax")
    assert same
    assert (use["device"], use["jit"]) == ("CPU:0", True)
    assert use["variables"].keys() == {"CPU:0"}
    assert (session["imported"], session["started"], session["physical_gpus"]) == (True, True, [])


@on_jax
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_tensorflow_beside_jax_is_seen():
    script = """
    import jax
    from gpukeras.backend.jax_backend import tensorflow_beside
    answer = [tensorflow_beside()]
    import tensorflow as tf
    answer.append(tensorflow_beside())
    tf.constant(1)
    answer.append(tensorflow_beside()["started"])
    """
    nothing, imported, started = run_script(script, KERAS_BACKEND="jax")
    assert nothing is None
    assert imported["started"] is False
    assert isinstance(imported["visible_gpus"], list)
    assert started is True
