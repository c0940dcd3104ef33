"""Evaluates a model on rows, in large batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.errors import DataError
from gpukeras.core.keras_types import Model
from gpukeras.core.metric_values import read_metrics, split_components
from gpukeras.core.options import check_choice, check_count
from gpukeras.core.progress import CallProgress, OnEvent
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import MapLoader, open_evaluation
from gpukeras.distributed.session import propagate_failures
from gpukeras.distributed.strategy import Strategy, open_strategy
from gpukeras.engine.autotune import choose_evaluation_candidates
from gpukeras.engine.autotune_cache import open_autotuner
from gpukeras.engine.batch_dependence import KERAS_ROWS, choose_batches
from gpukeras.engine.batch_rows import (
    check_whole,
    choose_evaluated_rows,
    count_row_bytes,
    fixed_rows,
    model_device,
)
from gpukeras.engine.engine_facts import find_test_hook, read_engine_facts, refuse_batch_hook
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.engine.programs import Logs
from gpukeras.models import compatibility, model_checks, model_recipes
from gpukeras.models.compilation import explaining_refusals
from gpukeras.models.training_rows import find_unweighed_share
from gpukeras.training.keras_functions import build_on, count_weights, jit_policy
from gpukeras.training.loop import evaluate_rows


def evaluate(
    model: Model,
    data: Dataset,
    part: str = "all",
    batch_size: float | None = None,
    *,
    devices: Any = None,
    callbacks: Sequence[Any] = (),
    on_event: OnEvent | None = None,
) -> dict[str, Any]:
    """Returns a model's loss and metrics on rows.

    Args:
        model: A compiled Keras model.
        data: The dataset, encoded like the one that trained the model.
        part: "all", "train" or "validation".
        batch_size: Rows per batch. None for large batches, or for Keras' default where the result
            depends on the batches.
        devices: The devices, see `training.fit()`.
        callbacks: Keras callbacks; all rows are one batch to them.
        on_event: Called with the rows that are done, see `CallProgress`; not where several devices
            evaluate.

    Returns:
        `{metrics, rows, elapsed_s, note, unweighed}`; for a metric that is an array, one number per
        component. The note says why batches are Keras', and what several devices may change, or
        is "". `unweighed` is the share of rows that trained the model by weights that they now
        lack.
    """
    size = None if batch_size is None else check_count("batch_size", batch_size)
    result = evaluate_logs(
        model, data, part, size, devices=devices, callbacks=callbacks, on_event=on_event
    )
    metrics = split_components(read_metrics(result.logs))
    return {
        "metrics": metrics,
        "rows": result.rows,
        "elapsed_s": result.elapsed_s,
        "note": result.note,
        "unweighed": find_unweighed_share(model, data, part),
    }


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation found.

    Args:
        logs: What Keras' `evaluate(return_dict=True)` returns.
        rows: Number of rows.
        elapsed_s: How long it took.
        note: Why batches were Keras', and what several devices may have changed, or "".
    """

    logs: dict[str, Any]
    rows: int
    elapsed_s: float
    note: str


def evaluate_logs(
    model: Model,
    data: Dataset,
    part: str = "all",
    requested: int | None = None,
    *,
    keras_rows: int = KERAS_ROWS,
    devices: Any = None,
    callbacks: Sequence[Any] = (),
    on_event: OnEvent | None = None,
) -> Evaluated:
    """Returns a model's loss and metrics on rows, as Keras does.

    Args:
        model: A compiled Keras model.
        data: The dataset, encoded like the one that trained the model.
        part: "all", "train" or "validation".
        requested: Rows per batch, or None to choose.
        keras_rows: Rows per batch where the result depends on the batches.
        devices: The devices, see `training.fit()`.
        callbacks: Keras callbacks; all rows are one batch to them.
        on_event: See `evaluate()`.
    """
    check_choice("part", part, ("all", "train", "validation"))
    model_checks.check_model(model)
    model_recipes.check_encoding(model, data.recipe)
    model_checks.check_rows(model, data, step="test", fits=True)
    if not data.has_rows(part):
        raise DataError("`data` has no validation rows.", arg="part")
    refuse_batch_hook(find_test_hook(callbacks), data)
    began, strategy = time.perf_counter(), open_strategy(devices)
    strategy.check(model)
    build_on(model, data)
    size, note = _choose_size(model, data, part, requested, keras_rows)
    note = " ".join(filter(None, [note, *strategy.explain_sums(model)]))
    device = strategy.place(model_device(model))
    with (
        propagate_failures(),
        jit_policy(model),
        explaining_refusals(model),
        strategy.hold(model),
    ):
        rows = data.count(part)
        strategy.agreement.begin("evaluate", rows=rows, batch_size=size, model=count_weights(model))
        loop = EvaluationLoop(model, data, part, device, 1, rows_a_batch=size, strategy=strategy)
        if strategy.replicas == 1:  # an interrupt of one process would leave the others waiting
            loop.after_call = CallProgress(on_event, rows).reach
        told = runtime.keras().callbacks.CallbackList(
            list(callbacks), model=model, verbose=0, epochs=1, steps=1
        )
        logs = evaluate_rows(model, loop.run, told)
    return Evaluated(logs, loop.rows, time.perf_counter() - began, note)


