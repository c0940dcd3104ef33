"""Measures a training step: timed with its real input, on repeated rows, and traced.

The blocks come from the loader that trains, and the engine that trains runs the steps. There is one
difference: a sequential block is smaller if the source is slow, so that profiling a slow source
ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from gpukeras.backend import tensor_ops, tracing
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.loader.loader import DataLoader, open_loader
from gpukeras.data.loader.profile import WHAT, StageClock, order_stages
from gpukeras.data.plan import STREAM_BLOCK_BATCHES, PipelinePlan
from gpukeras.data.stage_timer import Clock
from gpukeras.engine.autotune import choose_count
from gpukeras.engine.engine_cache import make_engines
from gpukeras.engine.epoch_loop import Drawn, calibrate, draw, wait_for
from gpukeras.engine.programs import Logs
from gpukeras.models import compatibility
from gpukeras.profiler.report import StageTime

PASSES = 5  # the median of five is not moved by two outliers
PASSES_S = 2.0  # of all passes: with slow steps fewer passes are run
FEWEST = 2  # passes at least
PASS_S = 0.1  # of each pass, at least
PASS_BLOCKS = 2  # of each pass, at least: a single block cannot be loaded behind the one before it
DRAIN_S = 0.3  # of the input alone
ROUNDS = 3  # of traced steps; the fastest counts
ROUNDS_S = 1.0  # of all rounds; a single round may take longer
BLOCK_S = 0.2  # of drawing one sequential block
PROBE_BATCHES = 2  # drawn to measure how slow the source is

Emit = Callable[[str], None]


@dataclass(frozen=True)
class StepTimes:
    """Untraced seconds of a step.

    Args:
        real_s: With its real input, as in training: that of the median pass.
        wait_s: The part of `real_s` spent waiting for rows while the device was idle.
        repeated_s: On rows that are already on the device.
    """

    real_s: float
    wait_s: float
    repeated_s: float


class Bench:
    """A model, its dataset and an engine, ready to be measured.

    Args:
        model: A compiled model whose variables exist; measuring trains it.
        data: The dataset.
        plan: How the rows reach the device.
        engine: "keras", "graph_loop" or "compiled".
        emit: Called with the name of the current phase; it may raise to end the measurement.

    Attributes:
        count: Batches per call.
        step_s: Approximate seconds of a step.
    """

    def __init__(
        self, model: Model, data: Dataset, plan: PipelinePlan, engine: str, emit: Emit
    ) -> None:
        """Opens the loader, traces and compiles the engine, and runs it until it is warm.

        Args:
            model: The model.
            data: The dataset.
            plan: How the rows reach the device.
            engine: The engine.
            emit: Called with the name of the current phase.

        Raises:
            DataError: if an epoch has no full batch.
            UntraceableError, or one of `tensor_ops.refusals()`: if the engine cannot run the model.
        """
        self._model, self._data, self._plan, self.engine = model, data, plan, engine
        self._emit = emit
        emit("starting")
        self._loader = self._open(self._choose_most())
        self._engines = make_engines(model, "train", plan.batch_size, plan.device)
        with closing(draw(self._loader)) as blocks:
            self._block, _ = next(blocks)
        self._time(1)  # traces and compiles
        count, run_s = calibrate(self._engines, engine, self._block, self._time)
        self.step_s = run_s / count
        self._known = self._engines.knows_count(engine)
        self.count = count if self._known else choose_count(self.step_s, self._block.batches)

    def measure(self) -> StepTimes:
        """Runs passes with real input, each followed by a pass that repeats its last rows."""
        passes, began = list[StepTimes](), time.perf_counter()
        with closing(draw(self._loader)) as blocks:
            while len(passes) < PASSES:
                self._emit("measuring")
                passes.append(self._pass(blocks))
                if len(passes) >= FEWEST and time.perf_counter() - began > PASSES_S:
                    break
        repeated_s = median(each.repeated_s for each in passes)
        middle = sorted(passes, key=lambda each: each.real_s)[len(passes) // 2]
        wait_s = middle.wait_s
        if tensor_ops.returns_early(self._plan.device):  # it computes on while the host waits
            wait_s = min(wait_s, max(0.0, middle.real_s - repeated_s))
        return StepTimes(middle.real_s, min(wait_s, middle.real_s), repeated_s)

    def drain(self) -> tuple[float, tuple[StageTime, ...]]:
        """Returns the seconds per batch of the input without training, in total and by stage."""
        self._emit("draining the input")
        self._loader.clock = StageClock()  # discarded: the first block traces functions for clocks
        batches = 0
        try:
            with closing(draw(self._loader)) as blocks:
                next(blocks)
                clock, began = StageClock(), time.perf_counter()
                self._loader.clock = clock
                while not batches or time.perf_counter() - began < DRAIN_S:
                    batches += next(blocks)[0].batches
                alone_s = (time.perf_counter() - began) / batches
        finally:
            self._loader.clock = Clock()
        return alone_s, list_stages(clock.spent_s, alone_s)

    def trace(self, folder: str, steps: int) -> int:
        """Traces rounds of steps on repeated rows: each call is marked, none waits for input.

        Returns:
            Marked calls per round.
        """
        self._emit("tracing")
        calls = self._split_calls(steps)
        for count in set(calls):
            self._engines.warm(self._block, self.engine, count)
        rounds = max(1, min(ROUNDS, int(ROUNDS_S / (steps * self.step_s))))
        marks = list(enumerate(calls * rounds))
        with tracing.profile(folder):
            for number, count in marks:
                with tracing.mark_step(number):
                    logs = self._run(count)
                    if (number + 1) % len(calls) == 0:  # earlier, a call may compute past its mark
                        wait_for(logs)
        return len(calls)

    # Input ----------------------------------------------------------------------------------------

    def _open(self, most: int | None) -> DataLoader:
        check = lambda recipe: compatibility.check_fit(self._model, recipe)  # noqa: E731
        return open_loader(self._data, self._plan, check, self._idle, most=most)

    def _idle(self) -> None:
        self._emit("waiting")

    def _choose_most(self) -> int | None:
        """Returns the batches per block: as in training, but fewer if the source is slow."""
        if self._data.source_kind == "rows":
            return None
        with closing(draw(self._open(PROBE_BATCHES))) as blocks:
            next(blocks)  # the first block is slower: it fills buffers and traces functions
            block, wait_s = next(blocks)
        return choose_count(wait_s / block.batches, STREAM_BLOCK_BATCHES, BLOCK_S)

    # Steps ----------------------------------------------------------------------------------------

    def _pass(self, blocks: Drawn) -> StepTimes:
        """Runs steps with real input, then as many on the last block's rows.

        A block that takes long is trained in part; its waiting time then counts in proportion.
        """
        counts, waited, unused = list[int](), 0.0, 0.0
        began = time.perf_counter()
        while time.perf_counter() - began - unused < PASS_S or len(counts) < PASS_BLOCKS:
            block, wait_s = next(blocks)
            if self._known and block.batches < self.count:
                unused += wait_s  # an epoch's last block: its call would need a program of its own
                continue
            self._block = block
            counts.append(min(self.count, self._block.batches))
            part = counts[-1] / self._block.batches
            waited, unused = waited + part * wait_s, unused + (1.0 - part) * wait_s
            logs = self._run(counts[-1])
        wait_for(logs)
        real_s = time.perf_counter() - began - unused
        began = time.perf_counter()
        for count in counts:
            logs = self._run(min(count, self._block.batches))
        wait_for(logs)
        repeated_s = time.perf_counter() - began
        again = sum(min(count, self._block.batches) for count in counts)
        return StepTimes(real_s / sum(counts), waited / sum(counts), repeated_s / again)

    def _split_calls(self, steps: int) -> list[int]:
        """Returns the batches of each traced call: one each if training makes a call per batch."""
        most = 1 if self.engine == "keras" else min(self.count, self._block.batches)
        whole, rest = divmod(steps, most)
        return [most] * whole + [rest] * bool(rest)

    def _time(self, count: int) -> float:
        self._emit("starting")
        began = time.perf_counter()
        wait_for(self._run(count))
        return time.perf_counter() - began

    def _run(self, count: int) -> Logs:
        return self._engines.run(self.engine, self._block, 0, count)


def list_stages(spent_s: Mapping[str, float], batch_s: float) -> tuple[StageTime, ...]:
    """Returns the stages' shares of a batch, without the padding rows of a last block.

    Args:
        spent_s: Seconds by stage.
        batch_s: Seconds of a batch, all stages.
    """
    whole = sum(spent_s.values()) or 1.0  # without the time to start an epoch
    return tuple(
        StageTime(stage, batch_s * spent / whole, spent / whole, WHAT[stage])
        for stage, spent in order_stages(spent_s).items()
    )
