"""Searches the batch size that keeps the device busy, by measuring on real batches.

Batch sizes double. At each size, after a first call that traces and places ops, the engine that
would train runs for some 0.2 s; the median throughput is recorded. The search ends when memory is
full, throughput stops growing, or the rows end. The model is restored afterwards. A larger batch
makes fewer updates per epoch and changes the result of training: throughput is not accuracy, so by
default an epoch keeps ten updates.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from gpukeras.backend import devices, tensor_ops
from gpukeras.backend.oom import explain_exhaustion
from gpukeras.core.errors import OutOfMemoryError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.memory import aligned_empty
from gpukeras.core.options import ENGINES, Spec, check_choice, check_count, check_number, option
from gpukeras.core.progress import OnEvent
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.loader.loader import Block, open_loader
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.engine.autotune import choose_candidates
from gpukeras.engine.batch_rows import model_device
from gpukeras.engine.engine_cache import make_engines
from gpukeras.engine.engine_facts import read_engine_facts
from gpukeras.engine.engines import Engines
from gpukeras.engine.epoch_loop import calibrate, draw, wait_for
from gpukeras.engine.refusals import (
    engine_refusals,
    explain_inability,
    is_inability,
    raise_explained,
)
from gpukeras.models import model_checks, model_recipes
from gpukeras.training.batch_size import remember_batch_size
from gpukeras.training.keras_functions import build_on
from gpukeras.training.model_guard import kept_model
from gpukeras.tuner.knee import FULL, Point, choose_knee, choose_sizes, explain_choice, is_flat

SMALLEST = 32  # Keras' own default, where the search starts
UPDATES = 10  # fewest per epoch, if `to` is not given
STREAM_ROWS = 2**20  # of a stream of unknown length
MEASURE_S = 0.2  # of the calls of a size, at least
LONGEST_S = 1.0  # the calls of a size end here even with fewer than `SAMPLES`
SAMPLES = 3


@dataclass(frozen=True)
class BatchSearchSpec(Spec):
    """Options of a search.

    Args:
        low: R's `from`, the first size; None for 32, or all rows if they are fewer.
        high: R's `to`, the largest size; None for the largest that leaves ten updates per epoch
            (with `until = "memory"`: for all rows).
        until: "knee" stops when throughput stops growing, "memory" continues until memory is full.
        engine: As in `FitSpec`; "auto" is the graph loop, or the only engine that can train the
            model.
        seconds: Time limit of the whole search; a size that has begun is finished.
    """

    low: int | None = option(None, check_count, arg="from")
    high: int | None = option(None, check_count, arg="to")
    until: str = option("knee", check_choice, ("knee", "memory"))
    engine: str = option("auto", check_choice, ENGINES)
    seconds: float = option(20.0, check_number, 0.0)

    def __post_init__(self) -> None:
        """Checks and normalizes every field."""
        super().__post_init__()
        if self.high is not None:
            check_count("to", self.high, self.low or 1)


@dataclass(frozen=True)
class BatchSearch:
    """The result of a search.

    Args:
        points: One per size, in order.
        recommended: The smallest size with 90 % of the best throughput; None if none was measured.
        largest: The largest size that ran.
        reason: Why that size, and why the search ended.
        stopped: "flat", "memory", "rows", "to", "time" or "interrupted".
        device: The model's device.
        engine: The engine that trained.
        engine_reason: Why that engine was chosen.
        samples: The rows it trained on.
        elapsed_s: Seconds in total.
    """

    points: tuple[Point, ...]
    recommended: int | None
    largest: int | None
    reason: str
    stopped: str
    device: str
    engine: str
    engine_reason: str
    samples: str
    elapsed_s: float


def find_batch_size(
    model: Model, data: Dataset, options: Mapping[str, Any], on_event: OnEvent | None = None
) -> BatchSearch:
    """Measures throughput over batch sizes; the model is always restored.

    Weights, optimizer, metrics and random state are restored. A model that was not built is built.
    For a sequential source the first chunk is repeated and no more rows are read, so the search
    measures the device, not the source.

    Args:
        model: A compiled Keras model.
        data: The dataset.
        options: Fields of `BatchSearchSpec`.
        on_event: Called after each size, and at most every 0.05 s in between, with a plain dict of
            `kind` ("size" or "waiting") and a size's figures; if it returns True, the search ends.

    Raises:
        SpecError, DataError, ModelError: for input that does not fit.
        OutOfMemoryError: if the first size does not fit.
    """
    began = time.perf_counter()
    spec = BatchSearchSpec.from_dict(options)
    model_checks.check_model(model)
    model_checks.check_rows(model, data)
    model_recipes.check_encoding(model, data.recipe)
    build_on(model, data)
    search = _open_search(model, data, spec, on_event)
    with kept_model(model):
        stopped = search.run(began)
    report = search.report(stopped, time.perf_counter() - began)
    if report.recommended is not None and stopped != "interrupted":
        remember_batch_size(model, report.recommended)
    return report


# Searching ---------------------------------------------------------------------------------------


@dataclass
class _Search:
    """A search in progress."""

    model: Model
    data: MapDataset
    sizes: list[int]
    ends: str
    spec: BatchSearchSpec
    engine: str
    engine_reason: str
    samples: str
    on_event: OnEvent | None
    points: list[Point] = field(default_factory=list)

    def run(self, began: float) -> str:
        """Measures size after size; returns why the search ended."""
        self.device = model_device(self.model)
        spent = 0.0
        for size in self.sizes:
            start = time.perf_counter()
            if self.points and start - began + spent > self.spec.seconds:
                return "time"
            try:
                self.points.append(self._measure(size))
            except _Interrupted:
                return "interrupted"
            spent = time.perf_counter() - start
            ended = self._judge()
            if ended:
                return ended
        return self.ends

    def report(self, stopped: str, elapsed_s: float) -> BatchSearch:
        """Returns the result of the search."""
        fits = [point.batch_size for point in self.points if point.rows_per_s is not None]
        return BatchSearch(
            points=tuple(self.points),
            recommended=choose_knee(self.points),
            largest=fits[-1] if fits else None,
            reason=explain_choice(self.points, stopped),
            stopped=stopped,
            device=self.device,
            engine=self.engine,
            engine_reason=self.engine_reason,
            samples=self.samples,
            elapsed_s=elapsed_s,
        )

    def _judge(self) -> str:
        """Returns why to stop after the last size, or ""."""
        last = self.points[-1]
        told = self._emit("size", **vars(last))
        if last.status == FULL:
            if len(self.points) == 1:
                raise _too_large(self.device, last.batch_size)
            return "memory"
        if self.spec.until == "knee" and is_flat(self.points):
            return "flat"
        return "interrupted" if told else ""

    def _measure(self, size: int) -> Point:
        before = devices.reset_peak(self.device)
        try:
            rate = self._measure_rate(size)
        except tensor_ops.exhausted(MemoryError):
            return Point(size, None, None, FULL)
        except engine_refusals() as error:
            if not is_inability(error, self.engine):
                raise_explained(self.model, error)
            raise explain_inability(self.engine, error) from error
        return Point(size, rate, devices.peak_bytes(self.device, before))

    def _measure_rate(self, size: int) -> float:
        """Returns rows per second: the median over blocks, the gathering of rows included."""
        loader = open_loader(self.data, self.data.plan(self.device, size))
        engines = make_engines(self.model, "train", size, self.device)
        blocks = draw(loader)
        block, _ = next(blocks)
        self._time(engines, block, 1)  # traces and places ops
        count, _ = calibrate(engines, self.engine, block, partial(self._time, engines, block))
        rates: list[float] = []
        total_s = 0.0
        while total_s < MEASURE_S or (len(rates) < SAMPLES and total_s < LONGEST_S):
            block, wait_s = next(blocks)
            if block.batches < count:
                continue  # an epoch's last block: its call would be too short
            run_s = self._time(engines, block, count)
            rates.append(count * size / (run_s + wait_s * count / block.batches))
            total_s += run_s + wait_s
        blocks.close()
        return median(rates)

    def _time(self, engines: Engines, block: Block, count: int) -> float:
        """Returns the seconds of a call, the device's work included."""
        if self._emit("waiting"):
            raise _Interrupted
        began = time.perf_counter()
        wait_for(engines.run(self.engine, block, 0, count))
        return time.perf_counter() - began

    def _emit(self, kind: str, **figures: Any) -> bool:
        event = {"kind": kind, **figures}
        return self.on_event is not None and self.on_event(event) is True