def _choose_size(
    model: Model, data: Dataset, part: str, requested: int | None, keras_rows: int
) -> tuple[int | None, str]:
    """Returns the rows per batch, None for large batches; and a note, or ""."""
    if requested is not None:
        return fixed_rows(model) or requested, ""
    size, why = choose_batches(model, data, part, keras_rows)
    note = f"Rows were evaluated in batches of {size:,}, as by Keras: {why}." if why else ""
    return fixed_rows(model) or size, note


# Batches of an evaluation -------------------------------------------------------------------------


@dataclass
class EvaluationLoop:
    """Evaluates all rows of a part, in large batches if it may.

    Args:
        model: A compiled model.
        data: The dataset.
        part: "all", "train" or "validation".
        device: The device of the model.
        epochs: How often the rows will be evaluated.
        requested: "auto" or the name of an engine.
        rows_a_batch: Rows per batch, or None for large batches.
        first: See `open_evaluation()`.
        idle: Called while rows are waited for.
        before: Called before each evaluation.
        after_call: Called after each call with the number of rows that are done.
        strategy: The replicas of the model.
    """

    model: Model
    data: Dataset
    part: str
    device: str
    epochs: int
    requested: str = "auto"
    rows_a_batch: int | None = None
    first: int | None = None
    idle: Callable[[], None] = lambda: None
    before: Callable[[], None] = lambda: None
    after_call: Callable[[int], None] = lambda rows: None
    strategy: Strategy = field(default_factory=Strategy)

    def __post_init__(self) -> None:
        """Opens the rows."""
        self._epoch, self._fixed = 0, fixed_rows(self.model)
        row_bytes, model_bytes = self.data.row_bytes, count_row_bytes(self.model)
        large = choose_evaluated_rows(row_bytes, model_bytes, self.device)
        self._open(self._fixed or self.rows_a_batch or large)

    def _open(self, rows_a_batch: int | None) -> None:
        model = self.model
        data = self.data
        strategy = self.strategy
        by_batch = data.variable_batch_size
        self._loader = open_evaluation(
            data,
            self.device,
            self.part,
            batch_size=rows_a_batch,
            first=self.first,
            check=partial(compatibility.check_fit, model),
            idle=self.idle,
            shares=strategy.shares,
        )
        if self._fixed is not None and isinstance(self._loader, MapLoader):
            check_whole(self._fixed, self._loader.row_count)
        facts = read_engine_facts(model, "graph_loop" if by_batch else self.requested)
        facts = replace(facts, replicas=strategy.replicas, text=data.recipe.features.has_texts)
        engines = strategy.open_evaluation(model, self._loader.batch_size, self.device)
        if by_batch:
            engines.expect(1, False, variable_batch_size=True)
        candidates = choose_evaluation_candidates(facts)
        passes = (self._loader.steps or 1) * max(1, self.epochs - self._epoch)
        chooser = open_autotuner(engines, candidates, passes, "", facts)
        agree_time = strategy.agreement.agree_time
        self._runner = EpochLoop(engines, chooser, agree_time=agree_time, by_batch=by_batch)

    @property
    def rows(self) -> int:
        """Number of rows in the last evaluation."""
        return self._runner.rows

    def _after_call(self, position: int, logs: Logs) -> bool:
        self.after_call(self.rows)
        return False

    def run(self) -> Logs:
        """Evaluates all rows, and returns the last logs; halves batches that exceed the memory."""
        self.before()
        while True:
            try:
                blocks, exact = self._loader.epoch(self._epoch), self._loader.exact
                self._runner.begin(self.strategy.agreement.keep_step(blocks, exact))
                logs = self._runner.advance(after_call=self._after_call)
                break
            except tensor_ops.exhausted():
                alone = self._loader.batch_size == 1 or self.strategy.replicas > 1
                if alone or self._fixed or self.rows_a_batch:
                    raise
            self.model.reset_metrics()
            self._open(self._loader.batch_size // 2)
        self._epoch += 1
        return logs
