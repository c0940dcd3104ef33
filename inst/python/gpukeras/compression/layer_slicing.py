"""Narrows a layer to fewer channels: its settings and its weights, by its class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gpukeras.core.errors import ModelError

Kept = Callable[[str], "np.ndarray | None"]  # kept channels by role: "in", "out" or "between"
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
    """Copies the kept weights of a layer to a narrower one.

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
        value = own.numpy()
        for axis, role in axes.get(own.name, {}).items():
            chosen = kept(role)
            if chosen is not None:
                value = np.compress(chosen, value, axis=axis)
        if value.shape != tuple(other.shape):
            raise ModelError(f"`{layer.name}` does not fit: {value.shape}, {tuple(other.shape)}.")
        other.assign(value)
