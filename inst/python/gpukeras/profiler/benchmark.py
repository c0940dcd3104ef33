"""A training step measured as it would run: timed with its real input, on repeated rows, traced.

Blocks come from the loader that trains, steps go through the engine that trains. Only a block of
rows in sequence is smaller where rows come slowly, so that a profile of a slow source ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

from gpukeras.backend import runtime
from gpukeras.data.base import Dataset
from gpukeras.data.loading.block import DataLoader
from gpukeras.data.loading.loader import open_loader
from gpukeras.data.loading.profile import WHAT, StageClock, order_stages
from gpukeras.data.plan import BLOCK_BATCHES, PipelinePlan
from gpukeras.data.stage_timer import Clock
from gpukeras.engine.autotune import choose_count
from gpukeras.engine.engines import Engines, Logs
from gpukeras.engine.epoch_loop import Drawn, calibrate, draw, wait_for
from gpukeras.models import builder
from gpukeras.profiler.report import StageTime

PASSES = 5  # the median of five is not moved by two outliers
PASSES_S = 2.0  # of all passes: where steps are so slow, fewer do
FEWEST = 2  # passes all the same
PASS_S = 0.1  # of each, at least
PASS_BLOCKS = 2  # of each, at least: one alone could not be waited for behind the one before
DRAIN_S = 0.3  # of the input alone
ROUNDS = 3  # of traced steps, the quietest of which counts
ROUNDS_S = 1.0  # of all rounds; one alone may take longer
BLOCK_S = 0.2  # of drawing a block of rows in sequence
PROBE_BATCHES = 2  # drawn to tell how slow the source is

Tell = Callable[[str], None]


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step, untraced.

    Args:
        real_s: With its real input, as in training: that of the median pass.
        wait_s: Of these, waiting for rows while the device had nothing to do.
        repeated_s: On rows that are already on the device.
    """

    real_s: float
    wait_s: float
    repeated_s: float


class Bench:
    """One model, its rows and an engine, ready to be measured.

    Args:
        model: A compiled model whose variables exist; it is really trained.
        data: The rows.
        plan: How they reach the device.
        engine: "keras", "superstep" or "compiled".
        tell: Called with what is done now; may raise to end it.

    Attributes:
        count: Batches a call.
        step_s: About what a step takes, in seconds.
    """

    def __init__(
        self, model: Any, data: Dataset, plan: PipelinePlan, engine: str, tell: Tell
    ) -> None:
        """Opens the loader, traces and compiles the engine, and runs it until it is warm.

        Raises:
            DataError: if an epoch has no full batch.
            UntraceableError, or one of `runtime.refusals()`: if the engine cannot run the model.
        """
        self._model, self._data, self._plan, self.engine = model, data, plan, engine
        self._tell = tell
        tell("starting")
        self._loader = self._open(self._choose_most())
        self._loader.suit(engine)
        self._engines = Engines(model, "train", plan.batch_size, plan.device)
        with closing(draw(self._loader)) as blocks:
            self._block, _ = next(blocks)
        self._time(1)  # traces and compiles
        count, run_s = calibrate(self._time, self._block.batches)
        self.count, self.step_s = choose_count(run_s / count, self._block.batches), run_s / count

    def measure(self) -> StepTimes:
        """Passes with real input, each followed by one on its last rows repeated."""
        passes, began = list[StepTimes](), time.perf_counter()
        with closing(draw(self._loader)) as blocks:
            while len(passes) < PASSES:
                self._tell("measuring")
                passes.append(self._pass(blocks))
                if len(passes) >= FEWEST and time.perf_counter() - began > PASSES_S:
                    break
        repeated_s = median(each.repeated_s for each in passes)
        found = sorted(passes, key=lambda each: each.real_s)[len(passes) // 2]
        wait_s = found.wait_s
        if not self._plan.device.startswith("CPU"):  # its work goes on while the host waits
            wait_s = min(wait_s, max(0.0, found.real_s - repeated_s))
        return StepTimes(found.real_s, min(wait_s, found.real_s), repeated_s)

    def drain(self) -> tuple[float, tuple[StageTime, ...]]:
        """Seconds a batch of the input with no training beside it, and of its stages."""
        self._tell("draining the input")
        self._loader.clock = StageClock()  # not kept: the first block traces what only clocks need
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
            Marked calls of a round.
        """
        self._tell("tracing")
        tf, calls = runtime.tensorflow(), self._split_calls(steps)
        rounds = max(1, min(ROUNDS, int(ROUNDS_S / (steps * self.step_s))))
        marks = list(enumerate(calls * rounds))
        with runtime.profile(folder):
            for number, count in marks:
                with tf.profiler.experimental.Trace("train", step_num=number, _r=1):
                    logs = self._run(count)
                    if number == len(marks) - 1:  # before, a GPU's work may go on past the mark
                        wait_for(logs)
        return len(calls)

    # Input ----------------------------------------------------------------------------------------

    def _open(self, most: int) -> DataLoader:
        check = lambda recipe: builder.check_fit(self._model, recipe)  # noqa: E731
        return open_loader(self._data, self._plan, check, self._idle, most=most)

    def _idle(self) -> None:
        self._tell("waiting")

    def _choose_most(self) -> int:
        """Batches a block: as in training, but fewer where rows come slowly."""
        if self._data.source_kind == "rows":
            return BLOCK_BATCHES
        with closing(draw(self._open(PROBE_BATCHES))) as blocks:
            next(blocks)  # the first is special: buffers are filled, functions traced
            block, wait_s = next(blocks)
        return choose_count(wait_s / block.batches, BLOCK_BATCHES, BLOCK_S)

    # Steps ----------------------------------------------------------------------------------------

    def _pass(self, blocks: Drawn) -> StepTimes:
        """Steps with real input, then as many on the last block's rows.

        A block that takes long is trained in part; its waiting then counts in part.
        """
        counts, waited, unused = list[int](), 0.0, 0.0
        began = time.perf_counter()
        while time.perf_counter() - began - unused < PASS_S or len(counts) < PASS_BLOCKS:
            self._block, wait_s = next(blocks)
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
        """Batches of each traced call: single ones where training calls for each, too."""
        most = 1 if self.engine == "keras" else min(self.count, self._block.batches)
        whole, rest = divmod(steps, most)
        return [most] * whole + [rest] * bool(rest)

    def _time(self, count: int) -> float:
        self._tell("starting")
        began = time.perf_counter()
        wait_for(self._run(count))
        return time.perf_counter() - began

    def _run(self, count: int) -> Logs:
        return self._engines.run(self.engine, self._block, 0, count)


def list_stages(spent_s: Mapping[str, float], batch_s: float) -> tuple[StageTime, ...]:
    """The stages' shares of a batch: a last block is padded, so its rows are not counted.

    Args:
        spent_s: Seconds by stage.
        batch_s: Seconds of a batch, all stages.
    """
    whole = sum(spent_s.values()) or 1.0  # all but what starting an epoch takes
    return tuple(
        StageTime(stage, batch_s * spent / whole, spent / whole, WHAT[stage])
        for stage, spent in order_stages(spent_s).items()
    )
