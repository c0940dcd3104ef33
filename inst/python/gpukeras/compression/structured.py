"""Structured pruning: removes whole units and filters and builds a smaller model of the rest.

A unit's score is the norm of its weights (Li et al. 2017), or the scale of the batch normalization
after it (Liu et al. 2017); tied units (see `channel_graph`) are scored together. Bisection on the
remaining FLOPs finds the share of units to remove.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.compression.channel_graph import Ids, Wired, Wiring, find_graph, wire_model
from gpukeras.compression.masks import Mask, set_mask
from gpukeras.compression.report import LayerChange, Listed
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of, percent
from gpukeras.models.clone import clone_layers, copy_compile, copy_recipe, copy_settings
from gpukeras.profiler.cost.graph import input_specs, trace_model
from gpukeras.profiler.cost.layer_flops import activation_flops, layer_flops

TARGETS = ("flops", "units")
NORMS = ("l2", "l1", "bn")
NORMALISING = ("BatchNormalization", "LayerNormalization")  # as wide as what they normalize
HALVINGS = 30  # of the interval in which the share of units is searched
LEAST_LEFT = 0.1  # of each group, if all layers are ranked together: an empty group cuts the model


@dataclass(frozen=True)
class Group:
    """Removable units, in one or more layers that are tied.

    Args:
        layers: The layers that make them.
        roots: The units, by the roots of their sets.
        worth: Score of each unit, at least 0.
    """

    layers: tuple[Wired, ...]
    roots: Ids
    worth: np.ndarray


@dataclass(frozen=True)
class Narrowed:
    """A smaller model.

    Args:
        model: The model, compiled like the original.
        changes: The changed layers.
        listed: Layers that could not be made smaller, and why.
        notes: Sentences for the model's owner.
    """

    model: Model
    changes: tuple[LayerChange, ...]
    listed: tuple[Listed, ...]
    notes: tuple[str, ...]


def narrow_model(
    model: Model,
    sparsity: float,
    target: str = "flops",
    *,
    whole: bool = False,
    norm: str = "l2",
    excluded: Callable[[str], bool] = lambda path: False,
) -> Narrowed:
    """Returns a model with fewer units and the weights of the remaining ones.

    Args:
        model: A built Sequential or functional model; it is not changed.
        sparsity: Share that is removed, in (0, 1).
        target: What it is a share of: "flops" (of the whole model) or "units" (of the removable
            ones).
        whole: Whether to remove the units with the lowest scores of all layers, instead of the same
            share of each layer.
        norm: "l2", "l1" or "bn".
        excluded: Whether a layer, by its path, keeps its units.

    Raises:
        ModelError: if the model's layers are unknown, or none can be made smaller.
    """
    _check_kind(model)
    wiring = wire_model(model)
    for wired in wiring.layers:
        if wired.produces and excluded(wired.name):
            wiring.units.lock(wired.outputs, "excluded")
    groups = find_groups(wiring, norm)
    if not groups:
        raise ModelError(
            "`model` has no units that can be taken out.",
            hint="; ".join(f"{listed.layer} {listed.reason}" for listed in _list_fixed(wiring)[:5]),
            arg="model",
        )
    work = _read_work(model, wiring)
    gone, notes = choose_gone(wiring, groups, work, sparsity=sparsity, target=target, whole=whole)
    small = build_narrow(model, wiring, gone)
    return Narrowed(small, _list_changes(wiring, gone), tuple(_list_fixed(wiring)), tuple(notes))


def _check_kind(model: Model) -> None:
    keras = runtime.keras()
    known = isinstance(model, keras.Sequential) or keras_private.has_nodes(model)
    plain = type(model).call in (keras.Sequential.call, keras_private.functional_class().call)
    if not known or not plain or not keras_private.has_nodes(find_graph(model)):
        raise ModelError(
            "`model` is neither sequential nor functional: how its layers are connected is only "
            "in its code.",
            hint="Prune it with `structured = FALSE`.",
            arg="model",
        )


# Worth -------------------------------------------------------------------------------------------


def find_groups(wiring: Wiring, norm: str = "l2") -> list[Group]:
    """Returns the groups of removable units."""
    makers = [wired for wired in wiring.layers if wired.produces]
    roots = [set(wiring.units.roots(wired.own).tolist()) for wired in makers]
    groups = []
    for places in _connected(roots):
        free = set().union(*(roots[place] for place in places)) - set(wiring.units.locked)
        if len(free) > 1:
            layers = tuple(makers[place] for place in places)
            order = np.array(sorted(free))
            groups.append(Group(layers, order, _measure_worth(wiring, layers, order, norm)))
    return groups


def _connected(sets: Sequence[set[int]]) -> list[list[int]]:
    """Returns groups of indices of sets that overlap, directly or through others."""
    groups: list[tuple[set[int], list[int]]] = []
    for place, members in enumerate(sets):
        near = [group for group in groups if group[0] & members]
        groups = [group for group in groups if not group[0] & members]
        merged = members.union(*(group[0] for group in near))
        groups.append((merged, [*(p for group in near for p in group[1]), place]))
    return [sorted(places) for _, places in groups]


def _measure_worth(wiring: Wiring, layers: Sequence[Wired], order: Ids, norm: str) -> np.ndarray:
    """Returns the norm of each unit's weights, over all layers that make it."""
    total = np.zeros(len(order))
    scales = list(_find_scales(wiring, order)) if norm == "bn" else []
    power = 1 if norm == "l1" else 2
    parts = scales or [(layer.own, _unit_sums(layer, power)) for layer in layers]
    for ids, sums in parts:
        places, known = _places(order, wiring.units.roots(ids))
        np.add.at(total, places[known], sums[known])
    return total if norm == "l1" else np.sqrt(total)


