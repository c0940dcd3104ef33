"""Imports Keras and its backend, and wraps the backend's functions.

Functions here make no decisions. The first call of `tensorflow()` imports it, not this module.
Keras runs on TensorFlow or on JAX, see `backend()`. A function marked `@by_backend` is TensorFlow's
here, and JAX's, with the same name and arguments, in `jax_backend`.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

from gpukeras.backend import cuda_preload, jax_backend, keras_private
from gpukeras.backend.import_errors import check_package, importing
from gpukeras.backend.jax_module import jax
from gpukeras.core import fork_guard
from gpukeras.core.errors import BackendError, RuntimeMissingError
from gpukeras.system import pip

ABORTED = 10  # gRPC's code for cancelled work
UNSEEDED = 87654321  # what TensorFlow takes in place of a global seed that was never given


FRAMEWORKS = {"tensorflow": "TensorFlow", "jax": "JAX"}
BACKENDS = tuple(FRAMEWORKS)

P = ParamSpec("P")
R = TypeVar("R")


def backend() -> str:
    """Returns the backend of Keras, "tensorflow" or "jax": the one in use, or the one to be used.

    Keras reads KERAS_BACKEND, then `keras.json`, when it is imported. Another name than these two
    is returned as it is; `keras()` refuses it.
    """
    if keras_imported():
        return str(sys.modules["keras.src.backend.config"].backend())
    return os.environ.get("KERAS_BACKEND") or find_configured()


@functools.cache
def find_configured() -> str:
    """Returns the backend in `keras.json`, or the one that is installed, TensorFlow first."""
    folder = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    try:
        with open(os.path.join(folder, "keras.json"), encoding="utf-8") as file:
            backend = json.load(file).get("backend")
    except (OSError, ValueError, AttributeError):
        backend = ""
    if backend in BACKENDS:
        return str(backend)
    alone = find_spec("tensorflow") is None and find_spec("jax") is not None
    return "jax" if alone else "tensorflow"


def keras_imported() -> bool:
    """Whether Keras has been imported, by any code: its backend cannot change any more."""
    return "keras.src.backend.config" in sys.modules


def by_backend(function: Callable[P, R]) -> Callable[P, R]:
    """Calls the function of `jax_backend` with the same name where Keras runs on JAX."""

    @functools.wraps(function)
    def chosen(*args: P.args, **kwargs: P.kwargs) -> R:
        if backend() != "jax":
            return function(*args, **kwargs)
        result: R = getattr(jax_backend, function.__name__)(*args, **kwargs)
        return result

    return chosen


def tensorflow() -> Any:
    """Returns the tensorflow module, imported on first use.

    Raises:
        BackendError: if Keras runs on another backend.
        RuntimeMissingError: if it cannot be imported, with the import's own message.
        ForkError: in a fork of the process that imported it.
    """
    fork_guard.check_process()
    if backend() == "jax":
        raise BackendError(
            "This works on the TensorFlow backend only, and Keras runs on JAX here.",
            hint='Start a new session with gpu_setup(backend = "tensorflow").',
        )
    return _import_tensorflow()


@functools.cache
def _import_tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    quiet = os.environ["TF_CPP_MIN_LOG_LEVEL"] not in ("0", "1")
    hint = f"Install it: install_gpukeras(), or {pip.install('tensorflow')}."
    with importing("TensorFlow", "tensorflow", hint):
        cuda_preload.prepare()
        with (
            cuda_preload.muted_stderr() if quiet else nullcontext(),
            cuda_preload.paused_collector(),
        ):
            import tensorflow as tf
    # Every training has its own functions: TensorFlow would report many trainings as retracing.
    tf.get_logger().addFilter(lambda record: "tf.function retracing" not in record.getMessage())
    return tf


def reader() -> Any:
    """Returns TensorFlow to read files with; beside JAX it is TensorFlow without GPUs.

    Raises:
        BackendError: if Keras runs on JAX, and TensorFlow is not installed.
        RuntimeMissingError, ForkError: see `tensorflow()`.
    """
    return _import_reader() if backend() == "jax" else tensorflow()


@functools.cache
def _import_reader() -> Any:
    fork_guard.check_process()
    if find_spec("tensorflow") is None:
        raise BackendError(
            "This reads with TensorFlow, also where Keras runs on JAX, and it is not installed.",
            hint=f"Install it beside JAX: install_gpukeras(), or {pip.install('tensorflow-cpu')}.",
        )
    tf = _import_tensorflow()
    with suppress(RuntimeError):  # other code has started it
        tf.config.set_visible_devices([], "GPU")  # the memory is JAX's
    return tf


def keras() -> Any:
    """Returns the keras module on the TensorFlow or JAX backend.

    Raises:
        RuntimeMissingError: if Keras is missing, older than 3, or runs on another backend.
        ForkError: in a fork of the process that imported TensorFlow.
    """
    fork_guard.check_process()
    return _import_keras()


@functools.cache
def _import_keras() -> Any:
    requested = os.environ.setdefault("KERAS_BACKEND", backend())
    jax() if requested == "jax" else tensorflow()
    needs = "gpukeras needs Keras 3 on the TensorFlow or JAX backend"
    hint = "Set KERAS_BACKEND=tensorflow, or jax, before Python starts."
    try:
        import keras as module

        check_package(module)
    except (ImportError, SystemExit) as error:
        if requested not in BACKENDS:
            raise RuntimeMissingError(f"{needs}, not {requested} ({error}).", hint=hint) from error
        hint = pip.hint_import(error, "keras", "keras")
        raise RuntimeMissingError(f"Keras cannot be imported: {error}.", hint=hint) from error
    configured = (
        module.backend.backend() if int(module.__version__.split(".")[0]) > 2 else "Keras 2"
    )
    if configured not in BACKENDS:
        raise RuntimeMissingError(f"{needs}, found {configured}.", hint=hint)
    return module


@by_backend
def engine_names() -> tuple[str, ...]:
    """Returns the names of the engines that the backend has, cheapest to start first."""
    return ("graph_loop", "keras", "compiled")


@by_backend
def backend_version() -> dict[str, str]:
    """Returns the name and version of Keras' backend."""
    return {"TensorFlow": tensorflow().__version__}


