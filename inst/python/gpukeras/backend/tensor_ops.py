"""Wraps the backend's functions on tensors, variables and models; see `runtime`.

Functions here make no decisions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.backend.runtime import by_backend
from gpukeras.core.attributes import replaced
from gpukeras.core.errors import DataError
from gpukeras.core.keras_types import Model, Optimizer
from gpukeras.core.memory import ALIGNMENT


@by_backend
def adopt_array(array: np.ndarray) -> Any:
    """Returns a tensor on an array's own memory, without a copy; the array becomes read-only.

    Raises:
        DataError: if it is not; TensorFlow would abort the process at the first op.
    """
    if array.ctypes.data % ALIGNMENT or not array.flags.c_contiguous:
        raise DataError(f"Memory to adopt must be C-ordered and aligned to {ALIGNMENT} bytes.")
    if array.size == 0:
        return runtime.tensorflow().constant(array)
    tensor = runtime.tensorflow().experimental.dlpack.from_dlpack(array.__dlpack__())
    array.flags.writeable = False
    return tensor


@by_backend
def trace(step: Callable[[Any], Any], data: Any) -> None:
    """Traces a step for data of these shapes, which creates its variables; runs nothing."""
    tf = runtime.tensorflow()
    specs = tf.nest.map_structure(lambda array: tf.TensorSpec(array.shape, array.dtype), data)
    tf.function(lambda data: step(data), autograph=False).get_concrete_function(specs)


@by_backend
def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that runs as a program, one for each shape of its arguments."""
    program: Callable[..., Any] = runtime.tensorflow().function(function, autograph=False)
    return program


@by_backend
def take_over(tensor: Any) -> Any:
    """Returns what `reader()` made as the backend takes it: TensorFlow's tensor as it is."""
    return tensor


@by_backend
def returns_early(device: str) -> bool:
    """Whether a call may return before the device has computed, as on a GPU."""
    return not device.startswith("CPU")


@by_backend
def batch_bytes(device: str) -> int:
    """Returns the bytes of a batch, all layers' outputs too, that a forward pass is fast with.

    TensorFlow keeps memory that was freed: the larger the batch, the fewer the calls.
    """
    return 64 * 2**20


@by_backend
def widest_float() -> str:
    """Returns the dtype of the most precise numbers that the backend computes with."""
    return "float64"


@by_backend
@contextmanager
def stepping(optimizer: Optimizer, variables: Sequence[Any]) -> Iterator[None]:
    """A context in which training steps may change these variables; TensorFlow's always may."""
    yield


@by_backend
def make_spec(shape: tuple[int | None, ...], dtype: Any) -> Any:
    """Returns the shape and dtype of a tensor without its values, for traces."""
    return runtime.tensorflow().TensorSpec(shape, dtype)


@by_backend
def dtype_bytes(dtype: Any) -> int:
    """Returns the bytes of a number of a dtype, such as "bfloat16"."""
    return int(runtime.tensorflow().as_dtype(dtype).size)


@by_backend
def build_by_call(model: Model, shape: tuple[int | None, ...], dtype: str) -> None:
    """Creates a model's variables by a traced call on inputs of a shape; runs nothing."""
    spec = make_spec(shape, dtype)
    runtime.tensorflow().function(
        lambda batch: model(batch), autograph=False
    ).get_concrete_function(spec)


@by_backend
def device_scope(device: str) -> Any:
    """Returns a context whose tensors are made on a device."""
    return runtime.tensorflow().device(f"/{device}")


@by_backend
def predictor(model: Model, compiled: bool) -> Callable[[Any], Any]:
    """Returns a program that maps rows to a model's outputs; `compiled` by XLA."""
    # The rows are an argument: captured values may be constant-folded.
    function: Callable[[Any], Any] = runtime.tensorflow().function(
        lambda rows: model(rows, training=False), jit_compile=compiled, autograph=False
    )
    return function


@by_backend
def predict_batch(model: Model, features: Any) -> Any:
    """Returns a model's outputs for a batch, by its `predict_step()`, as NumPy arrays."""
    return model.predict_on_batch(features)


@by_backend
def predict_by_step(model: Model, features: Any) -> Any:
    """Returns a model's outputs for a batch, by its `predict_step()`, as tensors."""
    return model.predict_step((features,))


@by_backend
def trace_rows(
    function: Callable[[Any, Any], Any], state: list[Any], rows: Any
) -> tuple[Callable[[Any, Any], Any], list[Any]]:
    """Returns a function of a state and any number of rows as a program.

    Args:
        function: The function.
        state: Tensors.
        rows: A nest of tensors or arrays, rows first.

    Returns:
        The program, and the variables that it captures.
    """
    tf, nest = runtime.tensorflow(), runtime.tree()

    def describe(tensor: Any, rows: bool) -> Any:
        shape = (None, *tensor.shape[1:]) if rows else tensor.shape
        return tf.TensorSpec(shape, tensor.dtype)

    program = tf.function(function, autograph=False)
    states = [describe(variable, False) for variable in state]
    traced = program.get_concrete_function(
        states, nest.map_structure(lambda tensor: describe(tensor, True), rows)
    )
    return program, list(traced.graph.variables)


