"""Finds which units of a model can only be removed together: a graph of channels across layers.

Each producing layer (dense, convolution) makes as many units as it has outputs. Other layers pass
them on: one by one (activation, pooling, normalization), several times (flatten, depthwise
convolution), or side by side (concatenate). Layers that add tensors tie units: unit 3 of the one
can only be removed together with unit 3 of the other. Units that end in the model's output, or in a
layer that takes a fixed number of them, are locked, with the reason. All other units can be removed
from all layers at once, and the model's shapes still match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.core.keras_types import Model
from gpukeras.profiler.cost.layer_flops import is_keras_layer, keras_kind

Ids = np.ndarray  # units, one for each channel of a tensor (its last axis)


class ChannelGroups:
    """Units by number, in sets that can only be removed together (a union-find).

    Attributes:
        locked: Why a set of units cannot be removed, by the set's root.
    """

    def __init__(self) -> None:
        """Starts without units."""
        self._above: list[int] = []
        self.locked: dict[int, str] = {}

    def make(self, count: int) -> Ids:
        """Returns new units, each in a set of its own."""
        first = len(self._above)
        self._above.extend(range(first, first + count))
        return np.arange(first, first + count)

    def find(self, unit: int) -> int:
        """Returns the root of a unit's set."""
        while self._above[unit] != unit:
            self._above[unit] = self._above[self._above[unit]]
            unit = self._above[unit]
        return unit

    def roots(self, ids: Ids) -> Ids:
        """Returns the root of each unit."""
        return np.array([self.find(int(each)) for each in ids], int)

    def tie(self, some: Ids, others: Ids) -> None:
        """Merges the set of each unit with that of its counterpart."""
        for unit, other in zip(some, others, strict=True):
            first, second = self.find(int(unit)), self.find(int(other))
            if first != second:
                self._above[second] = first
                reason = self.locked.pop(second, None)
                if reason is not None:
                    self.locked.setdefault(first, reason)

    def lock(self, ids: Ids | None, reason: str) -> None:
        """Marks units as not removable; the first reason is kept."""
        for root in [] if ids is None else self.roots(ids):
            self.locked.setdefault(int(root), reason)


@dataclass
class Wired:
    """A layer in the graph.

    Args:
        name: Names from below the model down to it, joined by "/".
        layer: The Keras layer.
        kind: Its Keras class; "" if it is unknown here.
        inputs: The units of its input channels; None if unknown.
        outputs: The units of its output channels.
        produces: Whether the layer makes the output units itself.
    """

    name: str
    layer: Any
    kind: str
    inputs: Ids | None
    outputs: Ids | None
    produces: bool = False

    @property
    def own(self) -> Ids:
        """The units of a layer that produces them."""
        assert self.outputs is not None
        return self.outputs


@dataclass
class Wiring:
    """A model's layers with their units.

    Args:
        units: The units.
        layers: Layers of the model and of nested models, in the order of their first call.
    """

    units: ChannelGroups = field(default_factory=ChannelGroups)
    layers: list[Wired] = field(default_factory=list)

    def find(self, layer: Any) -> Wired | None:
        """Returns the entry of a layer that was called before, or None."""
        return next((wired for wired in self.layers if wired.layer is layer), None)


def wire_model(model: Model) -> Wiring:
    """Follows the channels through a model.

    Args:
        model: A built Sequential or functional Keras model.
    """
    wiring = Wiring()
    graph = find_graph(model)
    inputs = [_fixed(wiring, tensor, "is the model's input") for tensor in graph.inputs]
    for ids in _follow(wiring, graph, inputs, ""):
        wiring.units.lock(ids, "gives the output")
    return wiring


def find_graph(model: Model) -> Any:
    """Returns the functional model behind a Sequential one; any other model unchanged."""
    return keras_private.functional_of(model) or model


def is_graph(layer: Any) -> bool:
    """Whether a layer is a model whose layers are known."""
    models = runtime.keras().models
    if isinstance(layer, models.Sequential):
        return keras_private.functional_of(layer) is not None
    return keras_private.has_nodes(layer) and isinstance(layer, models.Model)


