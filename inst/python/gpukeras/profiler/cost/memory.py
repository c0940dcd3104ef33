"""How much memory a training takes, and how large a batch fits: an estimate before it is tried.

    total = weights + gradients + optimizer + copies + batch * row
    row   = inputs + outputs + kept activations + 2 * the largest of them

Gradients are as large as the trainable weights; the optimizer keeps what it has, or would have once
it is built; copies are weights cast to the 16 bits of mixed precision. Inputs and outputs are those
of the model; of the activations what `activations.py` finds; the last term is the gradient on its
way back, of the output and of the input of the layer where both are largest. What libraries take
for themselves (cuDNN's workspaces, XLA, the CUDA context of some 300 to 500 MB) is not in it.

A first large batch on a CPU (2 cores, TensorFlow 2.21, no XLA) raised the process's memory by 1.08
(convolutions), 0.84 (dense), 1.23 (attention) and 1.56 (LSTM, whose loop keeps more than a GPU's
kernel) times what is estimated here; not measured on a GPU yet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import devices, runtime
from gpukeras.profiler.cost.activations import Kept
from gpukeras.profiler.cost.graph import Traced
from gpukeras.profiler.cost.op_flops import tensor_shape

PROBE = 64  # rows and columns of the matrix that an optimizer is asked about
MIB = 2**20


@dataclass(frozen=True)
class MemoryNeed:
    """What a training of a model takes; all in bytes.

    Args:
        weights_bytes: All weights.
        gradients_bytes: Gradients of the trainable ones.
        optimizer_bytes: The optimizer's own variables; None if they cannot be known.
        copies_bytes: Weights cast for mixed precision.
        row_bytes: For each row of a batch; None if a layer's part is not known.
        batch_size: Rows of the batch that `total_bytes` is for.
        total_bytes: All of it; None as long as a part is not known.
        device: The device it is compared with, such as "GPU:0"; "" for an amount given by the user.
        device_bytes: Its memory; None if not known.
        available_bytes: What of it this training could have; None if not known.
        largest_batch: Rows of the largest batch that fits, 0 for none; None if not known.
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
        """What does not depend on the batch."""
        optimizer = self.optimizer_bytes or 0
        return self.weights_bytes + self.gradients_bytes + optimizer + self.copies_bytes

    @property
    def total_bytes(self) -> float | None:
        """All of it, for the batch."""
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
        """All values, for R."""
        derived = {"total_bytes": self.total_bytes, "largest_batch": self.largest_batch}
        return {**vars(self), **derived}


def read_need(
    model: Any,
    traced: Traced | None,
    kept: Kept | None,
    batch_size: int,
    device: str,
    *,
    memory: float | None,
) -> MemoryNeed:
    """Estimates what a training takes, and reads what the device has.

    Args:
        model: A built Keras model.
        traced: Its trace, or None where it could not be traced.
        kept: What its gradients read, or None likewise.
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
    ends = [math.prod(tensor_shape(one)) * one.dtype.size for one in tensors]
    found = sum(known) + sum(ends) / traced.rows + 2 * kept.largest_bytes
    return None if math.isnan(found) else float(found)


def _sum_bytes(variables: Any) -> float:
    return float(sum(math.prod(one.shape) * _element_bytes(one.dtype) for one in variables))


def _element_bytes(dtype: str) -> float:
    return runtime.tensorflow().as_dtype(dtype).size


# Optimizer ---------------------------------------------------------------------------------------


def read_optimizer_bytes(model: Any) -> float | None:
    """Bytes of an optimizer's variables; 0 for a model that is not compiled.

    One that is not built yet is asked how much it would keep for a matrix of 64 x 64.
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
    except Exception:  # a user's own class may know no config, or want other weights
        return None
    share = (_sum_bytes(copy.variables) - before) / (PROBE * PROBE * 4)
    return share * _sum_bytes(model.trainable_weights)


# Device ------------------------------------------------------------------------------------------


def read_room(device: str, held_bytes: float) -> tuple[float | None, float | None]:
    """A device's memory, and what of it the model's training could have.

    Args:
        device: TensorFlow's own name, such as "GPU:0".
        held_bytes: What the model's weights take of it already.
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
        return limit, limit  # TensorFlow took all of it when it started: none is free, all is ours
    held = runtime.memory_info(device)["current"] if runtime.started() else 0
    return limit, None if free is None else free + held
