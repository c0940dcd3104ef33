"""Evaluating and predicting: rows in large batches, nothing learned."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import devices, keras_private, runtime
from gpukeras.core.errors import DataError, ModelError
from gpukeras.core.metric_values import read_metrics, split_components
from gpukeras.core.options import check_choice, check_count
from gpukeras.core.r_buffer import OutputBuffer
from gpukeras.data.base import Dataset
from gpukeras.data.loading.loader import open_evaluation, sample_rows
from gpukeras.data.map_fn import unmapped
from gpukeras.data.preprocessing.multi_output import decode_outputs
from gpukeras.data.preprocessing.recipe import STRINGS, Recipe
from gpukeras.data.preprocessing.targets import decode, name_columns
from gpukeras.data.sources.base import Features
from gpukeras.data.sources.multi_input import InputsFeatures
from gpukeras.data.sources.registry import open_features
from gpukeras.data.sources.row_store import MemoryRows, RowSource
from gpukeras.data.streams.dataset import IterableDataset
from gpukeras.distributed.failures import propagate_failures
from gpukeras.distributed.predict import predict_together
from gpukeras.distributed.strategy import Strategy, open_team
from gpukeras.engine.autotune import EngineAutotuner, choose_evaluation_candidates
from gpukeras.engine.engines import Logs, read_engine_facts
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.engine.predict_loop import (
    Batches,
    check_whole,
    fixed_rows,
    model_device,
    predict_rows,
    predict_stream,
)
from gpukeras.models import builder, compatibility
from gpukeras.models.compilation import explaining_refusals
from gpukeras.models.losses import KERAS_ROWS, depends_on_batch, weighing_rows
from gpukeras.models.variables import build_variables

SAMPLE = 32  # rows that a model's variables are built from


def evaluate(
    model: Any,
    data: Dataset,
    part: str = "all",
    batch_size: float | None = None,
    devices: Any = None,
) -> dict[str, Any]:
    """A model's loss and metrics on rows.

    Args:
        model: A compiled Keras model.
        data: The rows, encoded as those that trained the model.
        part: "all", "train" or "validation".
        batch_size: Rows a batch, or None for large ones; for as many as Keras' own where the loss
            depends on the batches.
        devices: On which, see `training.fit()`.

    Returns:
        `{metrics, rows, elapsed_s}`; of a metric that is an array a number for each component.
    """
    check_choice("part", part, ("all", "train", "validation"))
    size = None if batch_size is None else check_count("batch_size", batch_size)
    builder.check_model(model)
    builder.check_encoding(model, data.recipe)
    builder.check_rows(model, data, step="test", fits=True)
    if not data.has_rows(part):
        raise DataError("`data` has no validation rows.", arg="part")
    began, team = time.perf_counter(), open_team(devices)
    team.check(model)
    build_on(model, data)
    size = _choose_size(model, size)
    device = team.place(model_device(model))
    with (
        propagate_failures(),
        preserve_keras_functions(model),
        explaining_refusals(),
        team.hold(model),
    ):
        rows = data.count(part)
        team.agreement.begin("evaluate", rows=rows, batch_size=size, model=count_weights(model))
        loop = EvaluationLoop(model, data, part, device, 1, rows_a_batch=size, team=team)
        model.test_function = loop
        logs = model.evaluate(keras_steps(1), verbose=0, return_dict=True)
    elapsed_s = time.perf_counter() - began
    metrics = split_components(read_metrics(logs))
    return {"metrics": metrics, "rows": loop.rows, "elapsed_s": elapsed_s}


def _choose_size(model: Any, wanted: int | None) -> int | None:
    """Rows a batch; None for large ones."""
    if wanted is None and depends_on_batch(model):
        wanted = KERAS_ROWS
    return fixed_rows(model) or wanted


def predict(
    model: Any,
    features: Mapping[str, Any] | None = None,
    data: Dataset | None = None,
    type: str = "response",  # noqa: A002 (R's name for it)
    room: Callable[[int, int, list[str]], Any] | None = None,
    devices: Any = None,
) -> dict[str, Any]:
    """A model's predictions in the labels' own terms, rows in the order given.

    Args:
        model: A Keras model; need not be compiled.
        features: New rows, encoded by the recipe tied to the model if there is one.
        data: Or a dataset, whose rows are taken in their original order; of rows in sequence one
            epoch is.
        type: "response" or "class".
        room: R's function that makes memory for many values, see `rooms`; or None.
        devices: On which rows are predicted, see `training.fit()`; "all" shares them out in a
            cluster. Rows in sequence are predicted where the model is.

    Returns:
        See `labels.decode`, `values` being "room" where they were written there; and `missing`, the
        numbers from 1 of rows that have no prediction, because training left out such rows. They
        keep their place. Of a model with several outputs: `{outputs}`, such a record of each, with
        its `name`. Where the shape of a row varies by batch: `{batches}`, a record of each.
    """
    check_choice("type", type, ("response", "class"))
    recipe, rows, complete = _open_rows(model, features, data)
    compatibility.check_input(model, recipe)
    builder.check_call(model, "predict")
    name = partial(name_columns, recipe.label)
    held = None if room is None or type == "class" else OutputBuffer(room, name)
    with jit_policy(model):
        if isinstance(rows, IterableDataset):
            output = predict_stream(model, rows)
        else:
            function = None if data is None else data.map
            output = _predict(model, rows, recipe, function, held, devices)
    as_class = type == "class"
    if isinstance(output, Batches):
        return {"batches": [decode(recipe.label, part, as_class) for part in output]}
    if isinstance(output, np.ndarray):
        record = _keep_places(decode(recipe.label, output, as_class), complete)
        in_room = held is not None and held.holds(record["values"])
        return {**record, "values": "room"} if in_room else record
    by_name = _by_name(model, output)
    if any(isinstance(values, Batches) for values in by_name.values()):
        return {"outputs": [_decode_varying(name, by_name[name]) for name in by_name]}
    records = decode_outputs(recipe.label, by_name, as_class)
    return {"outputs": [_keep_places(record, complete) for record in records]}


def _open_rows(
    model: Any, features: Mapping[str, Any] | None, data: Dataset | None
) -> tuple[Recipe, RowSource | IterableDataset, np.ndarray | None]:
    """The rows to predict, their recipe, and which of them are complete, or None for all."""
    recipe = builder.recipe_of(model)
    if data is not None:
        builder.check_encoding(model, data.recipe)
        data.open_axes = compatibility.read_open_axes(model)
        return recipe or data.recipe, _rows_of(data), None
    given = open_features(features or {}, "newdata", recipe=recipe)
    recipe = compatibility.open_shape(model, recipe or _plain_recipe(given), given.row_shape)
    if recipe.mapped:
        raise unmapped("newdata")
    return recipe, *_encode_new(recipe, given)


def _decode_varying(name: str, values: Any) -> dict[str, Any]:
    """One of several outputs, of which some have rows whose shape varies: as numbers."""
    if not isinstance(values, Batches):
        return {"name": name, **decode(None, values, False)}
    return {"name": name, "batches": [decode(None, part, False) for part in values]}


def _predict(
    model: Any,
    rows: RowSource,
    recipe: Recipe,
    function: Callable[[Any], Any] | None,
    room: OutputBuffer | None,
    devices: Any,
) -> Any:
    team = open_team(devices)
    if team.shares is None:
        return predict_rows(model, rows, recipe, function, room)
    with propagate_failures():
        team.agreement.begin("predict", rows=len(rows), model=count_weights(model))
        return predict_together(team, model, rows, recipe, function)


def count_weights(model: Any) -> int:
    """How many numbers a model has."""
    return sum(math.prod(variable.shape) for variable in model.variables)


def _by_name(model: Any, output: Any) -> dict[str, np.ndarray]:
    """What each output of a model gave, in the model's order.

    Raises:
        ModelError: if one is a dict or list of several itself.
    """
    if not isinstance(output, Mapping):
        known = compatibility.read_outputs(model) or ()
        places = [f"output_{place}" for place in range(1, len(output) + 1)]
        output = dict(zip(known if len(known) == len(places) else places, output, strict=True))
    for name, values in output.items():
        if not isinstance(values, (np.ndarray, Batches)):
            raise ModelError(
                f"The output `{name}` of `model` is several itself: rows are predicted by models "
                "whose outputs are a list or a dict of arrays.",
                hint="Predict with a model that gives them side by side.",
                arg="model",
            )
    return dict(output)


def _rows_of(data: Dataset) -> RowSource | IterableDataset:
    return data if isinstance(data, IterableDataset) else data.sources[0]


def _encode_new(recipe: Recipe, given: Features) -> tuple[RowSource, np.ndarray | None]:
    """New rows encoded, and which of them, or None for all."""
    complete = None
    if recipe.na == "drop" and given.kind == recipe.kind and not given.refuses:
        complete = given.find_complete(recipe.known)
    if complete is None or complete.all():
        rows, complete = given.encode_later(recipe), None
    else:
        rows = given.encode(recipe, complete)
    if len(rows):
        return rows, complete
    # One row of zeros where there is none: the output's shape comes from the model alone.
    blank = MemoryRows(np.zeros((1, *recipe.staged_shape), np.float32))
    blank.texts = rows.texts
    return blank, np.zeros(0, dtype=bool) if complete is None else complete


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
        part: str,
        device: str,
        epochs: int,
        wanted: str = "auto",
        rows_a_batch: int | None = None,
        idle: Callable[[], None] = lambda: None,
        before: Callable[[], None] = lambda: None,
        team: Strategy | None = None,
    ) -> None:
        """Places the rows; `epochs` is how often they will be evaluated."""
        self._model, self._device, self._epochs, self._wanted = model, device, epochs, wanted
        self._team, self._has_texts = team or Strategy(), data.recipe.has_texts
        self._open_feed = partial(
            open_evaluation,
            data,
            device,
            part,
            check=lambda recipe: builder.check_fit(model, recipe),
            idle=idle,
            shares=self._team.shares,
        )
        self._before, self._epoch = before, 0
        self._fixed = fixed_rows(model)
        self._open(self._fixed or rows_a_batch)

    def _open(self, rows_a_batch: int | None) -> None:
        self._feed = self._open_feed(batch_size=rows_a_batch)
        if self._fixed is not None and self._feed.exact:
            check_whole(self._fixed, self._feed.row_count)
        team, facts = self._team, read_engine_facts(self._model, self._wanted)
        facts = replace(facts, replicas=team.replicas, text=self._has_texts)
        engines = team.open_evaluation(self._model, self._feed.batch_size, self._device)
        candidates = choose_evaluation_candidates(facts)
        passes = (self._feed.steps or 1) * max(1, self._epochs - self._epoch)
        chooser = EngineAutotuner(candidates, passes, "", engines.started_s, facts)
        self._runner = EpochLoop(engines, chooser, agree_time=team.agreement.agree_time)

    @property
    def rows(self) -> int:
        """Rows evaluated the last time."""
        return self._runner.rows

    def __call__(self, iterator: Any) -> Logs:
        """Evaluates all rows; Keras' iterator only says when. Halves batches that are too large."""
        self._before()
        while True:
            try:
                blocks, exact = self._feed.epoch(self._epoch), self._feed.exact
                self._runner.begin(self._team.agreement.keep_step(blocks, exact))
                logs = self._runner.advance()
                break
            except runtime.tensorflow().errors.ResourceExhaustedError:
                if self._feed.batch_size == 1 or self._fixed or self._team.replicas > 1:
                    raise
            self._model.reset_metrics()
            self._open(self._feed.batch_size // 2)
        self._epoch += 1
        return logs


def keras_steps(count: int) -> Any:
    """What Keras iterates over: it counts, the data takes another way."""
    with runtime.on_device("CPU:0", soft=True):  # also inside with_device("GPU:0", )
        return runtime.tensorflow().data.Dataset.range(count)


def endless_ticks() -> Any:
    """What Keras iterates over until it is told that there is no more."""
    with runtime.on_device("CPU:0", soft=True):
        endless = runtime.tensorflow().data.Dataset.range(1).repeat()
        return endless.take_while(lambda _: True)  # of a length that Keras takes for unknown


def build_on(model: Any, data: Dataset) -> None:
    """Creates the variables from a batch of rows, see `variables.build_variables()`."""
    build_variables(model, sample_rows(data, fixed_rows(model) or SAMPLE), data.wrapped)


@contextmanager
def preserve_keras_functions(model: Any) -> Iterator[int]:
    """Gives Keras its functions, settings and losses back: its own fit() works as before.

    Inside is the `steps_per_execution` that the model was compiled with; of Keras' is 1.
    """
    steps, functions = model.steps_per_execution, (model.train_function, model.test_function)
    began = keras_private.initial_epoch(model)
    model.steps_per_execution = 1
    try:
        with jit_policy(model), weighing_rows(model):
            yield steps
    finally:
        model.steps_per_execution = steps
        keras_private.set_initial_epoch(model, began)
        # Those of a training that is going on, where a callback evaluates; else Keras' own.
        model.train_function, model.test_function = functions


@contextmanager
def jit_policy(model: Any) -> Iterator[None]:
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


def _plain_recipe(given: Features) -> Recipe:
    if given.row_shape is None:
        raise DataError(
            "`newdata` is a data frame, but `model` was not trained by gpukeras on one.",
            hint="Pass a numeric matrix.",
            arg="newdata",
        )
    if isinstance(given, InputsFeatures):
        return given.plain_recipe()
    return Recipe(STRINGS if given.kind == STRINGS else "array", given.row_shape)