def _places(order: Ids, roots: Ids) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of each root in a sorted order, and whether it is there."""
    places = np.minimum(np.searchsorted(order, roots), len(order) - 1)
    return places, order[places] == roots


def _unit_sums(wired: Wired, power: int) -> np.ndarray:
    """Returns for each unit the sum of its weights' absolute values to a power."""
    axis = -2 if wired.kind.endswith("Transpose") else -1
    name = "pointwise_kernel" if wired.kind.startswith("Separable") else "kernel"
    kernel = next(weight for weight in wired.layer.weights if weight.name == name).numpy()
    sizes = np.abs(np.moveaxis(kernel, axis, -1).astype(float)) ** power
    return sizes.reshape(-1, sizes.shape[-1]).sum(0)


def _find_scales(wiring: Wiring, order: Ids) -> Iterator[tuple[Ids, np.ndarray]]:
    """Yields the squared scales of the batch normalizations that these units pass."""
    for wired in wiring.layers:
        if wired.kind != "BatchNormalization" or not wired.layer.scale or wired.inputs is None:
            continue
        if np.isin(wiring.units.roots(wired.inputs), order).any():
            yield wired.inputs, np.square(wired.layer.gamma.numpy().astype(float))


# Choosing ----------------------------------------------------------------------------------------

Work = tuple[float, list[tuple[Wired, float]]]  # fixed FLOPs, and those of each layer


def _read_work(model: Model, wiring: Wiring) -> Work:
    """Returns a row's forward FLOPs: those of each layer that can change, and of the others."""
    traced = trace_model(model, input_specs(model))
    flops = {
        id(seen.layer): sum(layer_flops(call) or 0.0 for call in seen.calls) / traced.rows
        for seen in traced.seen
    }
    known = [(wired, flops.pop(id(wired.layer), 0.0)) for wired in wiring.layers]
    return sum(flops.values()), known


def count_left(wiring: Wiring, work: Work, gone: set[int]) -> float:
    """Returns the FLOPs that remain without some units."""
    fixed, layers = work
    left: dict[int, float] = {}

    def part(ids: Ids | None) -> float:
        if ids is None:
            return 1.0
        if id(ids) not in left:
            left[id(ids)] = float(find_kept(wiring, ids, gone).mean())
        return left[id(ids)]

    total = fixed
    for wired, flops in layers:
        products, taps, rest = split_work(wired)
        inputs, outputs = part(wired.inputs), part(wired.outputs)
        total += flops * (products * inputs * outputs + taps * inputs + rest * outputs)
    return total


def split_work(wired: Wired) -> tuple[float, float, float]:
    """Returns the shares of a layer's FLOPs that scale with inputs x outputs, inputs, outputs."""
    if not wired.produces:
        return 0.0, 0.0, 1.0
    sizes = {weight.name: math.prod(weight.shape) for weight in wired.layer.weights}
    products = 2 * sizes.get("pointwise_kernel", sizes.get("kernel", 0))
    taps = 2 * sizes.get("depthwise_kernel", 0)
    units = len(wired.own)
    rest = sizes.get("bias", 0) + activation_flops(wired.layer.activation, units)
    total = products + taps + rest
    return products / total, taps / total, rest / total


