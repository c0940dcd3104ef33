"""Describes what identifies a training: the model, the rows, the batches and the optimizer.

Names and options are stored as they are; long configurations and rows are stored as digests.
"""

from __future__ import annotations

import json
import platform
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime
from gpukeras.checkpoint.format import as_number, digest
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.data.arrays import row_blocks
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.plan import PipelinePlan
from gpukeras.data.reader.rows import SAMPLED_ROWS, RowSource, round_floats
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.data.recipe.serialization import to_portable
from gpukeras.models.identity import describe_optimizer, describe_settings, read_config

WHOLE_BYTES = 64 * 2**20  # of rows in memory; up to this size all rows are hashed (0.1 s)
SEEN = ("minimum", "maximum", "whole", "ranges")
OPTIONS = ("schedule", "clip_norm", "clip_value", "clip_global_norm", "ema", "steps_per_epoch")
SPANNING = ("one_cycle", "warmup_cosine")  # schedules whose rates depend on the number of epochs


def describe_training(
    model: Model, data: Dataset, plan: PipelinePlan, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns JSON values that identify a training; some must agree on resumption, some may change.

    Args:
        model: The compiled model, with its variables built and before a schedule or clipping is
            installed.
        data: The dataset.
        plan: The pipeline plan of the dataset.
        options: Fields of `FitSpec`.
    """
    schedule = options.get("schedule")
    spans = isinstance(schedule, Mapping) and schedule.get("kind") in SPANNING
    described = {
        **describe_model(model),
        **_describe_data(data, plan),
        **{name: options.get(name) for name in OPTIONS},
        "epochs": options.get("epochs") if spans else None,
        "learning_rate": learning_rate(model),
        "versions": read_versions(),
    }
    return json.loads(json.dumps(described, default=as_number))  # as it is read back from a file


def read_versions() -> dict[str, str]:
    """Returns the versions of the packages that a training runs on."""
    return {
        "Keras": runtime.keras().__version__,
        **runtime.backend_version(),
        "NumPy": np.__version__,
        "Python": platform.python_version(),
    }


# The model ---------------------------------------------------------------------------------------


def describe_model(model: Model) -> dict[str, Any]:
    """Returns JSON values that identify a compiled model, whatever its weights."""
    config = _ask(lambda: read_config(model)["model"])
    compiled = _ask(lambda: read_config(model)["compiled"]) or {}
    optimizer = model.optimizer
    layers = keras_private.list_layers(model, include_self=False)
    return {
        "layers": [type(layer).__name__ for layer in layers],
        "variables": [
            f"{_unnumber(variable.path)} {tuple(variable.shape)} {variable.dtype}"
            for variable in model.variables
        ],
        "model": digest([type(model).__name__, config]),
        "loss": runtime.tree().map_structure(_name_loss, model.loss),
        "loss_options": digest([compiled.get("loss"), compiled.get("loss_weights")]),
        "metrics": [
            _unnumber(metric.name)
            for group in model.metrics
            for metric in getattr(group, "metrics", [group])  # of CompileMetrics, or one metric
        ],
        "precision": model.dtype_policy.name,
        "optimizer": type(keras_private.without_scaling(optimizer)).__name__,
        "optimizer_options": digest(
            describe_settings(describe_optimizer(_ask(optimizer.get_config)))
        ),
    }


def _name_loss(loss: Any) -> Any:
    if loss is None or isinstance(loss, str):
        return loss
    return getattr(loss, "__name__", None) or type(loss).__name__


def _ask(settings: Callable[[], Any]) -> Any:
    """Returns a Keras configuration, or None where a user's own class cannot provide it."""
    try:
        return settings()
    except REFUSALS:
        return None


def _unnumber(name: str) -> str:
    """Removes the numbers that Keras appended from a name, or from a path of names."""
    return re.sub(r"_\d+(?=/|$)", "", name)


def learning_rate(model: Model) -> float | None:
    """Returns the optimizer's current learning rate, or None for a Keras schedule."""
    optimizer = keras_private.without_scaling(model.optimizer)
    rate = (_ask(optimizer.get_config) or {}).get("learning_rate")
    return float(rate) if isinstance(rate, (float, int)) else None


# The data ----------------------------------------------------------------------------------------


def _describe_data(data: Dataset, plan: PipelinePlan) -> dict[str, Any]:
    # Workers that read shards of their own have other rows.
    spec, by_number = data.spec, data.source_kind == "rows" and "shards" not in data.identity()
    common = {
        "batch_size": plan.batch_size,
        "seed": spec.seed,
        "shard": spec.shard,
    }
    return {**common, **describe_order(data), **describe_rows(data, by_number)}


def describe_order(data: Dataset) -> dict[str, Any]:
    """Returns JSON values that say how a dataset's rows enter batches, but for seed and sizes."""
    return {
        "shuffle": data.spec.shuffle,
        "drop_last": data.spec.drop_last,
        "augment": None if data.augment is None else asdict(data.augment),
    }


def describe_rows(data: Dataset, by_number: bool = True) -> dict[str, Any]:
    """Returns JSON values that identify a dataset's rows, whatever their order and batches.

    Args:
        data: The dataset.
        by_number: Whether to look at the values of the rows, and not only at their source.
    """
    encoding = _digest_recipe(data.recipe, not by_number)
    described = {"row_shape": data.recipe.shape, "encoding": encoding, **data.identity()}
    if not by_number:
        return described
    return {
        **described,
        "features": _digest_rows(data.sources[:1], exact=False),
        "labels": _digest_rows(data.sources[1:], exact=True),
    }


def _digest_recipe(recipe: Recipe, streamed: bool) -> str:
    plain = to_portable(recipe)["recipe"]
    del plain["formula"]  # it does not change the encoding, nor do names
    plain["features"].pop("names", None)
    if streamed and plain.get("label"):
        plain["label"] = _without_range(plain["label"])
    return digest(plain)


def _without_range(label: Any) -> Any:
    """Returns a label's rule without its range, which depends on the rows seen of a stream."""
    if isinstance(label, list):
        return [_without_range(item) for item in label]
    if not isinstance(label, dict):
        return label
    return {name: _without_range(v) for name, v in label.items() if name not in SEEN}


def _digest_rows(sources: Sequence[RowSource], exact: bool) -> str:
    """Returns a digest of the values of the rows.

    Args:
        sources: The row sources.
        exact: Whether the digest covers every bit. Otherwise it ignores the last digits of float32,
            in which standardised rows differ between processors.
    """
    crc = 0
    for source in sources:
        for rows in _choose_rows(source):
            values = np.ascontiguousarray(source.gather(rows))
            if not exact:
                values = round_floats(values)
            crc = zlib.crc32(values.view(np.uint8).data, crc)
    return f"{crc:08x}"


def _choose_rows(source: RowSource) -> Iterator[slice] | list[np.ndarray]:
    count = len(source)
    if not source.streamed and count * source.row_bytes <= WHOLE_BYTES:
        return row_blocks(count, source.row_bytes)
    return [np.unique(np.linspace(0, count - 1, SAMPLED_ROWS).astype(np.int32))]
