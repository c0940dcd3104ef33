"""Evaluating and predicting: rows in large batches, nothing learned."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import devices, models, runtime
from .arrays import aligned_empty
from .choosing import Chooser, choose_evaluation_candidates
from .engine import Engines, Logs, Runner, first_line, read_engine_facts
from .errors import DataError, ModelError
from .labels import decode
from .missing import find_complete
from .pipeline import Dataset, Feed
from .plans import choose_evaluation_rows
from .recipes import Recipe
from .rows import MemoryRows, RowSource
from .sources import Features, open_features
from .specs import check_choice, check_count


def evaluate(
    model: Any, data: Dataset, part: str = "all", batch_size: float | None = None
) -> dict[str, Any]:
    """A model's loss and metrics on rows.

    Args:
        model: A compiled Keras model.
        data: The rows, encoded as those that trained the model.
        part: "all", "train" or "validation".
        batch_size: Rows a batch, or None for large ones.

    Returns:
        `{metrics, rows, elapsed_s}`.
    """
    check_choice("part", part, ("all", "train", "validation"))
    size = None if batch_size is None else check_count("batch_size", batch_size)
    models.check_model(model)
    models.check_rows(model, data)
    models.check_encoding(model, data.recipe)
    rows = data.rows(part)
    if len(rows) == 0:
        raise DataError("`data` has no validation rows.", arg="part")
    began = time.perf_counter()
    build_variables(model, data)
    with own_functions(model):
        loop = EvaluationLoop(model, data, rows, model_device(model), epochs=1, rows_a_batch=size)
        model.test_function = loop
        logs = model.evaluate(ticks(1), verbose=0, return_dict=True)
    elapsed_s = time.perf_counter() - began
    metrics = {name: logs[name] for name in order_metrics(logs)}
    return {"metrics": metrics, "rows": len(rows), "elapsed_s": elapsed_s}


def predict(
    model: Any,
    features: Mapping[str, Any] | None = None,
    data: Dataset | None = None,
    type: str = "response",  # noqa: A002 (R's name for it)
) -> dict[str, Any]:
    """A model's predictions in the labels' own terms, rows in the order given.

    Args:
        model: A Keras model; need not be compiled.
        features: New rows, encoded by the recipe tied to the model if there is one.
        data: Or a dataset, whose rows are taken in their original order.
        type: "response" or "class".

    Returns:
        See `labels.decode`; and `missing`, the numbers from 1 of rows that have no prediction,
        because training left out such rows. They keep their place.
    """
    check_choice("type", type, ("response", "class"))
    recipe = models.recipe_of(model)
    complete = None
    if data is not None:
        models.check_encoding(model, data.recipe)
        recipe, rows = recipe or data.recipe, data.sources[0]
    else:
        given = open_features(features or {}, "newdata")
        recipe = recipe or _plain_recipe(given)
        rows, complete = _encode_new(recipe, given, features or {})
    models.check_input(model, recipe)
    with heeding_jit(model):
        output = _predict_rows(model, rows)
    return _keep_places(decode(recipe.label, output, type == "class"), complete)


def _encode_new(
    recipe: Recipe, given: Features, features: Mapping[str, Any]
) -> tuple[RowSource, np.ndarray | None]:
    """New rows encoded, and which of them, or None for all."""
    if recipe.na != "drop" or features["kind"] != recipe.kind:
        return given.encode(recipe), None
    complete = find_complete(features, given.rows, recipe.known, "newdata")
    if complete.all():
        return given.encode(recipe), None
    rows = given.encode(recipe, complete)
    # One row of zeros where none is complete: the output's shape comes from the model alone.
    return rows if len(rows) else MemoryRows(np.zeros((1, *recipe.shape), np.float32)), complete


def _keep_places(record: dict[str, Any], complete: np.ndarray | None) -> dict[str, Any]:
    if complete is None:
        return record
    values = record["values"]
    placed = np.zeros((len(complete), *values.shape[1:]), values.dtype)
    placed[complete] = values[: complete.sum()]
    missing = (np.flatnonzero(~complete) + 1).astype(np.int32)
    return {**record, "values": placed, "missing": missing}


# Shared with training ----------------------------------------------------------------------------


class EvaluationLoop:
    """Keras' test function: evaluates all rows in one tick, in large batches."""

    def __init__(
        self,
        model: Any,
        data: Dataset,
        rows: np.ndarray,
        device: str,
        epochs: int,
        wanted: str = "auto",
        rows_a_batch: int | None = None,
    ) -> None:
        """Places the rows; `epochs` is how often they will be evaluated."""
        plan = data.plan(device, "auto")
        size = min(len(rows), rows_a_batch or choose_evaluation_rows(data.row_bytes, len(rows)))
        self._rows, self._steps = rows, math.ceil(len(rows) / size)
        self._feed = Feed(data, plan, size, max(1, len(rows) // size))
        engines = Engines(model, "test", size, device)
        candidates = choose_evaluation_candidates(read_engine_facts(model, wanted))
        self._runner = Runner(engines, Chooser(candidates, self._steps * epochs))

    def __call__(self, iterator: Any) -> Logs:
        """Evaluates all rows; Keras' iterator only says when."""
        self._runner.begin(self._feed.blocks(self._rows))
        return self._runner.advance(self._steps)


def model_device(model: Any) -> str:
    """Where a built model's variables are, such as "GPU:0"."""
    names = runtime.variable_devices(model)
    return names[0] if names else "CPU:0"


def ticks(count: int) -> Any:
    """What Keras iterates over: it counts, the data takes another way."""
    with runtime.on_device("CPU:0", soft=True):  # also inside with_device("GPU:0", )
        return runtime.tensorflow().data.Dataset.range(count)


def build_variables(model: Any, data: Dataset) -> None:
    """Creates the variables of the model, its metrics and its optimizer."""
    try:
        runtime.build_state(model, data.batch(32))
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"Keras cannot build the model on this data: {first_line(error)}",
            hint="Check the layers' shapes against the data's columns.",
            arg="model",
        ) from error


@contextmanager
def own_functions(model: Any) -> Iterator[None]:
    """Gives Keras its functions and settings back, so that its own fit() works as before."""
    steps = model.steps_per_execution
    model.steps_per_execution = 1
    try:
        with heeding_jit(model):
            yield
    finally:
        model.steps_per_execution = steps
        model.train_function = model.test_function = None


@contextmanager
def heeding_jit(model: Any) -> Iterator[None]:
    """Keras compiles its own functions by XLA as `compile()` said; the session may forbid it."""
    before = model.jit_compile
    if not before or devices.current().jit is not False:
        yield
        return
    model.jit_compile, model.predict_function = False, None
    try:
        yield
    finally:
        model.jit_compile, model.predict_function = before, None


def order_metrics(names: Iterable[str]) -> list[str]:
    """The loss before the metrics, training before validation, otherwise as Keras has them."""
    return sorted(names, key=lambda name: (name.startswith("val_"), not name.endswith("loss")))


def _plain_recipe(given: Features) -> Recipe:
    if given.row_shape is None:
        raise DataError(
            "`newdata` is a data frame, but `model` was not trained by gpukeras on one.",
            hint="Pass a numeric matrix.",
            arg="newdata",
        )
    return Recipe("array", given.row_shape)


def _predict_rows(model: Any, source: RowSource) -> np.ndarray:
    """Runs all rows through Keras' own predict function, in large batches of one shape."""
    size = choose_evaluation_rows(source.row_bytes, len(source))
    output: np.ndarray | None = None
    for start in range(0, len(source), size):
        rows = source.gather(slice(start, start + size))
        padding = [(0, size - len(rows))] + [(0, 0)] * (rows.ndim - 1)
        values = model.predict_on_batch(np.pad(rows, padding) if padding[0][1] else rows)
        if output is None:
            output = aligned_empty((len(source), *values.shape[1:]), values.dtype)
        output[start : start + size] = values[: len(rows)]
    return output
