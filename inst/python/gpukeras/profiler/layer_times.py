"""Attributes kernel time to layers, ops and kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from gpukeras.backend import tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.profiler.attribution import attribute_windows, clip
from gpukeras.profiler.trace.activity import CPU, Activity, Work
from gpukeras.profiler.trace.op_scopes import (
    build_tree,
    find_layer,
    is_backward,
    settle,
    shorten,
    shorten_type,
)

OPTIMIZER, LOSS, INPUT, OTHER = "optimizer", "loss and metrics", "input", "other"
# Scope names of Keras' own optimizers, for traces without their model.
OPTIMIZERS = {"adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb", "lion"}
OPTIMIZERS |= {"loss_scale_optimizer", "muon", "nadam", "rmsprop", "sgd", "SGD"}
CLIPPING = {"clip_by_norm", "clip_by_global_norm", "global_norm", "clip_by_value"}
LOSSES = re.compile(r"^(compile_loss|compile_metrics|loss|metrics)(_\d+)?$")
# TensorFlow fuses a product with the ops after it, and gives the fused op the last op's name.
FUSED, PRODUCTS, FUSED_DEPTH = re.compile("Fused(MatMul|Conv)"), re.compile("Dense|Conv"), 2
CUTTING = {"Slice", "StridedSlice", "GatherV2", "DatasetToSingleElement"}  # a batch from its block


@dataclass(frozen=True)
class ModelLayer:
    """A layer, or the optimizer, as it appears in the names of ops.

    Args:
        name: Its own name, such as "dense_1"; within a nested model "inner/dense"; "optimizer".
        kind: Its class, such as "Dense".
        path: Its name scope in Keras, such as "sequential/dense_1"; for the optimizer, its name.
    """

    name: str
    kind: str
    path: str


@dataclass(frozen=True)
class LayerTime:
    """Kernel time of a layer, or of one of "optimizer", "loss and metrics", "input", "other".

    Args:
        layer: The layer's name.
        kind: Its class; "" if the row is not a layer.
        forward_s: Seconds of its forward pass (all its time if the row is not a layer).
        backward_s: Seconds of its gradients.
        total_s: Their sum.
        share: `total_s` as a share of all kernel time.
    """

    layer: str
    kind: str
    forward_s: float
    backward_s: float
    total_s: float
    share: float


@dataclass(frozen=True)
class OpTime:
    """All runs of one op, or of one kernel.

    Args:
        name: The op's name, or the kernel's.
        type: The op's type, such as "MatMul"; "" if unknown.
        count: Number of runs; for an op on a GPU or under XLA, the number of its kernels.
        total_s: Seconds of wall time attributed to it.
        share: `total_s` as a share of all kernel time.
        layer: Its layer, or "optimizer" and the like, see `LayerTime`; "" if the model's layers
            were not given.
    """

    name: str
    type: str
    count: int
    total_s: float
    share: float
    layer: str = ""


def read_layers(model: Model) -> list[ModelLayer]:
    """Returns the layers of a Keras model in order; those of nested models are listed in place.

    A layer that holds layers but is not a model (a wrapper, an attention) is one layer. The last
    entry is the optimizer, if the model is compiled.
    """
    layers = list(_read_level(model, model.name, ""))
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        layers.append(ModelLayer(OPTIMIZER, type(optimizer).__name__, optimizer.name))
    return layers


def _read_level(model: Model, path: str, above: str) -> list[ModelLayer]:
    layers = []
    for layer in model.layers:
        name, inner = f"{above}{layer.name}", f"{path}/{layer.name}"
        if tensor_ops.is_keras_model(layer):
            layers += _read_level(layer, inner, f"{name}/")
        elif type(layer).__name__ != "InputLayer":
            layers.append(ModelLayer(name, type(layer).__name__, inner))
    return layers


# By layer ----------------------------------------------------------------------------------------


def attribute_layers(activity: Activity, layers: Sequence[ModelLayer]) -> list[LayerTime]:
    """Returns kernel time by layer within the marked steps (or the whole trace without marks).

    Each moment is divided equally among the kernels that run in it, so the rows sum to
    `attribution.shares(activity).kernels_s`.

    Args:
        activity: The trace.
        layers: See `read_layers()`.

    Returns:
        All layers in order, also those without time; then "optimizer", "loss and metrics", "input"
        (cutting batches, tf.data) and "other" if they have time. "Other" is work without a layer's
        name: metrics, sums of gradients, what XLA adds.
    """
    kernels = _kernels(activity)
    rows = Rows(layers, {work.scope for work in kernels})
    seconds = attribute_windows(kernels, activity.windows, rows.find)
    return _make_rows(seconds, rows.kinds, rows.layers)


class Rows:
    """Maps ops to the rows of the table of layers.

    Args:
        layers: The model's layers, see `read_layers()`.
        scopes: The names of all ops of the trace.

    Attributes:
        layers: Names of the rows that are layers.
        kinds: All rows in order, with their classes.
    """

    def __init__(self, layers: Sequence[ModelLayer], scopes: Iterable[str]) -> None:
        """Matches name scopes with layers."""
        inside = [layer for layer in layers if layer.name != OPTIMIZER]
        optimizer = next((layer for layer in layers if layer.name == OPTIMIZER), None)
        self.layers = {layer.name for layer in inside}
        self.kinds = {layer.name: layer.kind for layer in inside}
        self.kinds |= {
            OPTIMIZER: optimizer.kind if optimizer else "",
            LOSS: "",
            INPUT: "",
            OTHER: "",
        }
        self._optimizer = optimizer.path if optimizer else ""
        self._names = {layer.path: layer.name for layer in inside}
        self._roots = build_tree(self._names)
        self._known: dict[tuple[str, str, bool], tuple[str, bool]] = {}
        settle(self._roots, scopes)

    def find(self, work: Work) -> tuple[str, bool]:
        """Returns the row of a kernel, and whether the kernel computes gradients."""
        asked = (work.scope, work.type, work.lane.startswith(INPUT))
        if asked not in self._known:
            self._known[asked] = self._find(*asked)
        return self._known[asked]

    def _find(self, scope: str, kind: str, feeding: bool) -> tuple[str, bool]:
        name = INPUT if feeding else self._names.get(find_layer(self._roots, scope), "")
        if FUSED.search(kind):
            name = self._find_product(name)
        backward = name in self.layers and is_backward(scope)
        return name or choose_row(scope, kind, self._optimizer), backward

    def _find_product(self, name: str) -> str:
        """Returns the layer whose product was fused into an activation or normalization layer."""
        if name not in self.layers or PRODUCTS.search(self.kinds[name]):
            return name
        names = list(self.kinds)
        place = names.index(name)
        before = reversed(names[max(0, place - FUSED_DEPTH) : place])
        return next((other for other in before if PRODUCTS.search(self.kinds[other])), name)


def _kernels(activity: Activity) -> list[Work]:
    return [work for work in activity.works if work.kind == "kernel"]


def choose_row(scope: str, kind: str, optimizer: str = "") -> str:
    """Returns the row of an op outside all layers: optimizer, loss and metrics, input or other.

    Args:
        scope: The op's name.
        kind: The op's type.
        optimizer: The optimizer's name scope; "" matches those of Keras' own optimizers.
    """
    parts = shorten(scope).split("/")[:-1]
    if any(_is_optimizer(part, optimizer) or part in CLIPPING for part in parts):
        return OPTIMIZER
    if any(LOSSES.match(part) for part in parts):
        return LOSS
    return INPUT if kind in CUTTING and "gradient_tape" not in parts else OTHER


def _is_optimizer(part: str, optimizer: str) -> bool:
    bare = re.sub(r"_\d+$", "", part)
    return optimizer in (part, bare) if optimizer else bool({part, bare} & OPTIMIZERS)


def _make_rows(
    seconds: Mapping[Hashable, float], kinds: Mapping[str, str], layers: set[str]
) -> list[LayerTime]:
    all_s = sum(seconds.values())
    rows = []
    for name, kind in kinds.items():
        forward, backward = (seconds.get((name, way), 0.0) for way in (False, True))
        total = forward + backward
        if total or name in layers:
            share = total / all_s if all_s else 0.0
            rows.append(LayerTime(name, kind, forward, backward, total, share))
    return rows


# By op and by kernel -----------------------------------------------------------------------------


def top_ops(activity: Activity, n: int = 10, layers: Sequence[ModelLayer] = ()) -> list[OpTime]:
    """Returns the ops with the most kernel time within the marked steps (or the whole trace).

    Kernels without an op count under their own name.

    Args:
        activity: The trace.
        n: Number of ops.
        layers: See `read_layers()`; if given, each op has its layer.
    """
    rows = Rows(layers, {work.scope for work in _kernels(activity)}) if layers else None
    return _rank(activity, n, lambda work: _name_op(work, rows))


def _name_op(work: Work, rows: Rows | None) -> tuple[str, str, str]:
    name, layer = shorten(work.scope) or work.name, rows.find(work)[0] if rows else ""
    return name, shorten_type(work.type), layer


def top_kernels(activity: Activity, n: int = 10) -> list[OpTime]:
    """Returns the GPU kernels with the most time; empty on a CPU, whose kernels are ops."""
    if activity.device == CPU:
        return []
    return _rank(activity, n, lambda work: (work.name, "", ""))


def _rank(activity: Activity, n: int, key: Callable[[Work], tuple[str, str, str]]) -> list[OpTime]:
    kernels = _kernels(activity)
    named = attribute_windows(kernels, activity.windows, key)
    seconds = cast("dict[tuple[str, str, str], float]", named)  # the keys that `key` returns
    runs = clip((work for work in kernels if not work.part), activity.windows)
    counts = Counter(key(work) for work, _, _ in runs)
    all_s = sum(seconds.values())
    ranked = sorted(seconds, key=lambda key: (-seconds[key], key))[:n]
    return [
        OpTime(name, kind, counts[key], seconds[key], seconds[key] / all_s if all_s else 0.0, layer)
        for key in ranked
        for name, kind, layer in [key]
    ]