def _follow(wiring: Wiring, graph: Any, input_ids: Sequence[Ids | None], above: str) -> list[Any]:
    """Returns the units of a graph's outputs from those of its inputs."""
    known = {id(tensor): ids for tensor, ids in zip(graph.inputs, input_ids, strict=True)}
    for node in keras_private.list_nodes(graph):
        if node.is_input:
            continue
        inputs = [known.get(id(tensor)) for tensor in node.input_tensors]
        outputs = _pass(wiring, node, inputs, above)
        known.update(zip(map(id, node.outputs), outputs, strict=True))
    return [known.get(id(tensor)) for tensor in graph.outputs]


def _pass(wiring: Wiring, node: Any, inputs: list[Ids | None], above: str) -> list[Ids | None]:
    """Returns the units of a node's outputs."""
    layer = node.operation
    name = f"{above}{layer.name}"
    if is_graph(layer) and len(inputs) == 1:
        wiring.units.lock(inputs[0], f"feeds the model `{name}`")
        return _follow(wiring, find_graph(layer), inputs, f"{name}/")
    kind = find_kind(layer)
    rule = _RULES.get(kind)
    if rule is not None and None not in [_width(tensor) for tensor in node.input_tensors]:
        passed = rule(wiring, _Node(name, layer, kind, node), inputs)
        if passed is not None:
            return [passed]
    return _lock_node(wiring, name, node, inputs)


@dataclass(frozen=True)
class _Node:
    """A call of a layer, with its tensors' shapes without the batch."""

    name: str
    layer: Any
    kind: str
    node: Any

    @property
    def shapes(self) -> list[tuple[int | None, ...]]:
        return [tuple(tensor.shape[1:]) for tensor in self.node.input_tensors]

    @property
    def output(self) -> tuple[int | None, ...]:
        return tuple(self.node.outputs[0].shape[1:])


def find_kind(layer: Any) -> str:
    """Returns a layer's Keras class if its weights and settings are known; "" for any other."""
    if not is_keras_layer(type(layer)) or getattr(layer, "quantization_mode", None) is not None:
        return ""
    if getattr(layer, "data_format", None) == "channels_first" or getattr(layer, "groups", 1) > 1:
        return ""
    return keras_kind(layer)


def _width(tensor: Any) -> int | None:
    return tensor.shape[-1] if len(tensor.shape) > 1 else None


def _fixed(wiring: Wiring, tensor: Any, reason: str) -> Ids | None:
    """Returns new units that cannot be removed."""
    width = _width(tensor)
    if width is None:
        return None
    ids = wiring.units.make(width)
    wiring.units.lock(ids, reason)
    return ids


def _lock_node(wiring: Wiring, name: str, node: Any, inputs: list[Ids | None]) -> list[Any]:
    """Locks the inputs and outputs of a layer with fixed widths."""
    layer = node.operation
    for ids in inputs:
        wiring.units.lock(ids, f"feeds `{name}` ({type(layer).__name__}), whose input is fixed")
    outputs = [_fixed(wiring, tensor, f"comes from `{name}`") for tensor in node.outputs]
    if wiring.find(layer) is None:
        wiring.layers.append(Wired(name, layer, "", None, None))
    return outputs


# Rules -------------------------------------------------------------------------------------------

Rule = Callable[[Wiring, _Node, "list[Ids | None]"], "Ids | None"]


def _produce(wiring: Wiring, node: _Node, inputs: list[Ids | None]) -> Ids | None:
    """Makes new units; a repeated call of a layer returns the same units and ties its inputs."""
    before = wiring.find(node.layer)
    if before is None:
        width = node.output[-1]
        assert width is not None  # a producing layer has a known width
        outputs = wiring.units.make(width)
        wired = Wired(node.name, node.layer, node.kind, inputs[0], outputs, True)
        wiring.layers.append(wired)
        return outputs
    _again(wiring, before, inputs[0])
    return before.outputs


def _again(wiring: Wiring, before: Wired, inputs: Ids | None) -> None:
    if inputs is None or before.inputs is None:
        wiring.units.lock(inputs, f"is shared by `{before.name}`")
        wiring.units.lock(before.inputs, f"is shared by `{before.name}`")
    else:
        wiring.units.tie(before.inputs, inputs)


def _hand_on(wiring: Wiring, node: _Node, inputs: list[Ids | None]) -> Ids | None:
    """Passes units on one by one; the layer may have a weight for each."""
    return _note(wiring, node, inputs[0], inputs[0])


