"""The whole check under TensorFlow's real package with CUDA, over stand-ins for the driver.

The package and its libraries have 6 GB, so this runs only where GPUKERAS_CUDA_PYTHON names a Python
that has them: `tensorflow[and-cuda]`, 2.21 for all cases. No GPU is needed, and nothing is proven
of one: the stand-ins answer up to the listing of GPUs.
"""

import json
import os
import subprocess

import pytest
from stub_driver import stub_environment

PYTHON = os.environ.get("GPUKERAS_CUDA_PYTHON", "")
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="GPUKERAS_CUDA_PYTHON names no Python that has TensorFlow with CUDA"
)
IMPORTED_FIRST = """
import tensorflow as tf
assert not tf.config.list_physical_devices("GPU")
from gpukeras.diagnostics import check as diagnosis
print(diagnosis.to_json(diagnosis.check()))
"""


def check(*arguments, libraries=("cuda", "nvml"), **settings):
    child = subprocess.run(
        [PYTHON, *arguments],
        env=stub_environment(libraries, TF_CPP_MIN_LOG_LEVEL=2, **settings),
        capture_output=True,
        text=True,
        timeout=300,
    )
    return json.loads(child.stdout[child.stdout.index("{\n") :])


@pytest.mark.parametrize(
    ("settings", "cause", "said"),
    [
        ({"STUB_CUINIT": 803}, "A5", "803"),
        ({"STUB_CUINIT": 804}, "A7", "804"),
        ({"STUB_NVML_INIT": 18}, "A5", "18"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "D1", "1 GPU without it"),
        ({"libraries": ("cuda",)}, "B2", "libnvidia-ml.so.1"),
        ({"STUB_NVML_INIT": 999}, "B2", "999"),
        ({"STUB_DRIVER_VERSION": 11040}, "A3", "11.4"),
        ({"STUB_CAPABILITY": "12.0"}, "A4", "12.0"),
        ({"STUB_CUINIT": 3}, "A16", "3 (CUDA_ERROR_NOT_INITIALIZED)"),
        ({"STUB_CUINIT": 34}, "A15", "34 (CUDA_ERROR_STUB_LIBRARY)"),
        ({"STUB_CUINIT": 46}, "A16", "46 (CUDA_ERROR_DEVICE_UNAVAILABLE)"),
        ({"STUB_CUINIT": 101}, "A16", "101 (CUDA_ERROR_INVALID_DEVICE)"),
        ({"STUB_CUINIT": 999, "STUB_NVML_INIT": 999}, "A16", "NVML returns 999"),
        ({"STUB_COUNT_STATUS": 100}, "B11", "cuDeviceGetCount returns 100"),
        ({"STUB_NVML_INIT": 4}, "A9", "NVML returns 4"),
        ({"STUB_FREE_MIB": 200, "STUB_PID": os.getpid()}, "B10", "200 of"),
    ],
)
def test_each_state_of_the_driver_has_its_cause(settings, cause, said):
    found = check("-m", "gpukeras", "check", "--json", **settings)
    assert (found["verdict"], found["cause_id"]) == ("NOT USED", cause)
    assert said in found["evidence"][0]
    assert found["facts"]["cuda"]["simulated"] is True


def test_the_libraries_that_tensorflow_does_not_find_are_loaded_first():
    found = check("-m", "gpukeras", "check", "--json")
    listings = found["facts"]["listings"]
    assert listings["as it is"]["gpus"] == []
    assert listings["as it is"]["log"]["skipped"] is True
    assert [gpu["name"] for gpu in listings["preloaded"]["gpus"]] == ["GPU:0"]
    assert found["facts"]["tensorflow"]["physical_gpus"] == ["GPU:0"]
    assert found["facts"]["preload"]["status"] == "done"
    # Nothing can be computed on a stand-in, and that is told as what it is.
    assert (found["verdict"], found["cause_id"]) == ("UNPROVEN", None)
    assert "the driver is simulated" in found["evidence"][0]


def test_a_blackwell_card_is_told_before_xla_ends_anything():
    found = check(
        "-m", "gpukeras", "check", "--json", STUB_CAPABILITY="12.0", STUB_DRIVER_VERSION=12080
    )
    assert found["verdict"] == "UNPROVEN"
    (bug,) = [finding for finding in found["findings"] if finding["id"] == "Blackwell"]
    assert bug["status"] == "problem"
    assert "compute capability 12.0" in bug["evidence"]
    assert found["facts"]["listings"]["preloaded"]["log"]["capability"] == "12.0a"


def test_the_package_alone_lets_tensorflow_find_its_libraries():
    listed = "import tensorflow as tf; print(len(tf.config.list_physical_devices('GPU')))"
    for before, count in (("", "0"), ("import gpukeras; ", "1")):
        child = subprocess.run(
            [PYTHON, "-c", before + listed],
            env=stub_environment(TF_CPP_MIN_LOG_LEVEL=2),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert child.stdout.split()[-1] == count


def test_a_tensorflow_that_was_imported_first_is_too_late():
    found = check("-c", IMPORTED_FIRST)
    assert found["cause_id"] == "C9"
    assert "1 GPU with the libraries loaded first" in found["evidence"][0]