class _Interrupted(Exception):
    """Raised when `on_event` ends the search."""


# What is searched --------------------------------------------------------------------------------


def _open_search(
    model: Model, data: Dataset, spec: BatchSearchSpec, on_event: OnEvent | None
) -> _Search:
    facts = read_engine_facts(model, spec.engine)
    engine, why = choose_engine(*choose_candidates(facts))
    rows, samples = data.epoch_rows or STREAM_ROWS, "its own rows"
    if not isinstance(data, MapDataset):
        held = len(data.sources[0])
        data, samples = repeat_head(data, rows), f"its first {held:,} rows, repeated"
    low, high, ends = choose_range(spec, rows)
    return _Search(model, data, choose_sizes(low, high), ends, spec, engine, why, samples, on_event)


def choose_engine(candidates: tuple[str, ...], alone: str) -> tuple[str, str]:
    """Returns the engine to measure with: the graph loop if it can: it starts within 0.4 s.

    Args:
        candidates: The engines that can train the model.
        alone: Why there is only one, or "".
    """
    if len(candidates) == 1:
        return candidates[0], alone
    return "graph_loop", "the cheapest to start of those that train many batches a call"


def choose_range(spec: BatchSearchSpec, rows: int) -> tuple[int, int, str]:
    """Returns the first and the last size, and the reason to report if the last one is reached.

    Raises:
        SpecError: if `from` is more than the rows.
    """
    low = min(SMALLEST, rows) if spec.low is None else spec.low
    if low > rows:
        raise SpecError(
            f"`from` is {low}, more than the {rows} training rows.",
            hint=f"Use at most {rows}.",
            arg="from",
        )
    if spec.high is not None:
        high, ends = min(spec.high, rows), "to" if spec.high <= rows else "rows"
        return min(low, high), high, ends
    most = rows if spec.until == "memory" else rows // UPDATES
    return low, max(low, most), "rows"


def repeat_head(data: Dataset, rows: int) -> MapDataset:
    """Returns sequential data as a map dataset: the rows in memory, repeated to `rows` rows."""
    held = len(data.sources[0])
    copies = []
    for source in data.sources:
        copies.append(aligned_empty(source.shape, source.dtype))
        copies[-1][...] = source.gather(slice(None))
    made = MapDataset(
        tuple(MemoryRows(copy) for copy in copies),
        data.recipe,
        replace(data.spec, batch_size="auto", drop_last=False),
        np.resize(np.arange(held, dtype=np.int32), rows),
        np.empty(0, np.int32),
    )
    made.augment, made.map = data.augment, data.map
    return made


def _too_large(device: str, batch_size: int) -> OutOfMemoryError:
    return explain_exhaustion(device, batch_size, "Start with a smaller `from`.", ", the first")
