"""Replaces convolutions with a depthwise and a pointwise one if that takes fewer FLOPs.

A kernel of k taps, c channels and f filters becomes m filters of k taps for each channel and f sums
over their c m outputs (Howard et al. 2017). For each channel the kernel is a k x f matrix; its
singular value decomposition, cut after m terms, is the nearest matrix of rank m (Eckart & Young
1936). With these weights the new layer is the best approximation of the old one without training,
and fine-tuning starts from there. With m = min(k, f) nothing would be lost, but nothing saved
either.

References:
    Howard, A. G. et al. (2017). MobileNets. arXiv:1704.04861.
    Eckart, C. & Young, G. (1936). The approximation of one matrix by another of lower rank.
    Psychometrika 1, 211-218.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.compression.distillation import TrainedSpec
from gpukeras.compression.layer_options import check_excluded, check_names
from gpukeras.compression.masks import apply_masks, list_kernels, read_masks
from gpukeras.compression.report import LayerChange, Listed, Work, check_requested, conclude
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_count, check_number, option
from gpukeras.data.base import Dataset
from gpukeras.models import model_checks
from gpukeras.models.clone import (
    check_built,
    check_graph,
    clone_layers,
    copy_compile,
    copy_recipe,
    renew_means,
)
from gpukeras.profiler.cost.graph import input_specs, trace_model
from gpukeras.profiler.cost.layer_flops import keras_kind, layer_flops
from gpukeras.profiler.cost.watcher import Seen
from gpukeras.training import fit
from gpukeras.training.listener import OnEvent

SEPARABLE = {"Conv1D": "SeparableConv1D", "Conv2D": "SeparableConv2D"}
# Entries of a convolution's config that the new layer takes unchanged.
KEPT = (
    *("name", "trainable", "dtype", "filters", "kernel_size", "strides", "padding"),
    *("data_format", "dilation_rate", "activation", "use_bias", "bias_initializer"),
    *("bias_regularizer", "activity_regularizer", "bias_constraint"),
)


@dataclass(frozen=True)
class SeparateSpec(TrainedSpec):
    """Options for replacing convolutions.

    Args:
        rank: m, filters for each channel: more approximate the old layer better, and cost more.
        least_gain: Least factor by which the new layer must reduce FLOPs.
        exclude: Names of layers that are not replaced.
    """

    epochs: int = option(5, check_count, 0)
    rank: int = option(1, check_count)
    least_gain: float = option(1.0, check_number, 1.0)
    exclude: tuple[str, ...] = option((), check_names)


def separate(
    model: Model,
    data: Dataset | None = None,
    options: Mapping[str, Any] | None = None,
    validation: Dataset | None = None,
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Returns a model with separable convolutions, fine-tuned if rows are given.

    Args:
        model: A built sequential or functional Keras model; it is not changed.
        data: Rows to fine-tune and measure on, or None for neither.
        options: Fields of `SeparateSpec`.
        validation: Rows to validate on; None for the validation rows of `data`.
        on_event: See `training.fit()`.

    Returns:
        `{model, report}`: the new model and a `CompressionReport`.

    Raises:
        SpecError: for bad options.
        ModelError: if no layer gains, or the layers cannot be reconnected.
        CompressionError: if the metric gets worse by more than `max_drop`.
    """
    began, spec = time.perf_counter(), SeparateSpec.from_dict(options or {})
    model_checks.check_model(model, compiled=data is not None)
    check_graph(model)
    check_built(model)
    check_requested(spec, data, validation)
    names = [layer.name for layer in keras_private.list_layers(model, include_self=False)]
    check_excluded(spec.exclude, names)
    chosen, listed = choose_layers(trace_model(model, input_specs(model)).seen, spec)
    if not chosen:
        why = "; ".join(f"{one.layer}: {one.reason}" for one in listed[:3])
        raise ModelError(
            f"No convolution of `model` gains by being separable{': ' + why if why else ''}.",
            hint="It pays for kernels of several taps with many filters.",
            arg="model",
        )
    made = _replace(model, set(chosen), spec.rank)
    kept = _copy_weights(model, made)
    _copy_masks(model, made)
    copy_compile(model, made)
    copy_recipe(model, made)
    trained, notes = None, []
    if data is not None and spec.epochs:
        options = {**spec.fit, "epochs": spec.epochs}
        trained = fit.fit(made, data, options, validation=validation, on_event=on_event)
    else:
        notes.append("The new model is not trained: expect it to be worse until it is fine-tuned.")
    changes = [_describe(one, chosen[one], kept[one]) for one in chosen]
    settings = {"rank": spec.rank, "epochs": trained.epochs if trained else 0}
    work = Work("separate", settings, began, tuple(changes), tuple(listed), tuple(notes), trained)
    return {
        "model": made,
        "report": conclude(model, made, work, spec, data=data, validation=validation),
    }


# Which -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """FLOPs of a layer per row: as it is, and separable."""

    kind: str
    before: float
    after: float


def choose_layers(seen: list[Seen], spec: SeparateSpec) -> tuple[dict[str, Gain], list[Listed]]:
    """Returns the convolutions that gain, by name, and the others with the reason."""
    chosen: dict[str, Gain] = {}
    listed = []
    for one in seen:
        kind = keras_kind(one.layer)
        if not kind.startswith(("Conv1D", "Conv2D", "Conv3D")):
            continue
        gain = measure_gain(one, spec.rank)
        reason = explain_refusal(one.layer, gain, spec)
        if reason:
            listed.append(Listed(one.layer.name, kind, reason))
        else:
            chosen[one.layer.name] = gain
    return chosen, listed


