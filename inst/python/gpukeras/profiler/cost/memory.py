"""Estimates the memory of a training, and the largest batch that fits, without running it.

    total = weights + gradients + optimizer + copies + batch * row
    row   = inputs + outputs + kept activations + 2 * the largest of them

Gradients are as large as the trainable weights. The optimizer counts with its variables, or with
those that it would have once built. Copies are weights cast to the 16 bits of mixed precision.
Inputs and outputs are those of the model; `activations.py` counts the kept activations. The last
term is the gradient in the backward pass, of the output and of the input of the layer where both
are largest. Memory that libraries take for themselves (cuDNN's workspaces, XLA, the CUDA context of
some 300 to 500 MB) is not included.

A first large batch on a CPU (2 cores, TensorFlow 2.21, no XLA) raised the process's memory by 1.08
(convolutions), 0.84 (dense), 1.23 (attention) and 1.56 (LSTM, whose loop keeps more than a GPU's
kernel) times this estimate. It is not measured on a GPU yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import devices, runtime, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.profiler.cost.activations import Kept
from gpukeras.profiler.cost.op_flops import element_bytes, tensor_shape
from gpukeras.profiler.cost.watcher import Traced

PROBE = 64  # rows and columns of the matrix that an unbuilt optimizer is built on
MIB = 2**20


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of a model's training; all in bytes.

    Args:
        weights_bytes: All weights.
        gradients_bytes: Gradients of the trainable weights.
        optimizer_bytes: The optimizer's own variables; None if unknown.
        copies_bytes: Weights cast for mixed precision.
        row_bytes: Bytes per row of a batch; None if a layer's part is unknown.
        batch_size: Rows of the batch that `total_bytes` is for.
        total_bytes: The sum; None if a part is unknown.
        device: The device to compare with, such as "GPU:0"; "" for an amount given by the user.
        device_bytes: Its memory; None if unknown.
        available_bytes: The part of it that is available to this training; None if unknown.
        largest_batch: Rows of the largest batch that fits, 0 for none; None if unknown.
    """

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float | None
    copies_bytes: float
    row_bytes: float | None
    batch_size: int
    device: str
    device_bytes: float | None
    available_bytes: float | None

    @property
    def fixed_bytes(self) -> float:
        """Bytes that do not depend on the batch."""
        optimizer = self.optimizer_bytes or 0
        return self.weights_bytes + self.gradients_bytes + optimizer + self.copies_bytes

    @property
    def total_bytes(self) -> float | None:
        """Total bytes for the batch."""
        if self.row_bytes is None or self.optimizer_bytes is None:
            return None
        return self.fixed_bytes + self.batch_size * self.row_bytes

    @property
    def largest_batch(self) -> int | None:
        """Rows of the largest batch that fits."""
        if self.available_bytes is None or not self.row_bytes or self.optimizer_bytes is None:
            return None
        return max(0, math.floor((self.available_bytes - self.fixed_bytes) / self.row_bytes))

    def to_record(self) -> dict[str, Any]:
        """Returns all values, for R."""
        derived = {"total_bytes": self.total_bytes, "largest_batch": self.largest_batch}
        return {**vars(self), **derived}


def read_need(
    model: Model,
    traced: Traced | None,
    kept: Kept | None,
    batch_size: int,
    device: str,
    *,
    memory: float | None,
) -> MemoryNeed:
    """Estimates the memory of a training, and reads that of the device.

    Args:
        model: A built Keras model.
        traced: Its trace, or None if it could not be traced.
        kept: The activations that its gradients read, or None likewise.
        batch_size: Rows of a batch.
        device: The device to compare with.
        memory: An amount in bytes to compare with instead.
    """
    held = _sum_bytes(model.weights)
    device_bytes, available = (memory, memory) if memory else read_room(device, held)
    return MemoryNeed(
        held,
        _sum_bytes(model.trainable_weights),
        read_optimizer_bytes(model),
        kept.fixed_bytes if kept else 0.0,
        _row_bytes(traced, kept),
        batch_size,
        "" if memory else device,
        device_bytes,
        available,
    )


def _row_bytes(traced: Traced | None, kept: Kept | None) -> float | None:
    if traced is None or kept is None:
        return None
    known = [size for size in kept.by_layer.values() if size is not None]
    if len(known) < len(kept.by_layer):
        return None
    tensors = [*traced.inputs, *traced.outputs]
    ends = [math.prod(tensor_shape(tensor)) * element_bytes(tensor.dtype) for tensor in tensors]
    row_bytes = sum(known) + sum(ends) / traced.rows + 2 * kept.largest_bytes
    return None if math.isnan(row_bytes) else float(row_bytes)


def _sum_bytes(variables: Any) -> float:
    return float(
        sum(
            math.prod(variable.shape) * tensor_ops.dtype_bytes(variable.dtype)
            for variable in variables
        )
    )


# Optimizer ---------------------------------------------------------------------------------------


def read_optimizer_bytes(model: Model) -> float | None:
    """Returns the bytes of an optimizer's variables; 0 for a model that is not compiled.

    A copy of an unbuilt optimizer is built on a matrix of 64 x 64, and the result is scaled.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return 0.0
    if optimizer.built:
        return _sum_bytes(optimizer.variables)
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer
    try:
        copy = type(inner).from_config(inner.get_config())
        before = _sum_bytes(copy.variables)
        copy.build([runtime.keras().Variable(np.zeros((PROBE, PROBE), np.float32))])
    except Exception:  # a custom class may have no config, or need other weights
        return None
    share = (_sum_bytes(copy.variables) - before) / (PROBE * PROBE * 4)
    return share * _sum_bytes(model.trainable_weights)


# Device ------------------------------------------------------------------------------------------


def read_room(device: str, held_bytes: float) -> tuple[float | None, float | None]:
    """Returns a device's memory, and the part of it that is available to the model's training.

    Args:
        device: TensorFlow's own name, such as "GPU:0".
        held_bytes: Bytes of it that the model's weights already take.
    """
    free = devices.free_bytes(device)
    if device.startswith("CPU"):
        limit = devices.read_memory()[0]["limit_bytes"]
        return limit, None if free is None else free + held_bytes
    index = int(device.rpartition(":")[2])
    gpus = runtime.visible_devices("GPU")
    if index >= len(gpus):
        return None, None
    limit = devices.read_memory()[1 + index]["limit_bytes"]
    if runtime.memory_growth(gpus[index]) is False and runtime.started():
        return limit, limit  # TensorFlow reserved all of it: none is free, all is available
    held = runtime.memory_info(device)["current"] if runtime.started() else 0
    return limit, None if free is None else free + held
