from importlib.util import find_spec

import numpy as np
import pytest
from children import run_script

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import BackendError, DataError, RuntimeMissingError


def test_importing_the_door_imports_no_tensorflow():
    script = "import sys; from gpukeras.backend import runtime; answer = runtime.imported()"
    assert run_script(script) is False


def test_without_tensorflow_the_error_is_classed():
    script = """
    import sys
    sys.modules["tensorflow"] = None  # what Python itself does for a module that is not there
    from gpukeras.backend import runtime, tensor_ops
    from gpukeras.core.errors import RuntimeMissingError
    try:
        runtime.tensorflow()
    except RuntimeMissingError as error:
        answer = error.message
    """
    assert run_script(script).startswith("TensorFlow cannot be imported")


# Importing TensorFlow takes seconds, so one process answers several questions, one after another.
SESSION = """
import os, sys, types
from gpukeras.backend import cuda_preload, runtime, tensor_ops
from gpukeras.core.errors import RuntimeMissingError
answer = {"preload": [cuda_preload.done]}

def refuse():
    try:
        runtime.keras()
    except RuntimeMissingError as error:
        return [error.message, error.hint]

os.environ["KERAS_BACKEND"] = "torch"
answer["torch"] = refuse()
first = cuda_preload.done
answer["preload"] += [first.status, cuda_preload.prepare() is first]
for name in [name for name in sys.modules if name.split(".")[0] == "keras"]:
    del sys.modules[name]
os.environ["KERAS_BACKEND"] = "tensorflow"

other = types.ModuleType("keras")
other.backend = types.SimpleNamespace(backend=lambda: "torch")
sys.modules["keras"] = other
answer["others"] = []
for other.__version__ in ("3.15.1", "2.15.0"):
    answer["others"].append(refuse()[0])
del sys.modules["keras"]

steps = [
    lambda: runtime.keras(),
    lambda: runtime.physical_devices("CPU"),
    lambda: runtime.visible_devices("GPU"),
    lambda: runtime.set_threads(2, 2),
    lambda: runtime.set_dtype_policy("float32"),
    lambda: runtime.set_seed(1),
    lambda: runtime.set_deterministic(),
    lambda: runtime.build_info(),
]
answer["started"] = []
for step in steps:
    step()
    answer["started"].append(runtime.started())
runtime.tensorflow().zeros(1)
answer["started"].append(runtime.started())
"""


@pytest.fixture(scope="module")
def session():
    return run_script(SESSION, GPUKERAS_PRELOAD="false")


@pytest.mark.tf
def test_another_backend_or_keras_2_is_refused(session):
    torch, keras_2 = session["others"]
    assert torch.endswith("found torch.")
    assert keras_2.endswith("found Keras 2.")


@pytest.mark.tf
def test_a_backend_that_is_not_installed_is_named(session):
    message, hint = session["torch"]
    lacks = "gpukeras needs Keras 3 on the TensorFlow or JAX backend, not torch"
    assert message.startswith(lacks)
    assert "KERAS_BACKEND" in hint


@pytest.mark.tf
def test_libraries_are_prepared_once_before_tensorflow_is_imported(session):
    assert session["preload"] == [None, "not needed", True]


@pytest.mark.tf
def test_nothing_but_the_first_op_starts_tensorflow(session):
    assert session["started"] == [False] * 8 + [True]


@pytest.mark.tf
def test_on_device_puts_soft_placement_back():
    config = runtime.tensorflow().config
    before = config.get_soft_device_placement()
    with runtime.on_device("CPU:0"):
        assert not config.get_soft_device_placement()
    assert config.get_soft_device_placement() == before


@pytest.mark.tf
def test_on_device_raises_where_there_is_none():
    tf = runtime.tensorflow()
    with pytest.raises(tf.errors.InvalidArgumentError), runtime.on_device("GPU:97"):
        tf.zeros(1)


def aligned(shape):
    size = int(np.prod(shape)) * 4
    buffer = np.empty(size + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    return buffer[start : start + size].view(np.float32).reshape(shape)


@pytest.mark.tf
def test_an_adopted_array_is_shared_and_read_only():
    array = aligned((8, 4))
    array[:] = 3
    tensor = tensor_ops.adopt_array(array)
    assert np.shares_memory(np.asarray(tensor), array)
    assert not array.flags.writeable


@pytest.mark.tf
@pytest.mark.parametrize("spoil", [lambda a: a.ravel()[1:], lambda a: a.T])
def test_memory_that_would_abort_the_process_is_refused(spoil):
    with pytest.raises(DataError, match="Memory to adopt must be C-ordered and aligned to 64"):
        tensor_ops.adopt_array(spoil(aligned((8, 4))))


def test_runtime_missing_is_an_error_of_gpukeras():
    assert RuntimeMissingError.code == "runtime_missing"


@pytest.mark.skipif(find_spec("jax") is not None, reason="JAX is installed")
def test_jax_that_is_not_installed_is_named():
    script = """
    import os
    os.environ["KERAS_BACKEND"] = "jax"
    from gpukeras.backend import runtime, tensor_ops
    from gpukeras.core.errors import RuntimeMissingError
    try:
        runtime.keras()
    except RuntimeMissingError as error:
        answer = [error.message, error.hint]
    """
    message, hint = run_script(script)
    assert message.startswith("JAX cannot be imported")
    assert "install_gpukeras" in hint


@pytest.mark.parametrize(
    ("variable", "file", "backend"),
    [
        ("jax", None, "jax"),
        (None, '{"backend": "jax"}', "jax"),
        ("tensorflow", '{"backend": "jax"}', "tensorflow"),
        (None, '{"backend": "torch"}', "tensorflow"),  # gpukeras would have to refuse it
        (None, "{", "tensorflow"),
        (None, None, "tensorflow"),
    ],
)
def test_the_backend_is_that_of_keras_configuration(tmp_path, monkeypatch, variable, file, backend):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(runtime, "keras_imported", lambda: False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    if variable:
        monkeypatch.setenv("KERAS_BACKEND", variable)
    if file:
        (tmp_path / "keras.json").write_text(file)
    runtime.find_configured.cache_clear()
    assert runtime.backend() == backend
    runtime.find_configured.cache_clear()


def test_on_jax_functions_are_those_of_jax_and_tensorflow_is_refused(monkeypatch):
    monkeypatch.setattr(runtime, "backend", lambda: "jax")
    assert runtime.engine_names() == ("compiled", "keras")
    with pytest.raises(BackendError, match="works on the TensorFlow backend only") as caught:
        runtime.tensorflow()
    assert 'gpu_setup(backend = "tensorflow")' in caught.value.hint
