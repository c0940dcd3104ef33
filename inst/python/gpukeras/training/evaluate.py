"""Evaluates a model on rows, in large batches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpukeras.backend import runtime
from gpukeras.core.errors import DataError
from gpukeras.core.keras_types import Model
from gpukeras.core.metric_values import read_metrics, split_components
from gpukeras.core.options import check_choice, check_count
from gpukeras.core.progress import CallProgress, OnEvent
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.distributed.failures import propagate_failures
from gpukeras.distributed.strategy import open_strategy
from gpukeras.engine.batch_dependence import KERAS_ROWS, choose_batches
from gpukeras.engine.batch_rows import fixed_rows, model_device
from gpukeras.engine.engine_facts import find_test_hook, refuse_batch_hook
from gpukeras.engine.epoch_loop import AfterCall
from gpukeras.engine.programs import Logs
from gpukeras.models import model_checks, model_recipes
from gpukeras.models.compilation import explaining_refusals
from gpukeras.models.training_rows import find_unweighed_share
from gpukeras.training.evaluation_loop import EvaluationLoop
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
        component. The note says why batches are Keras', or is "". `unweighed` is the share of rows
        that trained the model by weights that they now lack.
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
        note: Why batches were Keras', or "".
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
            loop.after_call = _after_call(loop, CallProgress(on_event, rows))
        told = runtime.keras().callbacks.CallbackList(
            list(callbacks), model=model, verbose=0, epochs=1, steps=1
        )
        logs = evaluate_rows(model, loop.run, told)
    return Evaluated(logs, loop.rows, time.perf_counter() - began, note)


def _after_call(loop: EvaluationLoop, progress: CallProgress) -> AfterCall:
    """Returns the function that records the rows that are done."""

    def after_call(position: int, logs: Logs) -> bool:
        progress.reach(loop.rows)
        return False

    return after_call


def _choose_size(
    model: Model, data: Dataset, part: str, requested: int | None, keras_rows: int
) -> tuple[int | None, str]:
    """Returns the rows per batch, None for large batches; and a note, or ""."""
    if requested is not None:
        return fixed_rows(model) or requested, ""
    size, why = choose_batches(model, data, part, keras_rows)
    note = f"Rows were evaluated in batches of {size:,}, as by Keras: {why}." if why else ""
    return fixed_rows(model) or size, note