def find_kept(wiring: Wiring, ids: Ids, gone: set[int]) -> np.ndarray:
    """Returns a mask of the channels that stay."""
    return np.array([int(root) not in gone for root in wiring.units.roots(ids)], bool)


def choose_gone(
    wiring: Wiring,
    groups: Sequence[Group],
    work: Work,
    *,
    sparsity: float,
    target: str,
    whole: bool,
) -> tuple[set[int], list[str]]:
    """Returns the units to remove, and notes."""
    choose = _choose_smallest if whole else _choose_each
    if target == "units":
        return choose(groups, sparsity), []
    before = count_left(wiring, work, set())
    aim = before * (1 - sparsity)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fits = count_left(wiring, work, choose(groups, middle)) <= aim
        low, high = (low, middle) if fits else (middle, high)
    gone = choose(groups, high)
    left = count_left(wiring, work, gone)
    return gone, _explain_left(left / before, sparsity) if left > aim else []


def _explain_left(left: float, sparsity: float) -> list[str]:
    return [
        f"{percent(left)} of the FLOPs are left, not {percent(1 - sparsity)}: the rest is in "
        "layers that cannot be made smaller."
    ]


def _choose_each(groups: Sequence[Group], share: float) -> set[int]:
    """Chooses the same share of each group; at least one unit stays."""
    gone: set[int] = set()
    for group in groups:
        count = min(math.floor(share * len(group.roots) + 1e-9), len(group.roots) - 1)
        gone.update(group.roots[np.argsort(group.worth, kind="stable")[:count]].tolist())
    return gone


def _choose_smallest(groups: Sequence[Group], share: float) -> set[int]:
    """Chooses the share with the lowest scores in all groups; a tenth of each group stays.

    A score is divided by the group's own root mean square (Molchanov et al. 2017), because layers
    have weights of different sizes.
    """
    ranked: list[tuple[float, int]] = []
    for group in groups:
        keep = max(1, math.ceil(LEAST_LEFT * len(group.roots)))
        scale = float(np.sqrt(np.mean(np.square(group.worth)))) or 1.0
        order = np.argsort(group.worth, kind="stable")[: len(group.roots) - keep]
        ranked += [(float(group.worth[place]) / scale, int(group.roots[place])) for place in order]
    count = math.floor(share * sum(len(group.roots) for group in groups) + 1e-9)
    return {root for _, root in sorted(ranked)[:count]}


# Building ----------------------------------------------------------------------------------------


def build_narrow(model: Model, wiring: Wiring, gone: set[int]) -> Any:
    """Returns the model without some units, compiled like the original.

    Args:
        model: The original model.
        wiring: Its layers with their units.
        gone: The roots of the removed units.

    Raises:
        ModelError: if Keras cannot copy it.
    """
    renewed = set()

    def narrow_layer(layer: Any, config: dict[str, Any]) -> dict[str, Any]:
        renewed.add(id(layer))
        wired = wiring.find(layer)
        if wired is not None and wired.outputs is not None:
            outputs = int(find_kept(wiring, wired.outputs, gone).sum())
            narrow_config(wired.kind, config, outputs)
        return config

    small = clone_layers(model, narrow_layer)
    if not small.built:
        small.build(model.input_shape)
    copy_settings(model, small)
    for layer, narrow in zip(*map(keras_private.list_layers, (model, small)), strict=True):
        if id(layer) in renewed:
            _copy_layer(wiring, layer, narrow, gone)
    copy_compile(model, small)
    copy_recipe(model, small)
    return small


def _copy_layer(wiring: Wiring, layer: Any, narrow: Any, gone: set[int]) -> None:
    """Copies the kept weights of a layer to a narrower one."""
    wired = wiring.find(layer)
    inputs, outputs = (None, None) if wired is None else (wired.inputs, wired.outputs)

    def kept(role: str) -> np.ndarray | None:
        ids = outputs if role == "out" else inputs
        if ids is None:
            return None
        stay = find_kept(wiring, ids, gone)
        return np.repeat(stay, layer.depth_multiplier) if role == "between" else stay

    copy_narrowed(layer, narrow, "" if wired is None else wired.kind, kept)


# Telling -----------------------------------------------------------------------------------------


def _list_changes(wiring: Wiring, gone: set[int]) -> tuple[LayerChange, ...]:
    """Returns the changes of the layers that make units."""
    changes = []
    for wired in wiring.layers:
        if not wired.produces:
            continue
        stay = find_kept(wiring, wired.own, gone)
        left, before = int(stay.sum()), len(stay)
        if left < before:
            change = f"{before - left} of {count_of(before, 'unit')} taken out"
            changes.append(LayerChange(wired.name, wired.kind, change, before, left, "units"))
    return tuple(changes)


