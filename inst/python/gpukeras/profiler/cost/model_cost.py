"""Counts what a model costs before training: parameters, FLOPs, activations, memory, by layer.

It runs nothing and needs no data. The model is traced (`graph`), layers of Keras are counted by
closed formulas (`layer_flops`), others by their operations (`op_flops`, `jaxpr_flops`), and kept
activations by the gradient operations that read them (`activations`). A count that is unknown is
None with a note, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_count, check_positive
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.engine.batch_rows import model_device
from gpukeras.models import model_checks
from gpukeras.profiler.cost.activations import Kept, sum_kept
from gpukeras.profiler.cost.card_cost import CardCost, find_room
from gpukeras.profiler.cost.graph import input_specs, trace_model
from gpukeras.profiler.cost.layer_flops import has_formula, layer_flops
from gpukeras.profiler.cost.memory import MIB, read_need
from gpukeras.profiler.cost.on_card import CardRequest, find_asked_card, read_card_cost
from gpukeras.profiler.cost.op_flops import OPEN, count_ops
from gpukeras.profiler.cost.suggestions import Suggestion, suggest_memory, suggest_savings
from gpukeras.profiler.cost.watcher import Seen, Traced
from gpukeras.training.batch_size import plan_batches
from gpukeras.training.keras_functions import build_on

BATCH = 32  # Keras' own default
STEP = 3  # training step / forward pass: the backward pass takes about twice the forward pass


@dataclass(frozen=True)
class LayerCost:
    """Cost of a layer.

    Args:
        name: Names from below the model down to it, joined by "/".
        kind: Its class.
        output_shape: Shape of a row of its (first) output; None for an open dimension.
        params: Number of its parameters; a shared layer's count at its first call.
        trainable_params: Number of its trainable parameters.
        flops: FLOPs of the forward pass, per row; None if unknown.
        activation_bytes: Bytes per row that are kept until the gradients exist; None if unknown.
        calls: Number of calls in a forward pass.
        counted_by: "formula", "operations", or "" if the FLOPs are unknown.
        unknown: Operations that could not be counted.
    """

    name: str
    kind: str
    output_shape: tuple[int | None, ...]
    params: int
    trainable_params: int
    flops: float | None
    activation_bytes: float | None
    calls: int
    counted_by: str
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class ModelCost:
    """Cost of a model.

    Args:
        name: The model's name.
        layers: Its layers in the order of their first call, with those of nested models.
        params: Number of its parameters.
        trainable_params: Number of its trainable parameters.
        flops: FLOPs of the forward pass, per row: of all layers that are known.
        flops_known: Whether all layers are known.
        step_flops: FLOPs of a training step on a batch, about three times its forward pass; None if
            not all layers are known.
        activation_bytes: Bytes per row that training keeps; None if unknown.
        memory: `MemoryNeed.to_record()`.
        suggestions: Changes that would make it cheaper.
        notes: Sentences on what is unknown, and why.
        card: What the training would be on a card; None if none is asked for or here.
    """

    name: str
    layers: tuple[LayerCost, ...]
    params: int
    trainable_params: int
    flops: float
    flops_known: bool
    step_flops: float | None
    activation_bytes: float | None
    memory: dict[str, Any]
    suggestions: tuple[Suggestion, ...]
    notes: tuple[str, ...]
    card: CardCost | None = None


def model_cost(
    model: Model,
    batch_size: float | None = None,
    device: str | None = None,
    input_shape: Any = None,
    memory: float | None = None,
    *,
    data: Dataset | None = None,
    card: str | None = None,
    compiler: str = "",
) -> ModelCost:
    """Counts the cost of a model; it is not run, and no weight changes.

    Args:
        model: A Keras model; it need not be compiled, but then no optimizer is counted. If it has
            no weights yet it is built, as by its first batch.
        batch_size: Rows of a batch for the memory; None for the data's, or 32, Keras' own default.
        device: Device to compare with, such as "GPU:0"; None for the device of the weights.
        input_shape: Shape of a row, for models that do not define it or leave dimensions open; a
            list of shapes or a mapping by name for several inputs.
        memory: MiB to compare with in place of a device's.
        data: Rows that the model would train on; it is then built on them.
        card: A card of the table, such as "A100"; None for the one that is here.
        compiler: An interpreter that can compile for a card, see `aot`; "" if there is none.

    Raises:
        SpecError: for a value that is not a Keras model, options out of range, or a card that is
            not listed.
        ModelError: if the model has no input shape and none is given, or cannot be called.
    """
    model_checks.check_model(model, compiled=False)
    place = device or model_device(model)
    entry, unlisted = find_asked_card(card, place)
    size = _choose_size(model, data, batch_size)
    room = None if memory is None else check_positive("memory", memory) * MIB
    if room is None and card is not None and entry is not None:
        room = find_room(entry, runtime.usable_share())
    specs = input_specs(model, input_shape)
    traced = trace_model(model, specs)
    training, kept, why = _read_kept(model, specs)
    layers = _list_layers(model, traced, kept)
    need = read_need(model, training, kept, size, place, memory=room)
    known = [layer.flops for layer in layers if layer.flops is not None]
    params = count_numbers(model.weights)
    complete, flops = len(known) == len(layers), sum(known)
    savings = suggest_savings(traced.seen, flops * traced.rows, params)
    request = None if entry is None else CardRequest(entry, data, compiler)
    row_flops = STEP * flops if complete else None
    notes = explain_unknown(layers) + why + _explain_optimizer(model, need)
    return ModelCost(
        name=model.name,
        layers=tuple(layers),
        params=params,
        trainable_params=count_numbers(model.trainable_weights),
        flops=flops,
        flops_known=complete,
        step_flops=None if row_flops is None else row_flops * size,
        activation_bytes=_sum_known([layer.activation_bytes for layer in layers]),
        memory=need.to_record(),
        suggestions=(*savings, *suggest_memory(need, model.dtype_policy.name)),
        notes=(*notes, *([unlisted] if unlisted else [])),
        card=None if request is None else read_card_cost(model, request, need, row_flops),
    )


def _choose_size(model: Model, data: Dataset | None, asked: float | None) -> int:
    """Returns the rows of a batch; with data, builds a compiled model on them."""
    size = None if asked is None else check_count("batch_size", asked)
    if data is None:
        return size or BATCH
    if model.compiled:
        build_on(model, data, size)
    return plan_batches(model, data, "CPU:0", size).batch_size


def count_flops(model: Model, input_shape: Any = None) -> float | None:
    """Returns the FLOPs of a model's forward pass per row; None if a layer's cannot be counted.

    Args:
        model: A Keras model.
        input_shape: As in `model_cost()`.
    """
    traced = trace_model(model, input_specs(model, input_shape))
    counted = [_count_flops(seen, traced.rows)[0] for seen in traced.seen]
    return _sum_known(counted)


def count_numbers(variables: Sequence[Any]) -> int:
    """Returns the total number of elements of some variables."""
    return sum(math.prod(variable.shape) for variable in variables)


# Layers ------------------------------------------------------------------------------------------


def _read_kept(model: Model, specs: Any) -> tuple[Traced | None, Kept | None, list[str]]:
    """Returns the trace of a training step and its activations; if tracing fails, the reason."""
    try:
        traced = trace_model(model, specs, gradients=True)
    except ModelError as error:
        return None, None, [f"Activations are not known, as training fails: {error.message}"]
    return traced, sum_kept(traced), []


def _list_layers(model: Model, traced: Traced, kept: Kept | None) -> list[LayerCost]:
    """Returns a row for each layer that costs something or has operations of its own."""
    seen_weights: set[int] = set()
    costs = [_describe(seen, traced.rows, kept, seen_weights) for seen in traced.seen]
    shown = [
        cost
        for seen, cost in zip(traced.seen, costs, strict=True)
        if has_formula(seen.layer) or _costs(cost) or not keras_private.has_layers(seen.layer)
    ]
    left = [weight for weight in model.weights if id(weight) not in seen_weights]
    if left:
        trained = count_numbers([weight for weight in left if weight.trainable])
        numbers = count_numbers(left)
        shown.append(LayerCost("(not called)", "", (), numbers, trained, 0, 0, 0, "formula", ()))
    return shown


def _costs(cost: LayerCost) -> bool:
    return bool(cost.params or cost.flops or cost.activation_bytes or cost.unknown)


def _describe(seen: Seen, rows: int, kept: Kept | None, taken: set[int]) -> LayerCost:
    flops, unknown = _count_flops(seen, rows)
    weights = [weight for weight in _own_weights(seen.layer) if id(weight) not in taken]
    taken.update(map(id, weights))
    by_formula = "formula" if has_formula(seen.layer) else "operations"
    return LayerCost(
        name=seen.name,
        kind=type(seen.layer).__name__,
        output_shape=tuple(
            None if size != size else int(size) for size in seen.calls[0].output[1:]
        ),
        params=count_numbers(weights),
        trainable_params=count_numbers([weight for weight in weights if weight.trainable]),
        flops=flops,
        activation_bytes=None if kept is None else kept.by_layer.get(id(seen.layer), 0),
        calls=len(seen.calls),
        counted_by="" if flops is None else by_formula,
        unknown=tuple(unknown),
    )


def _own_weights(layer: Any) -> list[Any]:
    """Returns a layer's weights, with those of inner layers if its formula covers them."""
    if not hasattr(layer, "weights"):  # an operation of Keras
        return []
    if has_formula(layer):
        return layer.weights
    inside = {id(weight) for below in _below(layer) for weight in below.weights}
    return [weight for weight in layer.weights if id(weight) not in inside]


