"""Quantizes weights to fewer bits, by Keras' own `quantize()`, on a copy of the model.

    int8    integers of 8 bits with a scale for each output; inputs are rounded too, scaled by the
            largest value of each row at run time, so that no calibration is needed
    int4    integers of 4 bits, two in a byte, with a scale and a zero for each output and
            block of inputs; inputs are not rounded
    float8  weights stay in float32 on disk and in memory, and are rounded to 8 bits with inputs and
            gradients in each product; scales are calibrated on rows

Keras' other modes, GPTQ and AWQ, are not offered: they calibrate on tokenized text, in models made
of transformer blocks that the caller lists.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.compression.layer_options import check_excluded
from gpukeras.compression.metrics import SCALES
from gpukeras.compression.report import (
    LayerChange,
    Listed,
    ReportSpec,
    Work,
    check_requested,
    conclude,
)
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_choice, check_names, option
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.models import model_checks
from gpukeras.models.clone import copy_model, copy_optimizer
from gpukeras.training import fit

MODES = ("int8", "int4", "float8")
BITS = {"int8": 8, "int4": 4, "float8": 8}


@dataclass(frozen=True)
class QuantizeSpec(ReportSpec):
    """Options of a quantization.

    Args:
        mode: "int8", "int4" or "float8".
        exclude: Names of layers that are not quantized.
    """

    mode: str = option("int8", check_choice, MODES)
    exclude: tuple[str, ...] = option((), check_names, "layers")


def quantize(
    model: Model,
    data: Dataset | None = None,
    options: Mapping[str, Any] | None = None,
    validation: Dataset | None = None,
) -> dict[str, Any]:
    """Returns a quantized copy of a model.

    Args:
        model: A built Keras model; it must be compiled if `data` is given.
        data: Rows to measure on, and for "float8" to calibrate on; or None.
        options: Fields of `QuantizeSpec`.
        validation: Rows to evaluate; None for the validation rows of `data`.

    Returns:
        `{model, report}`: the copy and a `CompressionReport`.

    Raises:
        SpecError: for bad options, such as the name of a layer that does not exist.
        ModelError: if the model cannot be copied, or none of its layers can be quantized.
        CompressionError: if its metric falls by more than `max_drop`.
    """
    began, spec = time.perf_counter(), QuantizeSpec.from_dict(options or {})
    model_checks.check_model(model, compiled=data is not None)
    check_requested(model, spec, data, validation)
    names = [layer.name for layer in keras_private.list_layers(model, include_self=False)]
    check_excluded(spec.exclude, names)
    copy, notes = _copy(model, spec.mode)
    if all(layer_mode(layer) for layer in leaf_layers(copy)):
        raise ModelError("`model` is quantized already.", arg="model")
    _quantize_layers(copy, spec)
    layers, listed = compare_layers(model, copy, spec)
    if not layers:
        raise ModelError(
            f"Keras can quantize none of the layers of `model` to {spec.mode}.",
            hint="It can quantize Dense, EinsumDense (so attention) and Embedding layers.",
            arg="model",
        )
    notes += explain_mode(spec.mode, data is not None)
    if spec.mode == "float8" and data is not None:
        _calibrate(copy, data)
    settings = {name: value for name, value in asdict(spec).items() if value is not None}
    work = Work("quantize", settings, began, tuple(layers), tuple(listed), tuple(notes))
    report = conclude(model, copy, work, spec, data=data, validation=validation)
    return {"model": copy, "report": report}


def _copy(model: Model, mode: str) -> tuple[Any, list[str]]:
    """Returns a copy that Keras can quantize, and notes on it.

    A row's largest value times 127 squared and the products' number exceed float16, so Keras
    refuses int8 for layers that compute in it; their copies compute in float32.

    Raises:
        ModelError: if the model cannot be copied.
    """
    half = [layer for layer in keras_private.list_layers(model) if layer.compute_dtype == "float16"]
    if mode != "int8" or not half:
        return copy_model(model), []
    copy = copy_model(model, in_float32=True)
    return copy, ["Keras has no int8 for float16: the copy computes in float32 between products."]


def explain_mode(mode: str, data: bool) -> list[str]:
    """Returns notes on a mode."""
    if mode == "int8":
        return [
            "int8 rounds inputs by the largest value of each row as it comes: "
            "nothing had to be calibrated."
        ]
    if mode == "int4":
        return ["int4 rounds weights alone: nothing had to be calibrated."]
    calibrated = (
        "its scales were calibrated on `data`"
        if data
        else "its scales are not calibrated: give `data`"
    )
    return [
        "float8 keeps float32 weights and rounds in each product: it saves time on GPUs that "
        f"compute so (H100 and later), but neither disk nor memory; {calibrated}."
    ]


def _quantize_layers(copy: Any, spec: QuantizeSpec) -> None:
    with warnings.catch_warnings():  # on layers that cannot be quantized: they are listed
        warnings.simplefilter("ignore")
        copy.quantize(spec.mode, filters=lambda layer: layer.name not in spec.exclude)
    if copy.compiled:  # a new optimizer for the new variables
        copy.optimizer = copy_optimizer(
            copy.optimizer, zip(copy.variables, copy.variables, strict=True)
        )


# Layers ------------------------------------------------------------------------------------------


def leaf_layers(model: Model) -> list[Any]:
    """Returns layers with weights and without inner layers, at any depth."""
    return [
        layer
        for layer in keras_private.list_layers(model)
        if layer.weights and len(keras_private.list_layers(layer)) == 1
    ]


def layer_mode(layer: Any) -> str:
    """Returns a layer's quantization mode, or ""."""
    return getattr(layer, "quantization_mode", None) or ""


def compare_layers(
    model: Model, copy: Any, spec: QuantizeSpec
) -> tuple[list[LayerChange], list[Listed]]:
    """Returns the quantized layers and, with the reason, the other layers with weights.

    Args:
        model: The original model.
        copy: The quantized copy.
        spec: Options of the quantization.
    """
    changed, listed = [], []
    for old, new in zip(leaf_layers(model), leaf_layers(copy), strict=True):
        kind = type(old).__name__
        if layer_mode(new) and not layer_mode(old):
            bits = 8.0 * max(np.dtype(weight.dtype).itemsize for weight in old.weights)
            unit = "bits in products" if spec.mode == "float8" else "bits a weight"
            change = f"to {spec.mode}"
            changed.append(LayerChange(old.name, kind, change, bits, BITS[spec.mode], unit))
        else:
            listed.append(Listed(old.name, kind, explain_left(old, spec)))
    return changed, listed


def explain_left(layer: Any, spec: QuantizeSpec) -> str:
    """Returns why a layer was not quantized."""
    if layer_mode(layer):
        return f"is {layer_mode(layer)} already"
    if layer.name in spec.exclude:
        return "excluded"
    return f"Keras has no {spec.mode} for {type(layer).__name__}"


# Calibration -------------------------------------------------------------------------------------


def _calibrate(copy: Any, data: Dataset) -> None:
    """Calibrates the scales in one pass over the rows.

    Keras learns scales in training steps, from the largest values so far. A learning rate of 0
    keeps the weights, and other state that a step changes is restored.
    """
    keras, optimizer = runtime.keras(), copy.optimizer
    kept = [variable for variable in copy.variables if not variable.name.endswith(SCALES)]
    values = [variable.numpy().copy() for variable in kept]
    try:
        copy.optimizer = keras.optimizers.SGD(0.0)
        fit.fit(copy, data, {"epochs": 1, "engine": "keras"})
    finally:
        copy.optimizer = optimizer
        for variable, value in zip(kept, values, strict=True):
            variable.assign(value)
