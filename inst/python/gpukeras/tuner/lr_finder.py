"""The learning-rate range test: trains one batch per rate and restores the model.

Rates rise by a constant factor, one batch each. Between two steps the rate is set, and Keras'
running mean of the loss is reset.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gpukeras.backend import runtime
from gpukeras.backend.oom import explain_exhaustion, memory_errors
from gpukeras.core.errors import SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import Spec, check_count, check_number, option
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import Block, open_loader
from gpukeras.engine.autotune import choose_count
from gpukeras.engine.batch_rows import model_device
from gpukeras.engine.engine_cache import make_engines
from gpukeras.engine.engines import Engines
from gpukeras.engine.epoch_loop import draw
from gpukeras.engine.optimizer import Rates, find_optimizer, override_rate, read_rate
from gpukeras.engine.programs import UntraceableError, find_loss
from gpukeras.engine.refusals import explain_inability
from gpukeras.models import compatibility, model_checks, model_recipes
from gpukeras.training.batch_size import remembered_size
from gpukeras.training.keras_functions import build_on
from gpukeras.training.model_guard import kept_model
from gpukeras.tuner.lr_curve import RateChoice, choose_end, choose_rate, plan_rates, smooth_losses


@dataclass(frozen=True)
class RateSearchSpec(Spec):
    """Options of a search.

    Args:
        low: R's `from`, the first rate.
        high: R's `to`, the last rate.
        steps: Number of rates, one batch each.
        batch_size: Rows per batch; "auto" is the size that `find_batch_size()` found for the model
            in this session, or else the dataset's own.
    """

    low: float = option(1e-7, check_number, 1e-30, 1e30, arg="from")
    high: float = option(10.0, check_number, 1e-30, 1e30, arg="to")
    steps: int = option(100, check_count, 10, 100_000)
    batch_size: str | int = option("auto", check_count)

    def __post_init__(self) -> None:
        """Checks and normalizes every field."""
        super().__post_init__()
        if not self.low < self.high:
            raise SpecError(f"`to` must be above `from`, which is {self.low:g}.", arg="to")


@dataclass(frozen=True)
class RateSearch:
    """The result of a search.

    Args:
        rates: The rates that were tried.
        losses: The loss of each rate's batch.
        smoothed: Their exponential average.
        steepest: See `RateChoice`.
        minimum_tenth: See `RateChoice`.
        recommended: See `RateChoice`.
        reason: Why that rate, or why none.
        stopped: "completed", "diverged", "non_finite" or "interrupted".
        current: The optimizer's rate, which is not changed; NaN if it has several.
        batch_size: Rows per batch.
        device: The model's device.
        elapsed_s: Seconds in total.
    """

    rates: list[float]
    losses: list[float]
    smoothed: list[float]
    steepest: float | None
    minimum_tenth: float | None
    recommended: float | None
    reason: str
    stopped: str
    current: float
    batch_size: int
    device: str
    elapsed_s: float


def find_learning_rate(
    model: Model, data: Dataset, options: Mapping[str, Any], on_event: OnEvent | None = None
) -> RateSearch:
    """Trains a batch at each of many rising rates; the model is always restored.

    Weights, optimizer with its rate or schedule, metrics and random state are restored. A model
    that was not built is built. Data with fewer batches than rates is repeated; a short last batch
    is skipped.

    Args:
        model: A compiled Keras model.
        data: The dataset; sequential sources are read as in a training.
        options: Fields of `RateSearchSpec`.
        on_event: Called after each call of the loop (some 0.2 s) with a plain dict of `kind`
            ("rates" or "waiting"), `step` and `steps`; if it returns True, the search ends.

    Raises:
        SpecError, DataError, ModelError: for input that does not fit.
    """
    began = time.perf_counter()
    spec = RateSearchSpec.from_dict(options)
    model_checks.check_model(model)
    find_optimizer(model, "learning_rate")
    model_checks.check_rows(model, data)
    model_recipes.check_encoding(model, data.recipe)
    build_on(model, data)
    device = model_device(model)
    size = remembered_size(model, data) if spec.batch_size == "auto" else spec.batch_size
    plan = data.plan(device, size)
    current = read_rate(model)
    test = _Test(model, plan_rates(spec.low, spec.high, spec.steps), plan.batch_size, on_event)
    with kept_model(model):
        loader = open_loader(data, plan, partial(compatibility.check_fit, model), test.idle)
        smaller = "Use a smaller `batch_size`."
        with memory_errors(lambda: explain_exhaustion(device, plan.batch_size, smaller)):
            test.run(loader)
    return _report(test, current, device, time.perf_counter() - began)


def _report(test: _Test, current: float, device: str, elapsed_s: float) -> RateSearch:
    count, stopped = choose_end(test.losses)
    rates, losses = test.rates[:count].tolist(), test.losses[:count]
    choice = choose_rate(rates, losses)
    if test.interrupted and stopped == "completed":
        stopped, choice = "interrupted", RateChoice(None, None, None, "the search was interrupted")
    return RateSearch(
        rates=rates,
        losses=losses,
        smoothed=smooth_losses(losses).tolist(),
        **vars(choice),
        stopped=stopped,
        current=current,
        batch_size=test.batch_size,
        device=device,
        elapsed_s=elapsed_s,
    )


# Testing -----------------------------------------------------------------------------------------


@dataclass
class _Test:
    """A range test in progress."""

    model: Model
    rates: np.ndarray
    batch_size: int
    on_event: OnEvent | None
    losses: list[float] = field(default_factory=list)
    interrupted: bool = False
    _batch_s: float | None = None

    def run(self, loader: Any) -> None:
        """Trains a batch per rate until the rates end, the loss diverges or `on_event` stops it."""
        with override_rate(self.model) as rate, closing(draw(loader)) as blocks:
            device = model_device(self.model)
            engines = make_engines(self.model, "train", self.batch_size, device)
            try:
                while self._is_going():
                    self._run_block(engines, rate, next(blocks)[0])
            except UntraceableError as error:
                raise explain_inability(self._engine, error) from error
            except KeyboardInterrupt:
                if not self.interrupted:  # ended by `on_event`: the rates tried so far count
                    raise

    def idle(self) -> None:
        """Sends an event while the loader waits for rows; `on_event` may end the test."""
        self._emit("waiting")
        if self.interrupted:
            raise KeyboardInterrupt

    def _is_going(self) -> bool:
        if self.interrupted or len(self.losses) == len(self.rates):
            return False
        return choose_end(self.losses)[1] == "completed"

    @property
    def _engine(self) -> str:
        """The engine that starts fastest of those that run single steps."""
        graph = "graph_loop" in runtime.engine_names() and not self.model.run_eagerly
        return "graph_loop" if graph else "keras"

    def _run_block(self, engines: Engines, rate: Rates, block: Block) -> None:
        first = 0
        while first < block.batches and self._is_going():
            done = len(self.losses)
            left = min(block.batches - first, len(self.rates) - done)
            count = choose_count(self._batch_s, left)
            began = time.perf_counter()
            for place in range(first, first + count):
                rate.factor.assign(self.rates[len(self.losses)])
                self.model.reset_metrics()
                logs = engines.run(self._engine, block, place, 1)
                self.losses.append(float(find_loss(logs)))
            if done:  # the first call also traces
                self._batch_s = (time.perf_counter() - began) / count
            first += count
            self._emit("rates")

    def _emit(self, kind: str) -> None:
        event = {"kind": kind, "step": len(self.losses), "steps": len(self.rates)}
        if self.on_event is not None and self.on_event(event) is True:
            self.interrupted = True
