"""Runs one training step's parts twice, eagerly, and finds the first layer that differs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.keras_types import Model
from gpukeras.models.state import Snapshot, apply_snapshot
from gpukeras.profiler.cost.watcher import find_layers

# Operations of TensorFlow whose results may change from run to run: random ones without a seed, and
# those that tf.config.experimental.enable_op_determinism() lists as not deterministic on a GPU.
RANDOM_OPS = (
    "RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "RandomShuffle",
    "RandomGamma", "RandomPoissonV2", "Multinomial", "ParameterizedTruncatedNormal", "PyFunc",
    "EagerPyFunc", "NonDeterministicInts",
)  # fmt: skip
GPU_OPS = (
    "BiasAddGrad", "Conv2DBackpropFilter", "Conv2DBackpropInput", "Conv3DBackpropFilterV2",
    "Conv3DBackpropInputV2", "CropAndResizeGradImage", "DepthwiseConv2dNativeBackpropFilter",
    "FusedBatchNormGradV3", "MaxPoolGrad", "ResizeBilinearGrad", "ScatterNd",
    "SparseSoftmaxCrossEntropyWithLogits", "SparseTensorDenseMatMul", "TensorScatterAdd",
    "UnsortedSegmentSum", "Conv2D", "CudnnRNNV3",
)  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """The first difference of two runs.

    Args:
        kind: "rows", "layer", "gradient", "optimizer", "compiled", "step", "unknown", or ""
            for none.
        name: The layer's or the weight's name; for "rows" the kind of source.
        layer_class: The class of the layer.
        operations: Its operations that may differ from run to run.
        step: Number of the step or batch, from 1.
    """

    kind: str = ""
    name: str = ""
    layer_class: str = ""
    operations: tuple[str, ...] = ()
    step: int = 0


@dataclass(frozen=True)
class Output:
    """What a layer returned in a forward pass.

    Args:
        layer: The layer.
        values: Its outputs, flat, as bytes.
        call: Its `call()` with the arguments that it had, to list its operations.
    """

    layer: Any
    values: tuple[bytes, ...]
    call: Callable[[], Any]


def compare_layers(model: Model, batch: Any, before: Snapshot, step: int) -> Difference:
    """Returns the first layer whose output differs in two forward passes, else what else does.

    Args:
        model: A compiled Keras model.
        batch: The data of the step.
        before: The state before it; the model is put into it.
        step: The step's number, for the result.
    """
    if runtime.backend() != "tensorflow":
        return Difference("step", step=step)
    runs = []
    for _ in range(2):
        apply_snapshot(model, before)
        runs.append(_run(model, batch))
    apply_snapshot(model, before)
    (outputs, gradients), (other_outputs, other_gradients) = runs
    for output, other in zip(outputs, other_outputs, strict=False):
        if output.layer is not other.layer or output.values != other.values:
            kind = type(output.layer).__name__
            return Difference("layer", output.layer.name, kind, list_operations(output), step)
    # The backward pass begins at the end of the model.
    for path, value in reversed(gradients):
        if dict(other_gradients)[path] != value:
            return Difference("gradient", path, step=step)
    return Difference(
        "optimizer" if _updates_differ(model, batch, before) else "compiled", step=step
    )


def _run(model: Model, batch: Any) -> tuple[list[Output], list[tuple[str, bytes]]]:
    """Runs a forward and a backward pass; returns outputs in their order, and gradients."""
    tf = runtime.tensorflow()
    x, y, weights = runtime.keras().utils.unpack_x_y_sample_weight(batch)
    with listening(model) as outputs, tf.GradientTape() as tape:
        predicted = model(x, training=True)
        loss = model.compute_loss(x=x, y=y, y_pred=predicted, sample_weight=weights)
    kept = list(outputs)  # not the calls that follow
    variables = model.trainable_variables
    gradients = tape.gradient(loss, variables, unconnected_gradients="zero")
    told = [
        (variable.path, np.asarray(tf.convert_to_tensor(gradient)).tobytes())
        for variable, gradient in zip(variables, gradients, strict=True)
    ]
    return kept, told


@contextmanager
def listening(model: Model) -> Iterator[list[Output]]:
    """Yields a list that gets the output of each layer when its `call()` returns."""
    outputs: list[Output] = []
    layers = [
        layer for layer in find_layers(model) if layer is not model and hasattr(layer, "call")
    ]
    own = {id(layer): vars(layer).get("call") for layer in layers}
    try:
        for layer in layers:
            vars(layer)["call"] = _listen(layer, layer.call, outputs)  # setattr() would be tracked
        yield outputs
    finally:
        for layer in layers:
            vars(layer).pop("call", None)
            if own[id(layer)] is not None:
                vars(layer)["call"] = own[id(layer)]


def _listen(layer: Any, original: Callable[..., Any], outputs: list[Output]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        flat = tuple(np.asarray(array).tobytes() for array in runtime.tree().flatten(result))
        outputs.append(Output(layer, flat, functools.partial(original, *args, **kwargs)))
        return result

    return call


def list_operations(output: Output) -> tuple[str, ...]:
    """Returns a layer's operations that may differ from run to run, by tracing its call."""
    tf = runtime.tensorflow()
    try:
        graph = tf.function(output.call, autograph=False).get_concrete_function().graph
    except Exception:  # a layer that runs eagerly only
        return ()
    kinds = {op.type for op in graph.get_operations()}
    listed = RANDOM_OPS if kinds & set(RANDOM_OPS) else GPU_OPS
    on_gpu = bool(runtime.visible_devices("GPU"))
    return tuple(kind for kind in listed if kind in kinds and (on_gpu or kind in RANDOM_OPS))


def _updates_differ(model: Model, batch: Any, before: Snapshot) -> bool:
    """Whether an update by the same gradients differs, eagerly."""
    tf = runtime.tensorflow()
    states = []
    for _ in range(2):
        apply_snapshot(model, before)
        ones = [tf.ones_like(variable) for variable in model.trainable_variables]
        model.optimizer.apply_gradients(zip(ones, model.trainable_variables, strict=True))
        states.append([np.asarray(variable).tobytes() for variable in model.trainable_variables])
    apply_snapshot(model, before)
    return states[0] != states[1]
