"""Evaluates rows in large batches, for trainings and evaluations; see `loop.evaluate_rows()`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gpukeras.backend import tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.base import Dataset
from gpukeras.data.loading.loader import open_evaluation
from gpukeras.data.loading.map_loader import MapLoader
from gpukeras.distributed.strategy import Strategy
from gpukeras.engine.autotune import choose_evaluation_candidates
from gpukeras.engine.autotune_cache import open_autotuner
from gpukeras.engine.engine_facts import read_engine_facts
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.engine.predict_loop import (
    check_whole,
    choose_evaluated_rows,
    count_row_bytes,
    fixed_rows,
)
from gpukeras.engine.programs import Logs
from gpukeras.models import compatibility


class EvaluationLoop:
    """Evaluates all rows of a part, in large batches if it may."""

    def __init__(
        self,
        model: Model,
        data: Dataset,
        part: str,
        device: str,
        epochs: int,
        *,
        requested: str = "auto",
        rows_a_batch: int | None = None,
        first: int | None = None,
        idle: Callable[[], None] = lambda: None,
        before: Callable[[], None] = lambda: None,
        strategy: Strategy | None = None,
    ) -> None:
        """Opens the rows.

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
            strategy: The replicas of the model, or None for one.
        """
        self._model, self._device, self._epochs = model, device, epochs
        self._variable_batch_size = data.variable_batch_size
        self._requested = "superstep" if data.variable_batch_size else requested
        self._strategy, self._has_texts = strategy or Strategy(), data.recipe.has_texts
        self._open_loader = partial(
            open_evaluation,
            data,
            device,
            part,
            first=first,
            check=lambda recipe: compatibility.check_fit(model, recipe),
            idle=idle,
            shares=self._strategy.shares,
        )
        self._before, self._epoch = before, 0
        self._fixed, self._kept = fixed_rows(model), rows_a_batch is not None
        large = choose_evaluated_rows(data.row_bytes, count_row_bytes(model), device)
        self._open(self._fixed or rows_a_batch or large)

    def _open(self, rows_a_batch: int | None) -> None:
        self._loader = self._open_loader(batch_size=rows_a_batch)
        if self._fixed is not None and isinstance(self._loader, MapLoader):
            check_whole(self._fixed, self._loader.row_count)
        strategy, facts = self._strategy, read_engine_facts(self._model, self._requested)
        facts = replace(facts, replicas=strategy.replicas, text=self._has_texts)
        engines = strategy.open_evaluation(self._model, self._loader.batch_size, self._device)
        if self._variable_batch_size:
            engines.expect(1, False, variable_batch_size=True)
        candidates = choose_evaluation_candidates(facts)
        passes = (self._loader.steps or 1) * max(1, self._epochs - self._epoch)
        chooser = open_autotuner(engines, candidates, passes, "", facts)
        self._runner = EpochLoop(
            engines,
            chooser,
            agree_time=strategy.agreement.agree_time,
            by_batch=self._variable_batch_size,
        )

    @property
    def rows(self) -> int:
        """Number of rows in the last evaluation."""
        return self._runner.rows

    def run(self) -> Logs:
        """Evaluates all rows, and returns the last logs; halves batches that exceed the memory."""
        self._before()
        while True:
            try:
                blocks, exact = self._loader.epoch(self._epoch), self._loader.exact
                self._runner.begin(self._strategy.agreement.keep_step(blocks, exact))
                logs = self._runner.advance()
                break
            except tensor_ops.exhausted():
                alone = self._loader.batch_size == 1 or self._strategy.replicas > 1
                if alone or self._fixed or self._kept:
                    raise
            self._model.reset_metrics()
            self._open(self._loader.batch_size // 2)
        self._epoch += 1
        return logs