def tree() -> Any:
    """Returns Keras' functions on nested structures, such as `map_structure()`."""
    return keras().tree


# Devices -----------------------------------------------------------------------------------------


@by_backend
def imported() -> bool:
    """Whether TensorFlow is already imported, by any code."""
    return "tensorflow" in sys.modules


@by_backend
def started() -> bool:
    """Whether TensorFlow has started its devices, after which most settings are too late."""
    return keras_private.is_context_started(eager_context())


def eager_context() -> Any:
    """Returns TensorFlow's eager context."""
    tensorflow()
    from tensorflow.python.eager import context

    return context.context()


def abort_collectives(message: str) -> None:
    """Ends operations that wait for other computers, now and from now on, with an error."""
    eager_context().abort_collective_ops(ABORTED, message)


@by_backend
def physical_devices(kind: str) -> list[Any]:
    """Returns physical devices of a kind ("CPU", "GPU"); does not start them."""
    return tensorflow().config.list_physical_devices(kind)


@by_backend
def visible_devices(kind: str) -> list[Any]:
    """Returns the physical devices of a kind that TensorFlow may use."""
    return tensorflow().config.get_visible_devices(kind)


@by_backend
def logical_devices(kind: str) -> list[Any]:
    """Returns logical devices of a kind; starts TensorFlow's devices."""
    return tensorflow().config.list_logical_devices(kind)


@by_backend
def set_visible_devices(devices: list[Any], kind: str) -> None:
    """Limits TensorFlow to these devices of a kind."""
    tensorflow().config.set_visible_devices(devices, kind)


@by_backend
def device_details(device: Any) -> dict[str, Any]:
    """Returns name and compute capability of a physical GPU, from TensorFlow."""
    return dict(tensorflow().config.experimental.get_device_details(device))


@by_backend
def memory_info(device: str) -> dict[str, int]:
    """Returns current and peak bytes of TensorFlow's allocator on a device (`current`, `peak`)."""
    return dict(tensorflow().config.experimental.get_memory_info(device))


@by_backend
def reset_memory_peak(device: str) -> None:
    """Resets the peak of `memory_info()`."""
    tensorflow().config.experimental.reset_memory_stats(device)


@by_backend
def prepare_memory(memory: str | int) -> None:
    """Sets how memory is taken where that must be known before devices are listed."""


