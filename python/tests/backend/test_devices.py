"""Devices and memory are read and set up for real, in processes of their own."""

import pytest
from children import needs_gpu, run_script

# On this computer, in processes of their own -----------------------------------------------------


# Importing TensorFlow takes seconds, so each process answers several questions, one after another.
ONE_CPU = """
import ctypes, os
from dataclasses import asdict
from gpukeras.backend import devices, env_vars, runtime
from gpukeras.system import environment
from gpukeras.core.errors import NoDeviceError
libc = ctypes.CDLL(None)
libc.setenv(b"KERAS_BACKEND", b"tensorflow", 1)  # what R's Sys.setenv() does
libc.setenv(b"TF_GPUKERAS", b"one", 1)
libc.unsetenv(b"XLA_FLAGS")
libc.setenv(b"OTHER", b"stays", 1)

def sync():
    changes = env_vars.sync_environment()
    return [[change.name, change.c, change.python, change.copied] for change in changes]

answer = {"early": sync()}
libc.setenv(b"CUDA_VISIBLE_DEVICES", b"-1", 1)

try:
    devices.setup(device="GPU:31", threads=3, precision="mixed_float16")
except NoDeviceError as error:
    found = [error.details, runtime.threads(), runtime.dtype_policy(), runtime.started()]
    answer["failed"] = found

answer["heard"] = [os.environ.get("CUDA_VISIBLE_DEVICES"), devices.setup().notes]
answer["read"] = {
    "devices": [asdict(device) for device in devices.read_devices()],
    "memory": devices.read_memory(),
    "free": devices.free_bytes("CPU:0"),
    "none": devices.free_bytes("GPU:31"),
    "gpu": [devices.gpu_bytes("CPU:0"), devices.gpu_bytes("GPU:31")],
    "default": asdict(devices.current()),
    "started": runtime.started(),
}

record = devices.setup(device="cpu", threads=3.0, seed=5.0, precision="mixed_bfloat16")
answer["setup"] = {
    "record": asdict(record),
    "current": asdict(devices.current()),
    "started": runtime.started(),
    "threads": runtime.threads(),
    "policy": runtime.dtype_policy(),
    "growth": environment.c_variable("TF_FORCE_GPU_ALLOW_GROWTH"),
    "draw": float(runtime.keras().random.normal((1,))[0]),
}

record = devices.setup(threads=1, seed=1, precision="mixed_float16")
answer["late"] = {"record": asdict(record), "policy": runtime.dtype_policy()}

late = devices.apply_setting(devices.Setting("threads", 4, "applied", "as asked"))
answer["refused"] = asdict(late)

libc.setenv(b"TF_GPUKERAS", b"two", 1)
answer["later"] = sync()
answer["python"] = [os.environ.get(name) for name in ("KERAS_BACKEND", "TF_GPUKERAS", "OTHER")]
libc.setenv(b"TF_GPUKERAS", b"one", 1)
libc.setenv(b"CUDA_VISIBLE_DEVICES", b"0", 1)
answer["changed"] = devices.setup().notes
"""
TWO_CPUS = """
from gpukeras.backend import devices
from gpukeras.backend import runtime
from gpukeras.core.errors import NoDeviceError
tf = runtime.tensorflow()
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
answer = {}

try:
    devices.enter_device("GPU:31")
except NoDeviceError as error:
    answer["missing"] = [error.details, tf.zeros(1).device, devices._current]

before = devices.current().device
outer = devices.enter_device("cpu:1")
places = [tf.random.normal((4, 4)).device, devices.current().device]
inner = devices.enter_device("cpu:0")
places += [tf.random.normal((4, 4)).device]
devices.exit_device(inner)
places += [tf.random.normal((4, 4)).device]
devices.exit_device(outer)
soft = tf.config.get_soft_device_placement()
answer["entered"] = [places, before, devices.current().device, soft]

devices.setup(device="cpu", seed=5.0, precision="mixed_bfloat16")
answer["draw"] = float(runtime.keras().random.normal((1,))[0])
"""


@pytest.fixture(scope="module")
def one_cpu():
    return run_script(ONE_CPU, XLA_FLAGS="")


@pytest.fixture(scope="module")
def two_cpus():
    return run_script(TWO_CPUS)


