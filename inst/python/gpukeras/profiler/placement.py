"""Reads from a model's graphs, layers and outputs how it uses a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops, tracing
from gpukeras.core.keras_types import Model

PASS_S = 0.3  # seconds for the steps of one kind, unless a single step takes longer
# Tolerated error of an output, relative to the largest output. float32: a GPU may multiply with 10
# bits of mantissa (TF32), and errors grow from layer to layer. The error of a wrong kernel is as
# large as the output.
TOLERANCES = {"float64": 1e-6, "float32": 0.05, "float16": 0.1, "bfloat16": 0.2}
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# Ops with which Keras' optimizers update an embedding table by the gradients of the looked-up rows.
ROW_OPS = {"UnsortedSegmentSum", "ResourceScatterSub", "ResourceScatterAdd"}
ARGUMENT_OPS = {"_Arg", "_DeviceArg", "_Retval", "_DeviceRetval", "NoOp"}  # they compute nothing
TELLING = ("Cannot assign a device", "Could not satisfy", "Cannot place", "device")


# Layers ------------------------------------------------------------------------------------------


def read_policy(model: Model) -> str:
    """Returns the dtype policy of most of a model's weights."""
    weights: Counter[str] = Counter({model.dtype_policy.name: 0})
    for layer in keras_private.list_layers(model):
        own = sum(int(np.prod(variable.shape)) for variable in keras_private.own_trainable(layer))
        weights[layer.dtype_policy.name] += own
    return weights.most_common(1)[0][0]


def read_rnn(model: Model) -> list[dict[str, str]]:
    """Returns the recurrent layers, also nested ones, that cannot use cuDNN, with the reason."""
    missed = []
    for layer in keras_private.list_layers(model):
        if isinstance(layer, runtime.keras().layers.RNN):
            argument = choose_forbidding(_settings(layer))
            if argument:
                name = type(layer).__name__
                missed.append({"layer": layer.name, "class": name, "argument": argument})
    return missed


def _settings(layer: Any) -> dict[str, Any]:
    names = [
        "activation",
        "recurrent_activation",
        "unroll",
        "use_bias",
        "recurrent_dropout",
        "reset_after",
        "use_cudnn",
    ]
    settings = {name: getattr(layer, name) for name in names if hasattr(layer, name)}
    for name in ("activation", "recurrent_activation"):
        settings[name] = getattr(settings.get(name), "__name__", "")
    layers = runtime.keras().layers
    return settings | {"cudnn_class": isinstance(layer, (layers.LSTM, layers.GRU))}


def choose_forbidding(settings: Mapping[str, Any]) -> str:
    """Returns the argument of a recurrent layer that rules out cuDNN, by Keras' rules; or "".

    Only LSTM and GRU have a cuDNN kernel: for other layers the result is "cell".
    """
    forbids = {
        "cell": not settings.get("cudnn_class"),
        "use_cudnn": settings.get("use_cudnn") is False,
        "activation": settings.get("activation") != "tanh",
        "recurrent_activation": settings.get("recurrent_activation") != "sigmoid",
        "recurrent_dropout": bool(settings.get("recurrent_dropout")),
        "unroll": bool(settings.get("unroll")),
        "use_bias": settings.get("use_bias") is False,
        "reset_after": settings.get("reset_after") is False,
    }
    return next((argument for argument, forbidden in forbids.items() if forbidden), "")


# Graphs ------------------------------------------------------------------------------------------


def read_ops(graph: Any) -> set[str]:
    """Returns the types of the ops in a graph and in the functions that it calls."""
    nodes = [graph.node, *(function.node_def for function in graph.library.function)]
    return {node.op for each in nodes for node in each}


def count_placement(graphs: Iterable[Any]) -> dict[str, dict[str, int]]:
    """Returns the number of ops by type on each device, from the graphs that ran on the devices."""
    operations: dict[str, Counter[str]] = {}
    for graph in graphs:
        for node in graph.node:
            if node.op not in ARGUMENT_OPS:
                place = node.device.rpartition("device:")[2]
                operations.setdefault(place, Counter())[node.op] += 1
    return {place: dict(ops.most_common()) for place, ops in sorted(operations.items())}


def read_cpu_only(ops: Collection[str]) -> list[str] | None:
    """Returns the ops that this build can only run on a CPU; None if it is a CPU build."""
    if not runtime.build_info().get("is_cuda_build"):
        return None
    return choose_cpu_only(ops, tracing.registered_kernels())


