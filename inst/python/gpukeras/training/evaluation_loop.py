"""Evaluates rows in large batches, for trainings and evaluations; see `loop.evaluate_rows()`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from gpukeras.backend import tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import MapLoader, open_evaluation
from gpukeras.distributed.strategy import Strategy
from gpukeras.engine.autotune import choose_evaluation_candidates
from gpukeras.engine.autotune_cache import open_autotuner
from gpukeras.engine.batch_rows import (
    check_whole,
    choose_evaluated_rows,
    count_row_bytes,
    fixed_rows,
)
from gpukeras.engine.engine_facts import read_engine_facts
from gpukeras.engine.epoch_loop import AfterCall, EpochLoop
from gpukeras.engine.programs import Logs
from gpukeras.models import compatibility


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
        after_call: See `EpochLoop.advance()`.
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
    after_call: AfterCall = lambda position, logs: False
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

    def run(self) -> Logs:
        """Evaluates all rows, and returns the last logs; halves batches that exceed the memory."""
        self.before()
        while True:
            try:
                blocks, exact = self._loader.epoch(self._epoch), self._loader.exact
                self._runner.begin(self.strategy.agreement.keep_step(blocks, exact))
                logs = self._runner.advance(after_call=self.after_call)
                break
            except tensor_ops.exhausted():
                alone = self._loader.batch_size == 1 or self.strategy.replicas > 1
                if alone or self._fixed or self.rows_a_batch:
                    raise
            self.model.reset_metrics()
            self._open(self._loader.batch_size // 2)
        self._epoch += 1
        return logs