def _list_fixed(wiring: Wiring) -> list[Listed]:
    """Returns the layers with weights whose units all stay, and why."""
    listed = []
    for wired in wiring.layers:
        kind = type(wired.layer).__name__
        if wired.produces:
            roots = [int(root) for root in wiring.units.roots(wired.own)]
            if all(root in wiring.units.locked for root in roots):
                listed.append(Listed(wired.name, kind, wiring.units.locked[roots[0]]))
        elif getattr(wired.layer, "weights", None) and wired.kind not in NORMALISING:
            listed.append(Listed(wired.name, kind, "has no units that can be taken out one by one"))
    return listed


Kept = Callable[[str], "np.ndarray | None"]  # kept channels by role: "in", "out" or "between"
# Layers with fewer channels: their settings and weights ------------------------------------------


Axes = Mapping[int, str]  # the channels' role on each axis of a weight

_BIAS: Axes = {-1: "out"}
_PRODUCT: dict[str, Axes] = {"kernel": {-2: "in", -1: "out"}, "bias": _BIAS}
_TRANSPOSED: dict[str, Axes] = {"kernel": {-2: "out", -1: "in"}, "bias": _BIAS}
_DEPTHWISE: dict[str, Axes] = {"kernel": {-2: "in"}, "bias": _BIAS}
_SEPARABLE: dict[str, Axes] = {
    "depthwise_kernel": {-2: "in"},
    "pointwise_kernel": {-2: "between", -1: "out"},
    "bias": _BIAS,
}
_RECURRENT: dict[str, Axes] = {"kernel": {-2: "in"}}
_SCALED: dict[str, Axes] = {
    name: {-1: "in"} for name in ("gamma", "beta", "moving_mean", "moving_variance")
}


def _by_rank(name: str, axes: dict[str, Axes]) -> dict[str, dict[str, Axes]]:
    return {name.format(rank): axes for rank in (1, 2, 3)}


_AXES: dict[str, dict[str, Axes]] = {
    "Dense": _PRODUCT,
    **_by_rank("Conv{}D", _PRODUCT),
    **_by_rank("Conv{}DTranspose", _TRANSPOSED),
    **_by_rank("DepthwiseConv{}D", _DEPTHWISE),
    **_by_rank("SeparableConv{}D", _SEPARABLE),
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _RECURRENT),
    **dict.fromkeys(("BatchNormalization", "LayerNormalization"), _SCALED),
}


def narrow_config(kind: str, config: dict[str, Any], outputs: int) -> None:
    """Sets the number of output channels in a layer's configuration, if it has one.

    Args:
        kind: The layer's Keras class.
        config: Its configuration, changed in place.
        outputs: The number of output channels.
    """
    for name in ("units", "filters"):
        if kind in _AXES and kind not in ("LSTM", "GRU", "SimpleRNN") and name in config:
            config[name] = outputs
    if kind == "Reshape" and config["target_shape"][-1] != -1:
        config["target_shape"] = (*config["target_shape"][:-1], outputs)


def copy_narrowed(layer: Any, narrow: Any, kind: str, kept: Kept) -> None:
    """Copies the kept weights of a layer, and their masks, to a narrower one.

    Args:
        layer: The wider layer.
        narrow: A built layer of the same class.
        kind: Its Keras class, or "" for weights that are copied whole.
        kept: Which channels stay; None if all do.

    Raises:
        ModelError: if the weights do not fit.
    """
    axes = _AXES.get(kind, {})
    for own, other in zip(layer.weights, narrow.weights, strict=True):
        roles = axes.get(own.name, {})
        value = _take_kept(own.numpy(), roles, kept)
        if value.shape != tuple(other.shape):
            raise ModelError(f"`{layer.name}` does not fit: {value.shape}, {tuple(other.shape)}.")
        other.assign(value)
        if isinstance(own.constraint, Mask):
            keep = _take_kept(own.constraint.keep.numpy(), roles, kept)
            set_mask(other, Mask(other, keep, own.constraint.own))


def _take_kept(value: np.ndarray, roles: Axes, kept: Kept) -> np.ndarray:
    """Returns the part of a weight that belongs to kept channels."""
    for axis, role in roles.items():
        chosen = kept(role)
        if chosen is not None:
            value = np.compress(chosen, value, axis=axis)
    return value
