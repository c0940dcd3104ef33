"""Counts the activations that a training step keeps of each layer until its gradients exist.

The forward pass and its gradients are traced (see `graph`). The tensors that the forward pass makes
and the gradients read are summed for the layer that made them. TensorFlow has to keep these in
memory between the two passes, unless XLA compiles the step, which may compute some of them twice
instead. A tensor counts once, however many views read it.

Recurrent layers keep numbers of every time step inside a loop, which the graph does not show: an
LSTM's 4 gates, state, its tanh and the output (7 numbers per unit and step), a GRU's 3 gates, the
product before its reset and the output (5), a SimpleRNN's output (1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpukeras.profiler.cost.layer_flops import Call, keras_kind
from gpukeras.profiler.cost.op_flops import element_bytes, names, tensor_shape
from gpukeras.profiler.cost.watcher import Seen, Traced

VIEWS = names(
    """
    Identity IdentityN Reshape ExpandDims Squeeze StopGradient PreventGradient EnsureShape Snapshot
    CheckNumerics
    """
)
SOURCES = names("Placeholder ReadVariableOp VarHandleOp Const")
KEPT_BY_STEP = {"LSTMCell": 7, "GRUCell": 5, "SimpleRNNCell": 1}  # numbers per unit
CONV_LSTM = 7
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float64": 8}


@dataclass(frozen=True)
class Kept:
    """The kept activations of a model's forward pass.

    Args:
        by_layer: Bytes per row by the identity of the layer that made them; None if unknown.
        fixed_bytes: Bytes that do not grow with the batch, such as weights cast to 16 bits.
        largest_bytes: The largest of the tensors, in bytes per row.
    """

    by_layer: dict[int, float | None]
    fixed_bytes: float
    largest_bytes: float


def sum_kept(traced: Traced) -> Kept:
    """Returns the activations of the forward pass that the gradients in a trace read."""
    by_layer: dict[int, float | None] = {id(seen.layer): 0 for seen in traced.seen}
    fixed = largest = 0.0
    pairs = _kept_tensors(traced) if traced.kept is None else traced.kept
    for tensor, seen in pairs:
        size = math.prod(tensor_shape(tensor)) * max(1, element_bytes(tensor.dtype))
        own = _recurrent_bytes(seen) if seen else None
        if own is not None:
            continue
        if math.isnan(size) or tensor.dtype.name in ("variant", "resource"):
            if seen:
                by_layer[id(seen.layer)] = None
        elif size % traced.rows:
            fixed += size
        else:
            largest = max(largest, size / traced.rows)
            _add(by_layer, seen, size / traced.rows)
    for seen in traced.seen:
        own = _recurrent_bytes(seen)
        if own is not None:
            by_layer[id(seen.layer)] = None if math.isnan(own) else own / traced.rows
    return Kept(by_layer, fixed, largest)


def _add(by_layer: dict[int, float | None], seen: Seen | None, size: float) -> None:
    before = None if seen is None else by_layer[id(seen.layer)]
    if seen is not None and before is not None:
        by_layer[id(seen.layer)] = before + size


def _kept_tensors(traced: Traced) -> Iterator[tuple[Any, Seen | None]]:
    """Yields each tensor of the forward pass that a gradient reads, once, with its layer."""
    forward = {op.name for op in traced.ops[: traced.forward]}
    done = set()
    for op in traced.ops[traced.forward :]:
        for tensor in op.inputs:
            made = _behind_views(tensor)
            fresh = made.op.name in forward and made.name not in done
            if fresh and made.op.type not in SOURCES:
                done.add(made.name)
                yield made, traced.owners.get(made.op.name)


def _behind_views(tensor: Any) -> Any:
    """Returns the tensor that owns a tensor's memory."""
    while tensor.op.type in VIEWS:
        tensor = tensor.op.inputs[0]
    return tensor


def _recurrent_bytes(seen: Seen) -> float | None:
    """Returns the bytes that a recurrent layer keeps for the whole batch; None for other layers."""
    kept = [_kept_numbers(call) for call in seen.calls]
    known = [numbers for numbers in kept if numbers is not None]
    if not kept or len(known) < len(kept):
        return None
    return sum(known) * ELEMENT_BYTES.get(seen.layer.compute_dtype, 4)


def _kept_numbers(call: Call) -> float | None:
    layer, kind = call.layer, keras_kind(call.layer)
    if kind.startswith("ConvLSTM"):
        steps = 1 if layer.return_sequences else call.first[1]
        return CONV_LSTM * math.prod(call.output) * steps
    if kind not in ("RNN", "LSTM", "GRU", "SimpleRNN"):
        return None
    cells = getattr(layer.cell, "cells", [layer.cell])
    factors = [KEPT_BY_STEP.get(keras_kind(cell)) for cell in cells]
    if None in factors:
        return None
    steps = math.prod(call.first[:2])
    return steps * sum(f * cell.units for f, cell in zip(factors, cells, strict=True))