@by_backend
def input_gradients(model: Model) -> Callable[[Any, Any], Any]:
    """Returns a program for the gradients of a model's output with respect to its inputs.

    It maps inputs and weights (float32; rows, numbers of the output) to the gradients of the
    weighted sum of the output, in the structure of the inputs; 0 where nothing depends on them.
    """
    tf = runtime.tensorflow()

    def compute(inputs: Any, weights: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            output = tf.cast(model(inputs, training=False), tf.float32)
            total = tf.reduce_sum(tf.reshape(output, tf.shape(weights)) * weights)
        return tape.gradient(total, inputs, unconnected_gradients="zero")

    program: Callable[[Any, Any], Any] = tf.function(compute, autograph=False)
    return program


@by_backend
def outline(model: Model, batch: Any) -> list[tuple[int | None, ...]]:
    """Returns the shapes of a model's outputs for a batch; computes nothing."""
    tf = runtime.tensorflow()
    specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), batch)
    graph = tf.function(lambda rows: model(rows, training=False), autograph=False)
    outputs = graph.get_concrete_function(specs).structured_outputs
    return [tuple(output.shape) for output in runtime.tree().flatten(outputs)]


@by_backend
def put(value: Any, device: str) -> Any:
    """Returns a tensor on a device; copied if it is elsewhere."""
    with runtime.tensorflow().device(f"/{device}"):
        return runtime.tensorflow().identity(value)


@by_backend
def resample(images: Any, moves: Any, size: tuple[int, int], smooth: bool) -> Any:
    """Returns images whose pixels are read from elsewhere; beyond the image by reflection.

    Args:
        images: Float images, (rows, height, width, channels).
        moves: For each row the first eight numbers of the matrix that maps (column, row, 1) of the
            new image to that of the old one.
        size: Height and width of the new images.
        smooth: Whether to interpolate between four pixels; otherwise the nearest is taken.
    """
    tf = runtime.tensorflow()
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=moves,
        output_shape=size,
        fill_value=0.0,
        interpolation="BILINEAR" if smooth else "NEAREST",
        fill_mode="REFLECT",
    )
    return tf.ensure_shape(moved, [images.shape[0], *size, images.shape[-1]])


MOST_COLUMNS = 4096  # of a last axis, each of which has extremes of its own


