"""Implements on JAX what `runtime` defines for TensorFlow: devices, memory, tensors.

Functions have the names and arguments of those in `runtime` that `@by_backend` marks. JAX has no
memory growth to switch on and no devices to hide once it has started: a setter that comes too late
raises RuntimeError, which `gpu_setup()` reports.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private
from gpukeras.backend.jax_images import resample as resample
from gpukeras.backend.jax_models import build_by_call as build_by_call
from gpukeras.backend.jax_models import dtype_bytes as dtype_bytes
from gpukeras.backend.jax_models import input_gradients as input_gradients
from gpukeras.backend.jax_models import make_spec as make_spec
from gpukeras.backend.jax_models import outline as outline
from gpukeras.backend.jax_models import predict_batch as predict_batch
from gpukeras.backend.jax_models import predictor as predictor
from gpukeras.backend.jax_models import stepping as stepping
from gpukeras.backend.jax_module import PREALLOCATE, jax
from gpukeras.core.errors import BackendError
from gpukeras.core.keras_types import Model
from gpukeras.core.memory import aligned_empty

SHARES = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION")  # JAX refuses both at once
# Of a card's memory, where it grows too: JAX, "GPU memory allocation"; CreateBFCAllocator() in
# xla/pjrt/gpu/gpu_helpers.cc.
USUAL_SHARE = 0.75
TOO_LATE = "JAX has started; set it before the first model, in a new session"


class JaxExhaustedError(MemoryError):
    """A device's memory does not suffice; JAX itself raises one class for every failure."""


@dataclass(frozen=True)
class JaxDevice:
    """A device, named as TensorFlow names it.

    Args:
        name: Such as "/physical_device:GPU:0".
        device: JAX's own object.
    """

    name: str
    device: Any


def engine_names() -> tuple[str, ...]:
    """Returns the names of the engines: XLA compiles both, so the loop is never the slower one."""
    return ("compiled", "keras")


def backend_version() -> dict[str, str]:
    """Returns the name and version of Keras' backend."""
    return {"JAX": jax().__version__}


# Devices -----------------------------------------------------------------------------------------


def imported() -> bool:
    """Whether JAX is already imported, by any code."""
    return "jax" in sys.modules


def started() -> bool:
    """Whether JAX has opened its devices, after which most settings are too late."""
    return imported() and keras_private.jax_has_devices()


def physical_devices(kind: str) -> list[JaxDevice]:
    """Returns the devices of a kind ("CPU", "GPU"); starts JAX."""
    try:
        devices = jax().local_devices(backend=kind.lower())
    except RuntimeError:  # JAX has no platform of this kind
        return []
    return [
        JaxDevice(f"/physical_device:{kind}:{place}", device)
        for place, device in enumerate(devices)
    ]


visible_devices = logical_devices = physical_devices


def set_visible_devices(devices: Sequence[Any], kind: str) -> None:
    """Refuses to hide devices; all of them being visible is no change."""
    if len(devices) != len(physical_devices(kind)):
        raise RuntimeError("JAX hides GPUs by CUDA_VISIBLE_DEVICES only, before it starts")


def device_details(device: JaxDevice) -> dict[str, Any]:
    """Returns name and compute capability of a GPU."""
    capability = str(getattr(device.device, "compute_capability", ""))
    parts = tuple(int(part) for part in capability.split(".") if part.isdigit())
    return {"device_name": device.device.device_kind, "compute_capability": parts}


def _stats(device: str) -> dict[str, int]:
    return dict(find_device(device).memory_stats() or {})


def memory_info(device: str) -> dict[str, int]:
    """Returns current and peak bytes of JAX's allocator on a device (`current`, `peak`)."""
    stats = _stats(device)
    return {"current": stats.get("bytes_in_use", 0), "peak": stats.get("peak_bytes_in_use", 0)}


def reset_memory_peak(device: str) -> None:
    """Does nothing: JAX keeps the peak of the whole session."""


def prepare_memory(memory: str | int) -> None:
    """Sets whether JAX takes three quarters of a GPU's memory when it starts."""
    if not started() and isinstance(memory, str):
        os.environ[PREALLOCATE] = "true" if memory == "all" else "false"


def memory_growth(device: Any) -> bool | None:
    """Whether JAX takes memory on demand; None if a share of it is set instead."""
    return None if find_share() in os.environ else os.environ.get(PREALLOCATE) == "false"


def set_memory_growth(device: Any, grow: bool) -> None:
    """Sets whether JAX takes memory on demand, before it has started."""
    if memory_growth(device) is not grow:
        _require_not_started()
        os.environ[PREALLOCATE] = "false" if grow else "true"


def set_memory_limit(device: Any, mebibytes: int) -> None:
    """Refuses a limit in MiB: JAX takes a share of the memory."""
    raise RuntimeError(f"JAX limits memory by {find_share()}, a share of the whole")