def measure_gain(one: Seen, rank: int) -> Gain:
    """Returns the FLOPs per row of all calls of a convolution, and of its separable version."""
    layer = one.layer
    taps, filters = math.prod(layer.kernel_size), layer.filters
    channels = read_channels(layer, one.calls[0].first)
    rows = one.calls[0].first[0]
    before = sum(layer_flops(call) or math.nan for call in one.calls) / rows
    positions = sum(math.prod(call.output) / filters for call in one.calls) / rows
    fewer = 2 * positions * channels * (taps * filters - rank * (taps + filters))
    return Gain(keras_kind(layer), before, before - fewer)


def read_channels(layer: Any, shape: tuple[float, ...]) -> float:
    """Returns the number of channels in a convolution's input."""
    return shape[1 if layer.data_format == "channels_first" else -1]


def explain_refusal(layer: Any, gain: Gain, spec: SeparateSpec) -> str:
    """Returns why a convolution is not replaced, or "".

    Args:
        layer: The convolution.
        gain: Its FLOPs, as it is and separable.
        spec: Options.
    """
    strides, dilation = set(layer.strides), set(layer.dilation_rate)
    reasons = {
        "excluded": layer.name in spec.exclude,
        f"Keras has no separable {gain.kind}": type(layer).__name__ not in SEPARABLE,
        "its kernel has one tap": math.prod(layer.kernel_size) == 1,
        "it works on groups of channels": getattr(layer, "groups", 1) > 1,
        "its padding is causal": layer.padding == "causal",
        "its strides differ": len(strides) > 1,
        "it has strides and gaps between taps": max(strides) > 1 and max(dilation) > 1,
        "its FLOPs are not known": math.isnan(gain.before),
        "it would need as many FLOPs": not gain.after * spec.least_gain < gain.before,
    }
    return next((reason for reason, true in reasons.items() if true), "")


# How ---------------------------------------------------------------------------------------------


def _replace(model: Model, names: set[str], rank: int) -> Any:
    layers = runtime.keras().layers

    def make(layer: Any) -> Any:
        config = layer.get_config()
        if layer.name not in names or type(layer).__name__ not in SEPARABLE:
            return type(layer).from_config(config)
        regularizer = config["kernel_regularizer"]
        given = {name: config[name] for name in KEPT if name in config}
        given |= {"depthwise_regularizer": regularizer, "pointwise_regularizer": regularizer}
        kind = getattr(layers, SEPARABLE[type(layer).__name__])
        return kind.from_config({**given, "depth_multiplier": rank})

    return clone_layers(model, make)


def _copy_weights(model: Model, made: Any) -> dict[str, float]:
    """Copies the old model's weights; returns what share of each kernel is kept, by layer."""
    kept = {}
    pairs = zip(*map(keras_private.list_layers, (model, made)), strict=True)
    for old, new in pairs:
        if type(old).__name__ in SEPARABLE and type(new).__name__ not in SEPARABLE:
            depthwise, pointwise, share = factor_kernel(old.kernel.numpy(), new.depth_multiplier)
            new.set_weights([depthwise, pointwise, *([old.bias.numpy()] if old.use_bias else [])])
            kept[old.name] = share
        elif len(keras_private.list_layers(old)) == 1 and old.weights:
            new.set_weights(old.get_weights())
    renew_means(made)
    return kept


def _copy_masks(model: Model, made: Any) -> None:
    """Copies the masks of a pruned model for the layers that are not replaced."""
    there = {kernel.path for kernel in list_kernels(made)}
    masks = read_masks(model)
    apply_masks(made, {path: keep for path, keep in masks.items() if path in there})


def factor_kernel(kernel: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Returns the separable kernels nearest to a convolution's kernel.

    Args:
        kernel: Of shape (*taps, channels, filters).
        rank: Filters for each channel.

    Returns:
        The depthwise kernel of shape (*taps, channels, rank), the pointwise one of shape (*ones,
        channels * rank, filters), both of the kernel's dtype, and the share of the kernel's sum of
        squares that their product has.
    """
    *taps, channels, filters = kernel.shape
    flat = kernel.reshape(-1, channels, filters).transpose(1, 0, 2).astype(np.float64)
    left, values, right = np.linalg.svd(flat, full_matrices=False)
    found = min(rank, values.shape[1])
    root = np.sqrt(values[:, :found])  # in both factors alike, so that neither is much larger
    depthwise = np.zeros((channels, flat.shape[1], rank))
    pointwise = np.zeros((channels, rank, filters))
    depthwise[:, :, :found] = left[:, :, :found] * root[:, None, :]
    pointwise[:, :found] = right[:, :found] * root[:, :, None]
    total = float((values**2).sum())
    share = float((values[:, :found] ** 2).sum()) / total if total else 1.0
    ones = [1] * len(taps)
    return (
        depthwise.transpose(1, 0, 2).reshape(*taps, channels, rank).astype(kernel.dtype),
        pointwise.reshape(*ones, channels * rank, filters).astype(kernel.dtype),
        share,
    )


def _describe(name: str, gain: Gain, kept: float) -> LayerChange:
    change = f"to {SEPARABLE[gain.kind]}, {100 * kept:.0f} % of the kernel kept"
    return LayerChange(name, gain.kind, change, gain.before, gain.after, "FLOPs")