def extremes(values: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the least and largest numbers of rows (float64), see `measure_extremes()`."""
    measured = measure_extremes(values)
    return None if measured is None else (as_float64(measured[0]), as_float64(measured[1]))


def as_float64(tensor: Any) -> np.ndarray:
    """Returns a tensor's numbers in host memory, once its device has them."""
    return np.asarray(runtime.keras().ops.convert_to_numpy(tensor), np.float64)


def measure_extremes(values: Any) -> tuple[Any, Any] | None:
    """Returns the least and largest numbers of rows, by column of the last axis; None for text.

    They are tensors on the device of the rows, which a GPU may still have to compute.
    """
    kind = runtime.keras().backend.standardize_dtype(values.dtype)
    if kind == "string" or not np.prod(values.shape):
        return None
    ops = runtime.keras().ops
    numbers = ops.cast(values, "int32") if kind == "bool" else values
    by_column = len(values.shape) > 1 and values.shape[-1] <= MOST_COLUMNS
    axes = tuple(range(len(values.shape) - 1)) if by_column else None
    return ops.min(numbers, axes), ops.max(numbers, axes)


@by_backend
def take(tensor: Any, rows: Any) -> Any:
    """Gathers rows of a tensor on its device, with several threads on a CPU."""
    return runtime.tensorflow().gather(tensor, rows)


@by_backend
def allocate(shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns zeros on the current device, for `store()`."""
    return runtime.tensorflow().Variable(runtime.tensorflow().zeros(shape, dtype), trainable=False)


@by_backend
def store(whole: Any, start: int, part: np.ndarray) -> Any:
    """Returns what `allocate()` made with some of its rows replaced, in the same memory."""
    with runtime.tensorflow().device("/CPU:0"):
        block = runtime.tensorflow().constant(part)
    whole[start : start + len(part)].assign(block)
    return whole


@by_backend
def hold_value(variable: Any) -> Any:
    """Returns a variable's value without a copy: it stays as it is when the variable is assigned.

    TensorFlow shares the memory until then, and copies it only if a step writes in place.
    """
    return runtime.tensorflow().convert_to_tensor(variable.value)


@by_backend
def wait(value: Any) -> None:
    """Waits until a device has computed a value."""
    value.numpy()


@by_backend
def keep_pace(value: Any) -> None:
    """Waits for an earlier call, so that few wait for the device; TensorFlow has a short queue."""


def is_keras_model(value: Any) -> bool:
    """Whether a value is a Keras model of any kind."""
    return isinstance(value, runtime.keras().Model)


def build_state(model: Model, batch: tuple[Any, ...]) -> None:
    """Creates all variables of a compiled model, its metrics and optimizer, from one batch."""
    keras_private.build_symbolically(model, batch)
    if not model.optimizer.built:  # LossScaleOptimizer would add its counters again
        model.optimizer.build(model.trainable_variables)


def variable_beside(like: Any, value: Any, dtype: str | None = None) -> Any:
    """Returns a new Keras variable on the device of another one.

    Args:
        like: The other variable.
        value: Its value: a Keras variable, an array or a number.
        dtype: Its dtype; None for that of the other variable.
    """
    value = np.array(value.numpy()) if hasattr(value, "numpy") else np.asarray(value)
    with device_scope(device_of(like)):
        return runtime.keras().Variable(value, dtype=dtype or like.dtype, trainable=False)


def global_seed_state() -> list[Any]:
    """Returns the variable of Keras' global random generator; random layers have others besides."""
    runtime.keras()
    from keras.src.random.seed_generator import global_seed_generator

    return [global_seed_generator().state]


def threefry_dropout() -> AbstractContextManager[None]:
    """Makes dropout use ThreeFry while a function is traced for XLA on a CPU.

    XLA's CPU compiler fuses TensorFlow's default generator (Philox) into every consumer and draws
    the same bits again in each: an epoch of 3,125 batches of 32 x 64 took 2.4 s, with ThreeFry 0.14
    s (measured on 2 cores, TensorFlow 2.21). Both are counter-based generators of good quality
    (Salmon et al. 2011).
    """
    random = runtime.tensorflow().nn.experimental
    faster = functools.partial(random.stateless_dropout, rng_alg="threefry")
    return replaced(random, stateless_dropout=faster)


@by_backend
def refusals() -> tuple[type[BaseException], ...]:
    """Returns the errors that TensorFlow raises for a graph that it or XLA cannot run.

    They also say that values of the rows are wrong: see `engine.refusals`.
    """
    errors = runtime.tensorflow().errors
    return (*row_errors(), errors.UnimplementedError, errors.InternalError)


@by_backend
def row_errors() -> tuple[type[BaseException], ...]:
    """Returns the errors of kernels that do not take their inputs' values."""
    errors = runtime.tensorflow().errors
    return (errors.InvalidArgumentError, errors.OutOfRangeError, errors.FailedPreconditionError)


@by_backend
def exhausted(*more: type[BaseException]) -> tuple[type[BaseException], ...]:
    """Returns the errors of work that does not fit into a device's memory, and `more`."""
    return (runtime.tensorflow().errors.ResourceExhaustedError, *more)


@by_backend
@contextmanager
def memory_faults() -> Iterator[None]:
    """Raises one of `exhausted()` where memory does not suffice; TensorFlow itself does."""
    yield


@by_backend
def allows_xla(model: Model) -> bool:
    """Whether XLA may compile a compiled model.

    On a computer without a GPU, Keras turns `jit_compile = "auto"` into False, which cannot be
    distinguished from a user's own False; there only the layers' support decides.
    """
    if model.jit_compile or runtime.physical_devices("GPU"):
        return bool(model.jit_compile)
    return all(layer.supports_jit for layer in keras_private.list_layers(model))


def overrides(model: Model, method: str) -> bool:
    """Whether a model's class overrides a Keras method in a way that is not known.

    gpukeras' own methods have the attribute `known`: they need what Keras' own do.
    """
    own = getattr(type(model), method)
    return own is not getattr(runtime.keras().Model, method) and not getattr(own, "known", False)


def variable_devices(model: Model) -> list[str]:
    """Returns the devices of a model's variables, such as "GPU:0", in their order."""
    return [name for name in map(device_of, model.variables) if name]


@by_backend
def in_strategy() -> bool:
    """Whether this runs in the scope of a strategy for several devices."""
    return bool(runtime.tensorflow().distribute.has_strategy())


@by_backend
def is_distributed(variables: Sequence[Any]) -> bool:
    """Whether one of some Keras variables has a copy on each of several devices."""
    values = runtime.tensorflow().distribute.DistributedValues
    return any(isinstance(variable.value, values) for variable in variables)


@by_backend
def place_of(tensor: Any) -> str:
    """Returns the device of a tensor, such as "GPU:0"; "" where TensorFlow has none."""
    return str(tensor.device).rpartition("device:")[2]


def device_of(variable: Any) -> str:
    """Returns the device of a Keras variable, such as "GPU:0"; "" where TensorFlow has none."""
    return place_of(variable.value)