def memory_limit(device: JaxDevice) -> int | None:
    """Returns the MiB that JAX may take of a GPU, or None if not limited."""
    limit = usable_bytes(device) if find_share() in os.environ else None
    return None if limit is None else limit // 2**20


def usable_bytes(device: JaxDevice) -> int | None:
    """Returns the bytes that JAX's allocator takes of a GPU at most; None if unknown."""
    limit = dict(device.device.memory_stats() or {}).get("bytes_limit")
    return None if limit is None else int(limit)


def find_share() -> str:
    """Returns the variable by which JAX gets a share of memory: the one that is set, if one is."""
    return next((name for name in reversed(SHARES) if name in os.environ), SHARES[0])


def usable_share() -> float:
    """Returns the share of a card's memory that JAX takes at most."""
    try:
        return float(os.environ[find_share()])
    except (KeyError, ValueError):
        return USUAL_SHARE


def _require_not_started() -> None:
    if started():
        raise RuntimeError(TOO_LATE)


def threads() -> tuple[int, int]:
    """Returns intra-op and inter-op threads; 0 is JAX's own choice, the only one."""
    return (0, 0)


def set_threads(intra: int, inter: int) -> None:
    """Refuses a number of threads: JAX has no such setting."""
    raise RuntimeError("JAX chooses its threads itself, one per core that the process may use")


def set_seed(seed: int) -> None:
    """Seeds Python, NumPy and Keras; Keras' own function would load TensorFlow besides."""
    random.seed(seed)
    np.random.seed(seed)
    keras_private.set_global_seed(seed)


def read_seed() -> int | None:
    """Returns the seed that the user gave Keras, or None."""
    return keras_private.global_seed()


def set_deterministic() -> None:
    """Makes XLA use deterministic GPU kernels only; on a CPU all are."""
    if physical_devices("GPU"):
        raise RuntimeError("add --xla_gpu_deterministic_ops=true to XLA_FLAGS before JAX starts")


def build_info() -> dict[str, Any]:
    """Returns nothing: JAX's wheels do not describe how they were built."""
    return {}


def tensor_float_32() -> bool:
    """Whether float32 products may be computed as TF32 on GPUs that support it."""
    return jax().config.jax_default_matmul_precision in (None, "tensorfloat32", "default")


def set_tensor_float_32(allowed: bool) -> None:
    """Allows TF32 in float32 products, or forbids it."""
    jax().config.update("jax_default_matmul_precision", None if allowed else "highest")


def find_device(device: str) -> Any:
    """Returns JAX's own device of a name such as "GPU:0"."""
    kind, _, place = device.lstrip("/").partition(":")
    return physical_devices(kind)[int(place or 0)].device


def device_scope(device: str) -> Any:
    """Returns a context whose tensors are made on a device."""
    return jax().default_device(find_device(device))


@contextmanager
def on_device(device: str, *, soft: bool = False) -> Iterator[None]:
    """Makes new arrays on `device`; JAX never places an operation elsewhere."""
    with device_scope(device):
        yield


# Traces ------------------------------------------------------------------------------------------


@contextmanager
def profile(folder: str) -> Iterator[None]:
    """Writes a profiler trace of the work inside the context into a folder."""
    options = jax().profiler.ProfileOptions()
    options.host_tracer_level, options.python_tracer_level = 2, 0
    with jax().profiler.trace(folder, profiler_options=options):
        keras_private.mend_tensorflow_trace()
        yield
    keras_private.mend_tensorflow_trace()


def mark_step(number: int) -> Any:
    """Returns a context whose work a trace shows as a step of a number."""
    return jax().profiler.StepTraceAnnotation("train", step_num=number)


def trace_errors() -> tuple[type[BaseException], ...]:
    """Returns the errors of a profiler that cannot record or be read."""
    return (OSError, jax().errors.JaxRuntimeError, BackendError)


# For `gpu_check()` ------------------------------------------------------------------------------


def jax_platforms() -> str | None:
    """Returns the platforms that the imported JAX is configured to start; None for all."""
    chosen = jax().config.jax_platforms
    return None if chosen is None else str(chosen)


def tensorflow_beside() -> dict[str, Any] | None:
    """Returns TensorFlow's state where some code has imported it beside JAX, else None."""
    tensorflow = sys.modules.get("tensorflow")
    context = sys.modules.get("tensorflow.python.eager.context")
    if tensorflow is None or context is None:
        return None
    started = keras_private.is_context_started(context.context())
    gpus = tensorflow.config.get_visible_devices("GPU")
    names = [gpu.name.removeprefix("/physical_device:") for gpu in gpus]
    return {"started": started, "visible_gpus": names}


# Tensors and models ------------------------------------------------------------------------------