@by_backend
def memory_growth(device: Any) -> bool | None:
    """Whether a physical GPU's memory grows on demand; None if a limit is set instead."""
    try:
        return tensorflow().config.experimental.get_memory_growth(device)
    except ValueError:
        return None


@by_backend
def set_memory_growth(device: Any, grow: bool) -> None:
    """Sets whether a physical GPU's memory grows on demand."""
    tensorflow().config.experimental.set_memory_growth(device, grow)


@by_backend
def set_memory_limit(device: Any, mebibytes: int) -> None:
    """Limits TensorFlow to this much of a physical GPU's memory."""
    config = tensorflow().config
    limited = config.LogicalDeviceConfiguration(memory_limit=mebibytes)
    config.set_logical_device_configuration(device, [limited])


@by_backend
def memory_limit(device: Any) -> int | None:
    """Returns the MiB that a physical GPU is limited to, or None."""
    logical = tensorflow().config.get_logical_device_configuration(device)
    return int(logical[0].memory_limit) if logical and logical[0].memory_limit else None


@by_backend
def usable_bytes(device: Any) -> int | None:
    """Returns the bytes that a physical GPU is limited to, or None."""
    limit = memory_limit(device)
    return None if limit is None else limit * 2**20


@by_backend
def usable_share() -> float:
    """Returns the share of a card's memory that the backend takes at most."""
    return 1.0


@by_backend
def threads() -> tuple[int, int]:
    """Returns intra-op and inter-op threads; 0 is TensorFlow's own choice."""
    threading = tensorflow().config.threading
    return (
        threading.get_intra_op_parallelism_threads(),
        threading.get_inter_op_parallelism_threads(),
    )


@by_backend
def set_threads(intra: int, inter: int) -> None:
    """Sets the threads within one op and across ops."""
    threading = tensorflow().config.threading
    threading.set_intra_op_parallelism_threads(intra)
    threading.set_inter_op_parallelism_threads(inter)


@by_backend
def set_seed(seed: int) -> None:
    """Seeds Python, NumPy and TensorFlow."""
    keras().utils.set_random_seed(seed)


@by_backend
def read_seed() -> int | None:
    """Returns the seed that the user gave TensorFlow or Keras, by whatever function, or None.

    Keras' own record of it lasts until `clear_session()`, and in one thread only.
    """
    seed = int(tensorflow().compat.v1.get_seed(0)[0])
    return None if seed == UNSEEDED else seed


@by_backend
def set_deterministic() -> None:
    """Makes TensorFlow use deterministic kernels only."""
    tensorflow().config.experimental.enable_op_determinism()


def set_dtype_policy(policy: str) -> None:
    """Sets the Keras dtype policy of the layers made from now on."""
    keras().config.set_dtype_policy(policy)


@contextmanager
def dtype_policy_scope(policy: Any) -> Iterator[None]:
    """A context in which models are made under a policy, or its name; None for the session's."""
    config = keras().config
    before = config.dtype_policy()
    if policy is not None:
        config.set_dtype_policy(policy)
    try:
        yield
    finally:
        config.set_dtype_policy(before)


def dtype_policy() -> str:
    """Returns the name of Keras' current dtype policy."""
    return keras().config.dtype_policy().name


@by_backend
def build_info() -> dict[str, Any]:
    """Returns how the installed TensorFlow was built; a CPU wheel has no CUDA keys."""
    return dict(tensorflow().sysconfig.get_build_info())


@by_backend
def tensor_float_32() -> bool:
    """Whether float32 products may be computed as TF32 on GPUs that support it."""
    return bool(tensorflow().config.experimental.tensor_float_32_execution_enabled())


@by_backend
def set_tensor_float_32(allowed: bool) -> None:
    """Allows TF32 in float32 products, or forbids it."""
    tensorflow().config.experimental.enable_tensor_float_32_execution(allowed)


@by_backend
@contextmanager
def on_device(device: str, *, soft: bool = False) -> Iterator[None]:
    """Runs ops on `device`; without soft placement an op that cannot run there raises."""
    tf = tensorflow()
    before = tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(soft)
    try:
        with tf.device(f"/{device}"):
            yield
    finally:
        tf.config.set_soft_device_placement(before)
