"""Measures a model's size, weights, FLOPs, latency and metrics.

Two models are measured side by side, so that other load on the computer affects both alike.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.compression.latency import Latency, measure_latencies
from gpukeras.core.attributes import replaced
from gpukeras.core.errors import ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import sample_rows
from gpukeras.profiler.cost.graph import input_specs
from gpukeras.profiler.cost.model_cost import count_flops
from gpukeras.training import evaluate

BATCH = 32  # rows of a batch if neither options nor data define it
CHUNK = 2**20  # bytes
SCALES = ("_scale", "_zero", "_amax_history", "g_idx")  # variables that belong to quantized weights


@dataclass(frozen=True)
class Figures:
    """Measurements of a model.

    Args:
        disk_bytes: Size of a `.keras` file without the optimizer's state; None if it cannot be
            saved.
        packed_bytes: Size of that file compressed (as gzip does); None if it cannot be saved.
        parameters: Number of its weights, without the scales of quantized ones.
        nonzeros: Number of weights that are not 0.
        flops: FLOPs of a row's forward pass; None if unknown.
        latency: Of a single row, and of a batch.
        metrics: Loss and metrics; empty if there are no rows to evaluate.
        part: Which rows were evaluated: "validation", "all", or "".
    """

    disk_bytes: float | None
    packed_bytes: float | None
    parameters: int
    nonzeros: int
    flops: float | None
    latency: tuple[Latency, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    part: str = ""


def measure(
    models: Sequence[Any],
    data: Dataset | None = None,
    batch_size: int | None = None,
    validation: Dataset | None = None,
) -> list[Figures]:
    """Returns the measurements of models; their predictions are timed in turns.

    Args:
        models: Built Keras models with the same inputs; metrics are known of compiled ones.
        data: Rows to time and evaluate. None times zeros and evaluates nothing.
        batch_size: Rows of the batch that is timed besides a single row; None for the data's.
        validation: Rows to evaluate; None for the validation rows of `data`, or all if it has none.
    """
    rows = data if data is not None else validation
    size = choose_batch(batch_size, rows)
    evaluated = [evaluate_model(model, data, validation) for model in models]
    timed = [_time_all(models, rows, count) for count in dict.fromkeys((1, size))]
    timings = []
    for place, model in enumerate(models):
        disk_bytes, packed_bytes = measure_disk(model)
        weights = count_weights(model)
        metrics, part = evaluated[place]
        timings.append(
            Figures(
                disk_bytes=disk_bytes,
                packed_bytes=packed_bytes,
                parameters=weights[0],
                nonzeros=weights[1],
                flops=read_flops(model),
                latency=tuple(each[place] for each in timed),
                metrics=metrics,
                part=part,
            )
        )
    return timings


def choose_batch(batch_size: int | None, data: Dataset | None) -> int:
    """Returns the rows of the timed batch: as requested, the data's own, or Keras' default."""
    if batch_size is not None or data is None:
        return batch_size or BATCH
    return data.plan("CPU:0").batch_size or BATCH


def evaluate_model(
    model: Model, data: Dataset | None, validation: Dataset | None
) -> tuple[dict[str, float], str]:
    """Returns loss and metrics on the validation rows, or else all rows, and which rows those were.

    Args:
        model: A compiled model.
        data: The dataset, or None.
        validation: Rows to evaluate, or None.
    """
    rows = validation if validation is not None else data
    if rows is None or not model.compiled or len(rows.sources) < 2:
        return {}, ""
    own = "validation" if rows.has_rows("validation") else "all"
    evaluated = evaluate.evaluate(model, rows, "all" if validation is not None else own)
    return evaluated["metrics"], "validation" if validation is not None else own


def _time_all(several: Sequence[Any], data: Dataset | None, rows: int) -> list[Latency]:
    return measure_latencies(several, [read_batch(model, data, rows) for model in several], rows)


def read_batch(model: Model, data: Dataset | None, rows: int) -> Any:
    """Returns a batch of `rows` rows as a model takes it.

    Rows of the data are repeated if there are fewer.

    Args:
        model: A built Keras model.
        data: The dataset, or None for zeros.
        rows: Number of rows.
    """
    nest, keras = runtime.tree(), runtime.keras()

    def make_zeros(spec: Any) -> Any:
        shape = (rows, *(size or 1 for size in spec.shape[1:]))
        return keras.ops.zeros(shape, keras.backend.standardize_dtype(spec.dtype))

    if data is None:
        return nest.map_structure(make_zeros, input_specs(model))
    sample = sample_rows(data, rows)[0]
    places = np.arange(rows) % len(nest.flatten(sample)[0])
    return nest.map_structure(lambda array: tensor_ops.take(array, places), sample)


def read_flops(model: Model) -> float | None:
    """Returns the FLOPs of a row's forward pass; None if unknown."""
    try:
        return count_flops(model)
    except (ModelError, SpecError):
        return None


def count_weights(model: Model) -> tuple[int, int]:
    """Returns the number of a model's weights, and how many of them are not 0."""
    values = list(unpack_weights(model))
    return sum(value.size for value in values), sum(int(np.count_nonzero(v)) for v in values)


def unpack_weights(model: Model) -> Iterator[np.ndarray]:
    """Yields the values of a model's weights; weights of 4 bits, two in a byte, are unpacked."""
    packed, scales = {}, set[int]()
    for layer in keras_private.list_layers(model):
        if getattr(layer, "quantization_mode", None):
            scales |= {id(weight) for weight in layer.weights if weight.name.endswith(SCALES)}
        for own, whole in _PACKED.items():
            if getattr(layer, "quantization_mode", None) == "int4" and hasattr(layer, own):
                packed[id(getattr(layer, own))] = layer, whole
    for weight in model.weights:
        if id(weight) in scales:
            continue
        layer, whole = packed.get(id(weight), (None, ""))
        yield np.asarray(weight if layer is None else getattr(layer, whole))


_PACKED = {"_kernel": "kernel", "_embeddings": "embeddings"}  # variable: unpacking argument


def measure_disk(model: Model) -> tuple[float | None, float | None]:
    """Returns the size of a model's `.keras` file without optimizer state, plain and compressed."""
    with tempfile.TemporaryDirectory(prefix="gpukeras-") as folder:
        path = Path(folder) / "model.keras"
        try:
            with replaced(model, optimizer=None):  # predictions do not need its state
                runtime.keras().saving.save_model(model, str(path))
        except Exception:  # NotImplementedError, TypeError, what a get_config() raises
            return None, None
        return float(os.path.getsize(path)), float(_measure_packed(path))


def _measure_packed(path: Path) -> int:
    packer, total = zlib.compressobj(6), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            total += len(packer.compress(chunk))
    return total + len(packer.flush())