def adopt_array(array: np.ndarray) -> Any:
    """Returns a tensor of an aligned array, without a copy where JAX can; it becomes read-only."""
    tensor = jax().device_put(array, find_device("CPU:0"))
    array.flags.writeable = False
    return tensor


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that runs as a program, one for each shape of its arguments."""
    program: Callable[..., Any] = jax().jit(function)
    return program


def trace_rows(
    function: Callable[[Any, Any], Any], state: list[Any], rows: Any
) -> tuple[Callable[[Any, Any], Any], list[Any]]:
    """Returns a function of a state and rows as a program, one for each number of rows."""
    return jax().jit(function), []


def predict_by_step(model: Model, features: Any) -> Any:
    """Refuses: on JAX a step takes and gives the state of all variables.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError("predict_step() on JAX")


def take_over(tensor: Any) -> np.ndarray:
    """Returns a tensor of TensorFlow as an array, without a copy."""
    return np.asarray(tensor)


def returns_early(device: str) -> bool:
    """See `tensor_ops`; on a CPU too, from JAX 0.10 on."""
    return True


def batch_bytes(device: str) -> int:
    """See `tensor_ops`; XLA gets a batch's memory anew, which on a CPU takes long for much.

    A million rows of 20 columns took 0.099 s by 8 MiB, 0.135 s by 16 and 0.217 s by 64; 8,000
    images of a convnet 0.46, 0.47 and 0.81 s (2 cores, medians, jaxlib 0.7).
    """
    return (8 if device.startswith("CPU") else 64) * 2**20


def widest_float() -> str:
    """Returns the dtype of the most precise numbers that the backend computes with."""
    return "float32"


def put(value: Any, device: str) -> Any:
    """Returns an array on a device; copied if it is elsewhere."""
    return jax().device_put(value, find_device(device))


def take(tensor: Any, rows: Any) -> Any:
    """Gathers rows of a tensor on its device; NumPy does so on a CPU, and compiles nothing."""
    if kind_of(next(iter(tensor.devices()))) != "CPU":
        return jax().numpy.take(tensor, rows, axis=0)
    taken = aligned_empty((*np.shape(rows), *tensor.shape[1:]), tensor.dtype)
    return adopt_array(np.take(np.asarray(tensor), rows, axis=0, out=taken, mode="clip"))


def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns zeros on the current device, for `store()`."""
    return jax().numpy.zeros(shape, dtype)


def store(whole: Any, start: int, part: np.ndarray) -> Any:
    """Returns a tensor with some of its rows replaced, in the same memory."""
    update = jax().jit(_store, donate_argnums=0)
    return update(whole, part, start)


def _store(whole: Any, part: Any, start: Any) -> Any:
    return jax().lax.dynamic_update_slice_in_dim(whole, part, start, 0)


def hold_value(variable: Any) -> Any:
    """See `tensor_ops.hold_value()`; arrays never change."""
    return variable.value


def keep_pace(value: Any) -> None:
    """See `tensor_ops`; JAX takes any number of calls, and holds the rows of each on the device."""
    if hasattr(value, "is_deleted") and not value.is_deleted():
        wait(value)


def wait(value: Any) -> None:
    """Waits until a device has computed a value.

    Raises:
        JaxExhaustedError: if its memory did not suffice; a CPU says so only here.
    """
    with memory_faults():
        jax().block_until_ready(value)


def refusals() -> tuple[type[BaseException], ...]:
    """Returns no errors: on JAX, XLA compiles whatever can be traced."""
    return ()


def row_errors() -> tuple[type[BaseException], ...]:
    """Returns no errors: XLA's programs check no values."""
    return ()


def exhausted(*more: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Returns the error that `memory_faults()` raises where memory does not suffice, and `more`."""
    return (JaxExhaustedError, *more)


@contextmanager
def memory_faults() -> Iterator[None]:
    """Raises JaxExhaustedError where JAX says that memory does not suffice.

    A GPU says RESOURCE_EXHAUSTED; a CPU, whose programs run on a thread, INTERNAL and this text.
    """
    try:
        yield
    except jax().errors.JaxRuntimeError as error:
        if not any(text in str(error) for text in ("RESOURCE_EXHAUSTED", "Out of memory")):
            raise
        raise JaxExhaustedError(str(error)) from error


def allows_xla(model: Model) -> bool:
    """Whether XLA may compile a compiled model."""
    return bool(model.jit_compile)


def kind_of(device: Any) -> str:
    """Returns the kind of one of JAX's own devices, "CPU" or "GPU"."""
    return "CPU" if device.platform == "cpu" else "GPU"


def place_of(tensor: Any) -> str:
    """Returns the device of an array, such as "GPU:0"."""
    device = next(iter(tensor.devices()))
    kind = kind_of(device)
    known = [device.device for device in physical_devices(kind)]
    return f"{kind}:{known.index(device)}"


def is_distributed(variables: Sequence[Any]) -> bool:
    """Whether one of some Keras variables is spread over several devices."""
    return any(len(variable.value.devices()) > 1 for variable in variables)


def trace(step: Callable[[Any], Any], data: Any) -> None:
    """Does nothing: on JAX a step cannot create variables."""


def in_strategy() -> bool:
    """Returns False: TensorFlow's strategies do not run on JAX."""
    return False
