"""Lets a part of the CPU play a GPU, for `pytest --pretend-gpu`: decided as on one, and run.

JAX and TensorFlow divide the CPU into two devices. One keeps its name; the other takes the name,
the memory and the compute capability of a GPU, and is where tensors are made unless somebody says
otherwise. So host and device differ, and calls go a GPU's way wherever somebody asks for the kind
of device. A program whose arguments lie on both sides is an error: JAX refuses it anyway,
TensorFlow would copy in silence.

What it cannot show: TensorFlow's kernels of cuDNN, so Keras' recurrent layers run as on a CPU; the
memory that an allocator holds; time.
"""

import functools
import importlib
import os
import re
import threading

import pytest

ASKED = "GPUKERAS_PRETENDED_GPU"  # in the environment, of the children of `jax_parts.py` too
CARD, CAPABILITY = "NVIDIA GeForce RTX 3060", (8, 6)
TOTAL_BYTES, FREE_BYTES = 12 * 2**30, 8 * 2**30
FLAG = "--xla_force_host_platform_device_count=2"
DETAILS = {"device_name": CARD, "compute_capability": CAPABILITY}
# The names of the GPU, and of the device that plays it.
GPU_NAME = re.compile(r"/?(device:)?gpu(:0)?", re.IGNORECASE)
PLAYS = "CPU:1"


def pretend():
    """Divides the CPU; before Keras' backend has started, and before a thread has."""
    os.environ[ASKED] = "yes"
    show_memory()
    if os.environ.get("KERAS_BACKEND") == "jax":
        pretend_on_jax()
        leave_out_tensorflow()
    else:
        pretend_on_tensorflow()


def pretend_where_asked():
    """Pretends in a child on JAX, where the tests do."""
    if ASKED in os.environ:
        show_memory()
        pretend_on_jax()


def show_memory():
    """Lets the driver tell of the GPU's memory."""
    from gpukeras.system import host

    card = host.NvmlGpu(CARD, "GPU-pretended", float(TOTAL_BYTES), float(FREE_BYTES))
    host.read_nvml = lambda: [card]


# JAX ---------------------------------------------------------------------------------------------


def pretend_on_jax():
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    import jax

    from gpukeras.backend import jax_backend

    host, gpu = jax.devices("cpu")
    jax.config.update("jax_default_device", gpu)
    playing = {"CPU": host, "GPU": gpu}

    def list_devices(kind):
        return [jax_backend.JaxDevice(f"/physical_device:{kind}:0", playing[kind])]

    for name in ("physical_devices", "visible_devices", "logical_devices"):
        setattr(jax_backend, name, list_devices)
    jax_backend.kind_of = lambda device: "GPU" if device is gpu else "CPU"
    jax_backend.device_details = lambda device: dict(DETAILS)


def leave_out_tensorflow():
    """Skips tests at the place where they ask for TensorFlow: most are written for it."""
    from gpukeras.backend import runtime
    from gpukeras.core.errors import SpecError
    from gpukeras.engine import autotune

    check = autotune._check_available

    def check_engine(facts):
        try:
            check(facts)
        except SpecError as error:
            pytest.skip(error.message)

    autotune._check_available = check_engine
    runtime.tensorflow = lambda: pytest.skip("needs TensorFlow")


# TensorFlow --------------------------------------------------------------------------------------


def pretend_on_tensorflow():
    import tensorflow as tf

    host = tf.config.list_physical_devices("CPU")[0]
    part = tf.config.LogicalDeviceConfiguration
    tf.config.set_logical_device_configuration(host, [part(), part()])
    list_on_tensorflow(tf, host)
    place_on_tensorflow(tf)
    describe_on_tensorflow(tf)
    refuse_other_sides(tf)


def list_on_tensorflow(tf, host):
    """Lists a CPU and a GPU, of which the GPU can be hidden."""
    gpu = type(host)("/physical_device:GPU:0", "GPU")
    shown = {"CPU": [host], "GPU": [gpu]}

    def list_physical(device_type=None):
        return [one for one in (host, gpu) if device_type in (None, one.device_type)]

    def list_visible(device_type=None):
        return [one for one in list_physical(device_type) if one in shown[one.device_type]]

    def list_logical(device_type=None):
        logical = tf.config.LogicalDevice
        kinds = [one.device_type for one in list_visible(device_type)]
        return [logical(f"/device:{kind}:0", kind) for kind in kinds]

    def show(devices, device_type=None):
        for kind in shown:
            if device_type in (None, kind):
                shown[kind] = [one for one in devices if one.device_type == kind]

    for config in (tf.config, tf.config.experimental):
        config.list_physical_devices = list_physical
        config.list_logical_devices = list_logical
        config.get_visible_devices = list_visible
        config.set_visible_devices = show


def place_on_tensorflow(tf):
    """Makes tensors on the GPU unless somebody says otherwise, in all threads."""
    from gpukeras.backend import tensor_ops

    device, start, place_of = tf.device, threading.Thread.start, tensor_ops.place_of

    @functools.wraps(device)
    def device_scope(name):
        played = isinstance(name, str) and GPU_NAME.fullmatch(name)
        return device(f"/{PLAYS}" if played else name)

    def start_there(thread):
        run = thread.run

        def run_there():
            with device(f"/{PLAYS}"):
                run()

        thread.run = run_there
        start(thread)

    tf.device = device_scope
    threading.Thread.start = start_there
    tensor_ops.place_of = lambda tensor: place_of(tensor).replace(PLAYS, "GPU:0")
    device(f"/{PLAYS}").__enter__()


def describe_on_tensorflow(tf):
    """Tells of the GPU what TensorFlow tells of one."""
    found = tf.config.experimental
    found.get_device_details = lambda device: dict(DETAILS)
    found.get_memory_info = lambda device: {"current": 0, "peak": 0}
    found.reset_memory_stats = lambda device: None
    found.get_memory_growth = lambda device: True
    found.set_memory_growth = lambda device, enable: None
    tf.config.get_logical_device_configuration = lambda device: None
    rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")
    rnn._is_gpu_available = lambda: False


def refuse_other_sides(tf):
    """Refuses a program whose tensors and variables lie on both sides, which TensorFlow copies.

    Not integers, which TensorFlow itself keeps in the host's memory, and not single numbers.
    """
    from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction

    call = ConcreteFunction._call_flat

    def counts(value):
        known = isinstance(value, (tf.Tensor, tf.Variable))
        return known and value.dtype.is_floating and value.shape.rank

    def call_on_one_side(self, tensor_inputs, captured_inputs):
        if tf.executing_eagerly():
            values = (*tensor_inputs, *captured_inputs, *self.graph.variables)
            if len(sides := {value.device for value in values if counts(value)}) > 1:
                raise SideError(f"{self.name} has values on {' and '.join(sorted(sides))}")
        return call(self, tensor_inputs, captured_inputs)

    ConcreteFunction._call_flat = call_on_one_side


class SideError(BaseException):
    """A program's values lie on both sides; no handler of errors takes it."""