def _note(wiring: Wiring, node: _Node, inputs: Ids | None, outputs: Ids | None) -> Ids | None:
    before = wiring.find(node.layer)
    if before is None:
        wiring.layers.append(Wired(node.name, node.layer, node.kind, inputs, outputs))
    elif node.layer.weights:
        _again(wiring, before, inputs)
    return outputs


def _normalise(wiring: Wiring, node: _Node, inputs: list[Ids | None]) -> Ids | None:
    axis = node.layer.axis
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    last = len(node.shapes[0])  # with the batch in front
    return _hand_on(wiring, node, inputs) if list(axes) in ([-1], [last]) else None


def _depthwise(wiring: Wiring, node: _Node, inputs: list[Ids | None]) -> Ids | None:
    """Repeats each channel: a depthwise convolution has several filters per channel."""
    ids = inputs[0]
    return _note(wiring, node, ids, None if ids is None else _repeat(ids, node.layer))


def _repeat(ids: Ids, layer: Any) -> Ids:
    return np.repeat(ids, layer.depth_multiplier)


def _reshape(wiring: Wiring, node: _Node, inputs: list[Ids | None]) -> Ids | None:
    """Keeps the channels on the last axis, or flattens the channels of all positions."""
    ids, width = inputs[0], node.output[-1]
    if ids is None or width is None:
        return None
    if width == len(ids):
        return _note(wiring, node, ids, ids)
    if len(node.output) > 1 or width % len(ids):
        return None
    return _note(wiring, node, ids, np.tile(ids, width // len(ids)))


def _consume(wiring: Wiring, node: _Node, inputs: list[Ids | None]) -> Ids | None:
    """Handles layers with any number of inputs and a fixed number of outputs: recurrent layers."""
    plain = len(node.node.input_tensors) == 1 and len(node.node.outputs) == 1
    if not plain or len(node.shapes[0]) != 2:
        return None
    _note(wiring, node, inputs[0], None)
    return _fixed(wiring, node.node.outputs[0], f"comes from `{node.name}`")


def _merge(wiring: Wiring, node: _Node, inputs: list[Ids | None]) -> Ids | None:
    """Ties units channel by channel; a single channel that is broadcast to all others is locked."""
    known = [ids for ids in inputs if ids is not None]
    if len(known) < len(inputs):
        return None
    widest = max(known, key=len)
    for ids in known:
        if len(ids) == len(widest):
            wiring.units.tie(widest, ids)
        elif len(ids) == 1:
            wiring.units.lock(ids, f"is spread over others in `{node.name}`")
        else:
            return None
    return _note(wiring, node, None, widest)


def _concatenate(wiring: Wiring, node: _Node, inputs: list[Ids | None]) -> Ids | None:
    known = [ids for ids in inputs if ids is not None]
    if len(known) < len(inputs):
        return None
    last = len(node.shapes[0])
    if node.layer.axis in (-1, last):
        return _note(wiring, node, None, np.concatenate(known))
    for ids in known[1:]:
        wiring.units.tie(known[0], ids)
    return _note(wiring, node, None, known[0])


def _by_rank(name: str, rule: Rule) -> dict[str, Rule]:
    return {f"{name}{rank}D": rule for rank in (1, 2, 3)}


_SAME = (
    *("Activation", "ReLU", "LeakyReLU", "ELU", "Softmax", "Dropout", "AlphaDropout"),
    *("GaussianDropout", "GaussianNoise", "ActivityRegularization", "Identity", "RepeatVector"),
)
_RANKED = (
    *("SpatialDropout", "ZeroPadding", "Cropping", "UpSampling", "MaxPooling"),
    *("AveragePooling", "GlobalMaxPooling", "GlobalAveragePooling"),
)

_RULES: dict[str, Rule] = {
    "Dense": _produce,
    **_by_rank("Conv", _produce),
    **{f"Conv{rank}DTranspose": _produce for rank in (1, 2, 3)},
    **_by_rank("SeparableConv", _produce),
    **_by_rank("DepthwiseConv", _depthwise),
    **dict.fromkeys(_SAME, _hand_on),
    **{kind: rule for name in _RANKED for kind, rule in _by_rank(name, _hand_on).items()},
    "BatchNormalization": _normalise,
    "LayerNormalization": _normalise,
    "Flatten": _reshape,
    "Reshape": _reshape,
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _consume),
    **dict.fromkeys(("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"), _merge),
    "Concatenate": _concatenate,
}
