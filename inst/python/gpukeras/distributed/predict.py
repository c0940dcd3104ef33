"""Predicts on several devices: each process takes a run of rows, each device a part of a batch.

Nothing is reduced over replicas, so the devices work in parallel and wait only at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.core.keras_types import Model
from gpukeras.data.loader.transforms import open_device_transform
from gpukeras.data.reader.rows import RowSource
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.distributed.keras_internals import this_replica
from gpukeras.distributed.strategy import Strategy
from gpukeras.engine.batch_rows import choose_rows, count_row_bytes
from gpukeras.engine.predict import Output, pad_rows


def predict_together(
    strategy: Strategy,
    model: Model,
    source: RowSource,
    recipe: Recipe,
    function: Callable[[Any], Any] | None = None,
) -> Any:
    """Returns a model's output for all rows, on every process.

    Args:
        strategy: The replicas; of more than one device.
        model: A built model; need not be compiled.
        source: The row source.
        recipe: The encoding of the rows.
        function: The user's function that is applied to features before the model, or None.

    Returns:
        An array of the rows' outputs, or the model's dict or list of such arrays.
    """
    assert strategy.shares is not None  # a single device has no strategy
    own = range(*strategy.shares.find_run(len(source)))
    with strategy.hold_weights(model):
        # A process without rows predicts the first row for the structure, and sends none of it.
        output = _predict_run(strategy, model, source, recipe, function, own or range(1))
    nest = runtime.tensorflow().nest
    outputs = [values[: len(own)] for values in nest.flatten(output)]
    parts = strategy.agreement.gather(outputs)
    whole = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
    return nest.pack_sequence_as(output, whole)


def _predict_run(
    strategy: Strategy,
    model: Model,
    source: RowSource,
    recipe: Recipe,
    function: Callable[[Any], Any] | None,
    rows: range,
) -> Any:
    """Returns the model's output for a run of rows."""
    devices = strategy.devices
    each, model_bytes = -(-len(rows) // len(devices)), count_row_bytes(model)
    size = choose_rows(each, source.row_bytes, model_bytes, devices[0])
    device_transform = open_device_transform(recipe, size, function, source.texts)
    output = Output(len(rows))
    program, step = _build(strategy, model), size * len(devices)
    for start in range(rows.start, rows.stop, step):
        gathered = source.gather(slice(start, min(start + step, rows.stop)))
        parts = np.split(pad_rows(gathered, step), len(devices))
        results = program(tuple(map(_place, map(device_transform, parts), devices)))
        output.write(_join(results), len(gathered))
    return output.values


def _build(strategy: Strategy, model: Model) -> Callable[[Any], Any]:
    """Returns a program that maps each device's rows to each device's outputs."""
    tf, shares = runtime.tensorflow(), strategy.shares
    assert shares is not None

    def run(parts: tuple[Any, ...]) -> list[Any]:
        gathered = strategy.tf_strategy.run(
            lambda: model.predict_step((parts[this_replica() - shares.first],))
        )
        local = strategy.tf_strategy.experimental_local_results
        return [
            tf.nest.map_structure(lambda value, place=place: local(value)[place], gathered)
            for place in range(len(shares.devices))
        ]

    return run if model.run_eagerly else tf.function(run, autograph=False)


def _place(features: Any, device: str) -> Any:
    tf = runtime.tensorflow()
    with tf.device(f"/{device}"):
        return tf.nest.map_structure(tf.identity, features)


def _join(results: list[Any]) -> Any:
    """Concatenates the devices' outputs."""
    nest = runtime.tensorflow().nest
    return nest.map_structure(
        lambda *parts: np.concatenate([part.numpy() for part in parts]), *results
    )
