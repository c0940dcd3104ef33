"""Derives a student from a teacher: a narrower model of the same architecture.

Hidden layers get a share of their units or filters; inputs and outputs stay. Layers whose outputs
are combined number by number (in an Add, say) must stay equally wide, so widths are followed
through the model: every tensor belongs to a group, and a group is narrowed as a whole or not at
all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.compression.masks import own_constraint
from gpukeras.compression.report import LayerChange
from gpukeras.core.errors import SpecError
from gpukeras.core.keras_types import Model
from gpukeras.models.clone import (
    check_built,
    check_graph,
    clone_layers,
    copy_compile,
    copy_settings,
    copy_values,
    list_given,
    renew_means,
)
from gpukeras.profiler.cost.layer_flops import keras_kind

# The config entry with the width of a layer's output.
WIDTHS = {
    "Dense": "units",
    **{f"Conv{rank}D": "filters" for rank in (1, 2, 3)},
    **{f"Conv{rank}DTranspose": "filters" for rank in (1, 2, 3)},
    **{f"SeparableConv{rank}D": "filters" for rank in (1, 2)},
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), "units"),
    "Embedding": "output_dim",
}
_RANKED = (
    *("MaxPooling", "AveragePooling", "GlobalMaxPooling", "GlobalAveragePooling"),
    *("ZeroPadding", "Cropping", "UpSampling", "SpatialDropout", "DepthwiseConv"),
)
SAME = {f"{name}{rank}D" for name in _RANKED for rank in (1, 2, 3)}
SAME |= {"BatchNormalization", "LayerNormalization", "RMSNormalization", "UnitNormalization"}
SAME |= {"Activation", "ReLU", "LeakyReLU", "ELU", "PReLU", "Softmax", "Identity", "RepeatVector"}
SAME |= {"Dropout", "AlphaDropout", "GaussianDropout", "GaussianNoise", "ActivityRegularization"}
MERGED = {"Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum"}
JOINED = {"Concatenate", "Flatten"}  # as wide as their inputs together

Part = tuple[Any, ...]


class Groups:
    """Groups of widths that must stay equal (a union-find)."""

    def __init__(self) -> None:
        """Starts without groups."""
        self._above: dict[Part, Part] = {}
        self._fixed: set[Part] = set()
        self._parts: dict[Part, list[Part]] = {}

    def find(self, part: Part) -> Part:
        """Returns the root of a group."""
        while part in self._above:
            part = self._above[part]
        return part

    def join(self, part: Part, other: Part) -> None:
        """Makes two widths equal; a width that is a sum of others is fixed when joined."""
        first, second = self.find(part), self.find(other)
        if first == second:
            return
        if self._parts.get(first) or self._parts.get(second):
            self.fix(first)
            self.fix(second)
        self._above[second] = first
        self._parts[first] = self._parts.pop(first, []) + self._parts.pop(second, [])
        if second in self._fixed:
            self.fix(first)

    def collect(self, whole: Part, parts: list[Part]) -> None:
        """Records that a width is the sum of others."""
        self._parts[self.find(whole)] = parts

    def fix(self, part: Part) -> None:
        """Fixes a width, and the widths that it is the sum of."""
        root = self.find(part)
        if root not in self._fixed:
            self._fixed.add(root)
            for inner in self._parts.get(root, ()):
                self.fix(inner)

    def fixed(self, part: Part) -> bool:
        """Whether a width is fixed."""
        return self.find(part) in self._fixed


def derive_student(teacher: Model, width: float) -> tuple[Any, list[LayerChange]]:
    """Returns a model like the teacher, with fewer hidden units and filters, and new weights.

    Args:
        teacher: A built sequential or functional model.
        width: Share in (0, 1) that each hidden layer keeps, at least 1.

    Returns:
        The student, compiled like the teacher if that is compiled, and the change of each narrowed
        layer.

    Raises:
        ModelError: if the teacher's layers cannot be reconnected.
        SpecError: if none of them can be narrowed.
    """
    check_graph(teacher, "teacher")
    check_built(teacher)
    groups = read_groups(teacher)
    narrow = {
        layer.name: WIDTHS[keras_kind(layer)]
        for layer in _operations(teacher)
        if keras_kind(layer) in WIDTHS and not groups.fixed((layer.name,))
    }
    if not narrow:
        raise SpecError(
            "`width` finds no hidden layer of `teacher` that can be narrowed.",
            hint="Give a `student`.",
            arg="width",
        )
    changes = []

    def narrow_layer(layer: Any, config: dict[str, Any]) -> dict[str, Any]:
        if layer.name in narrow:
            name = narrow[layer.name]
            before, config[name] = config[name], narrow_width(config[name], width)
            kind = type(layer).__name__
            changes.append(LayerChange(layer.name, kind, "narrowed", before, config[name], name))
        return config

    student = clone_layers(teacher, narrow_layer)
    student.name = f"{teacher.name}_student"
    _copy_given(teacher, student)
    copy_compile(teacher, student)
    return student, changes


def narrow_width(units: int, width: float) -> int:
    """Returns the number of units that a layer keeps."""
    return max(1, math.floor(units * width + 0.5))


def _copy_given(teacher: Model, student: Model) -> None:
    """Copies settings of single variables, and weights that are not trained.

    Such are means of a Normalization and frozen weights. Masks of a pruning are of the teacher's
    weights: the student has none.
    """
    copy_settings(teacher, student)
    for variable in student.variables:
        variable.constraint = own_constraint(variable)
    copy_values(list_given(teacher), list_given(student))
    renew_means(student)


# Widths through a model --------------------------------------------------------------------------


def read_groups(model: Model) -> Groups:
    """Returns which widths of a sequential or functional model stay equal, and which are fixed."""
    graph, groups = keras_private.functional_of(model) or model, Groups()
    nest = runtime.tree()
    widths: dict[int, Part] = {}
    for tensor in nest.flatten(graph.inputs):
        widths[id(tensor)] = ("input", tensor.name)
        groups.fix(widths[id(tensor)])
    for place, node in enumerate(_nodes(graph)):
        parts = [widths[id(tensor)] for tensor in node.input_tensors]
        width = _follow(groups, node.operation, parts, place)
        is_layer = isinstance(node.operation, runtime.keras().layers.Layer)
        if is_layer and list_given(node.operation):
            for part in [*parts, width]:
                groups.fix(part)
        for output in node.outputs:
            widths[id(output)] = width
    for tensor in nest.flatten(graph.outputs):
        groups.fix(widths[id(tensor)])
    return groups


def _nodes(graph: Any) -> Iterator[Any]:
    """Yields the calls of a graph's layers, each after those that it depends on."""
    yield from (node for node in keras_private.list_nodes(graph) if not node.is_input)


def _operations(model: Model) -> list[Any]:
    return keras_private.list_operations(keras_private.functional_of(model) or model)


def _follow(groups: Groups, layer: Any, parts: list[Part], place: int) -> Part:
    """Returns the width of a layer's output, from the widths of its inputs."""
    kind, own = keras_kind(layer), (layer.name,)
    if kind in WIDTHS and len(parts) == 1 and not _holds_widths(layer):
        return own
    if kind in SAME and len(parts) == 1:
        return parts[0]
    if kind in MERGED:
        for other in parts[1:]:
            groups.join(parts[0], other)
        return parts[0]
    whole = ("call", place)
    if kind in JOINED:
        groups.collect(whole, parts)
        return whole
    for part in [*parts, own, whole]:  # the effect of any other layer on widths is unknown
        groups.fix(part)
    return whole


def _holds_widths(layer: Any) -> bool:
    """Whether a layer requires its input widths unchanged."""
    return getattr(layer, "groups", 1) != 1