@pytest.mark.slow
@pytest.mark.tf
def test_reading_devices_and_memory_starts_nothing(one_cpu):
    found = one_cpu["read"]
    assert [device["name"] for device in found["devices"]] == ["CPU:0"]
    assert found["devices"][0]["memory_bytes"] > 2**28
    memory = found["memory"][0]
    assert 0 < memory["current_bytes"] <= memory["peak_bytes"] < memory["limit_bytes"]
    assert found["free"] > 0
    assert found["none"] is None
    assert found["gpu"] == [None, None]
    assert found["default"]["device"] == "CPU:0"
    assert found["started"] is False


@pytest.mark.tf
def test_setup_takes_effect_and_starts_nothing(one_cpu, two_cpus):
    found = one_cpu["setup"]
    assert found["started"] is False
    assert found["record"]["already_started"] is False
    assert found["threads"] == [3, 3]
    assert found["policy"] == found["current"]["precision"] == "mixed_bfloat16"
    assert found["current"]["seed"] == 5
    assert found["growth"] == "true"  # child processes inherit it
    assert found["draw"] == two_cpus["draw"]  # in another process, after other draws


@pytest.mark.tf
def test_after_the_start_settings_are_reported_and_what_can_still_applies(one_cpu):
    found = one_cpu["late"]
    settings = {setting["name"]: setting for setting in found["record"]["settings"]}
    assert found["record"]["already_started"] is True
    assert (settings["threads"]["status"], settings["threads"]["value"]) == ("too late", 3)
    assert settings["seed"]["status"] == settings["precision"]["status"] == "applied"
    assert found["policy"] == "mixed_float16"


@pytest.mark.tf
def test_a_refusal_by_tensorflow_is_reported(one_cpu):
    found = one_cpu["refused"]
    assert found["status"] == "too late"
    assert "cannot be modified after" in found["reason"]


@pytest.mark.tf
def test_a_failed_setup_changes_nothing(one_cpu):
    details, threads, policy, started = one_cpu["failed"]
    assert details["wanted"] == "GPU:31"
    assert "CPU:0" in details["found"]
    assert (threads, policy, started) == ([0, 0], "float32", False)


@pytest.mark.tf
def test_variables_that_came_too_late_are_told(one_cpu):
    assert one_cpu["changed"][0].startswith("CUDA_VISIBLE_DEVICES changed after TensorFlow")


@pytest.mark.tf
def test_code_runs_on_the_device_entered_until_it_is_left(two_cpus):
    places, before, after, soft = two_cpus["entered"]
    assert [place[-5:] for place in places] == ["CPU:1", "CPU:1", "CPU:0", "CPU:1"]
    assert before == after
    assert soft is True


@pytest.mark.tf
def test_entering_a_device_that_is_not_there_is_classed_and_changes_nothing(two_cpus):
    details, place, current = two_cpus["missing"]
    assert details["wanted"] == "GPU:31"
    assert details["found"][:2] == ["CPU:0", "CPU:1"]
    assert place.endswith("CPU:0")
    assert current is None


@pytest.mark.tf
def test_what_r_sets_reaches_python_until_tensorflow_is_imported(one_cpu):
    found = one_cpu
    assert sorted(found["early"]) == [
        ["KERAS_BACKEND", "tensorflow", None, True],
        ["TF_GPUKERAS", "one", None, True],
        ["XLA_FLAGS", None, "", True],
    ]
    assert found["heard"] == ["-1", []]  # whatever imports TensorFlow first hears of R
    assert found["later"] == [["TF_GPUKERAS", "two", "one", False]]
    assert found["python"] == ["tensorflow", "one", None]


@pytest.mark.gpu
@pytest.mark.tf
@needs_gpu
def test_a_real_gpu_is_set_up():
    script = """
    from dataclasses import asdict
    from gpukeras.backend import devices
    from gpukeras.backend import runtime
    record = devices.setup(device="gpu", memory=2048)
    free, whole = devices.free_bytes("GPU:0"), devices.gpu_bytes("GPU:0")
    started = runtime.started()
    handle = devices.enter_device("gpu")
    place = runtime.tensorflow().random.normal((512, 512)).device
    devices.exit_device(handle)
    answer = [asdict(record), free, whole, started, place, devices.read_memory()]
    """
    record, free, whole, started, place, memory = run_script(script)
    assert record["device"] == "GPU:0"
    assert not started
    assert place.endswith("GPU:0")
    assert 0 < free <= 2048 * 2**20 == memory[1]["limit_bytes"] == whole
    assert memory[1]["peak_bytes"] >= 512 * 512 * 4