def choose_cpu_only(ops: Collection[str], kernels: Mapping[str, Collection[str]]) -> list[str]:
    """Returns the ops that have a CPU kernel and no GPU kernel.

    Args:
        ops: Types of ops; names of functions may be among them.
        kernels: For each op the devices that have a kernel ("DEFAULT" stands for any).
    """
    return sorted(
        op
        for op in set(ops)
        if "CPU" in kernels.get(op, ()) and not {"GPU", "DEFAULT"} & set(kernels[op])
    )


def choose_line(text: str) -> str:
    """Returns the line of a TensorFlow error that names the op and the device."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for sign in TELLING:
        for line in lines:
            if sign in line:
                return line[:300]
    return (lines or ["InvalidArgumentError"])[0][:300]


# Numbers -----------------------------------------------------------------------------------------


def compare_outputs(model: Model, features: Any, device: str) -> dict[str, Any]:
    """Compares a model's output for a batch on a device and on the CPU, with equal weights."""
    there, here = (read_outputs(model, features, place) for place in (device, "CPU:0"))
    return judge_outputs(
        there, here, {layer.compute_dtype for layer in keras_private.list_layers(model)}
    )


def read_outputs(model: Model, features: Any, device: str) -> list[np.ndarray]:
    """Returns a model's outputs for a batch, computed on a device alone."""

    def place(value: Any) -> Any:
        return tensor_ops.put(value, device)

    with runtime.on_device(device):
        placed = runtime.tree().map_structure(place, features)
        state = [
            [place(variable.numpy()) for variable in variables]
            for variables in (model.trainable_variables, model.non_trainable_variables)
        ]
        outputs, _ = model.stateless_call(*state, placed, training=False)
    return [np.asarray(each, dtype=np.float64) for each in runtime.tree().flatten(outputs)]


def judge_outputs(
    there: Sequence[np.ndarray], here: Sequence[np.ndarray], dtypes: Iterable[str]
) -> dict[str, Any]:
    """Compares a device's outputs with the CPU's: largest error, relative to the largest output.

    The comparison uses outputs, not the loss: a wrong output can have nearly the same loss.

    Args:
        there: The device's outputs.
        here: The CPU's outputs.
        dtypes: The layers' compute dtypes; the least precise one counts.
    """
    usual = TOLERANCES["float32"]
    tolerance = max((TOLERANCES.get(dtype, usual) for dtype in dtypes), default=usual)
    deviation = max(
        (_deviation(values, two) for values, two in zip(there, here, strict=True)),
        default=float("nan"),
    )
    return {"ok": bool(deviation <= tolerance), "deviation": deviation, "tolerance": tolerance}


def _deviation(there: np.ndarray, here: np.ndarray) -> float:
    if there.shape != here.shape or not here.size:
        return float("inf")
    error, size = np.max(np.abs(there - here)), np.max(np.abs(here))
    return float(error / size) if size else float(error)


def choose_expected_bytes(batch: Iterable[Any], gradients: Sequence[int]) -> float:
    """Returns the bytes that a training step adds at least to the memory held on a GPU.

    They are the batch, which is sent to the GPU within the measured step (int32 stays on the host),
    and the largest gradient: TensorFlow may free the others before all are computed. With XLA, and
    for gradients of looked-up rows, no whole gradient may exist: then pass none.

    Args:
        batch: A batch's arrays; for several inputs or outputs, a dict of arrays.
        gradients: Bytes of each trainable variable, or none.
    """
    parts = (part.values() if isinstance(part, Mapping) else [part] for part in batch)
    arrays = [array for part in parts for array in part]
    sent = sum(array.nbytes for array in arrays if array.dtype != np.int32)
    return float(sent + max(gradients, default=0))


def choose_count(step_s: float, most: int) -> int:
    """Returns how many steps fit into the time for one kind of steps."""
    return max(1, min(most, int(PASS_S / max(step_s, 1e-6))))


# Devices -----------------------------------------------------------------------------------------


def read_capability(device: str) -> str | None:
    """Returns the compute capability of a GPU, such as "8.6", or None for another device."""
    capability = _read_details(device).get("compute_capability", ())
    return ".".join(str(part) for part in capability) or None


def read_card(device: str) -> str:
    """Returns the name of a GPU as its driver tells it, or "" for another device."""
    return str(_read_details(device).get("device_name", ""))


def _read_details(device: str) -> dict[str, Any]:
    visible = runtime.visible_devices("GPU")
    number = device.rpartition(":")[2]
    if not device.startswith("GPU") or int(number) >= len(visible):
        return {}
    return dict(runtime.device_details(visible[int(number)]))