def _below(layer: Any) -> list[Any]:
    return keras_private.list_layers(layer, include_self=False, recursive=False)


def _count_flops(seen: Seen, rows: int) -> tuple[float | None, list[str]]:
    """Returns the FLOPs of all calls per row, and the operations that could not be counted."""
    if seen.hidden:
        return None, ["a loop or condition"]
    if has_formula(seen.layer):
        total = _sum_known([layer_flops(call) for call in seen.calls])
        return (None, [OPEN]) if total is None else (_per_row(total, rows), [])
    flops, unknown = count_ops(seen.ops)
    return (None, unknown) if unknown else (_per_row(flops, rows), [])


def _per_row(total: float, rows: int) -> float:
    """Divides by the rows; the result is an int unless some work does not grow with the batch."""
    share = total / rows
    return int(share) if share == int(share) else share


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


# What is not known -------------------------------------------------------------------------------


def explain_unknown(layers: Sequence[LayerCost]) -> list[str]:
    """Returns why the FLOPs of some layers are unknown."""
    unknown = [layer for layer in layers if layer.flops is None]
    if not unknown:
        return []
    open_shapes = any(OPEN in layer.unknown for layer in unknown)
    names = ", ".join(layer.name for layer in unknown[:3]) + (", ..." if unknown[3:] else "")
    reasons = dict.fromkeys(reason for layer in unknown for reason in layer.unknown)
    advice = " Give the shape of a row as `input_shape`." if open_shapes else ""
    return [
        f"FLOPs of {len(unknown)} of {len(layers)} layers ({names}) are not known, because of "
        f"{', '.join(list(reasons)[:4])}; the total is without them.{advice}"
    ]


def _explain_optimizer(model: Model, need: Any) -> list[str]:
    if getattr(model, "optimizer", None) is None:
        return ["The model is not compiled: no optimizer is counted."]
    if need.optimizer_bytes is None:
        return ["What the optimizer keeps is not known until it is built."]
    return []
