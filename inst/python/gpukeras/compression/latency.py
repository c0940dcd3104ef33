"""Measures the latency of a prediction: the compiled call alone, as a server would run it.

The timed work is one call of the model as a program of the backend, until its outputs are in host
memory; the input is already on the device. Models are timed in turns, and every other round in
reverse order, so that other load on the computer affects all of them alike.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import cpp_log, devices, runtime, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.engine.batch_rows import model_device

WARM_UPS = 5
LEAST_RUNS = 30  # fewer do not give a 95th percentile
MOST_RUNS = 300
BUDGET_S = 1.0  # for the runs of one model with one batch, once the least number of runs is done

Call = Callable[[], Any]


@dataclass(frozen=True)
class Latency:
    """Times of single predictions.

    Args:
        rows: Rows of the batch.
        median_s: Median of the runs, seconds.
        p95_s: Their 95th percentile, seconds.
        runs: Number of timed runs, after warming up.
    """

    rows: int
    median_s: float
    p95_s: float
    runs: int


def measure_latencies(models: Sequence[Any], batches: Sequence[Any], rows: int) -> list[Latency]:
    """Times several models in turns.

    Args:
        models: Built Keras models.
        batches: Input of each model: tensors of `rows` rows in the model's own structure.
        rows: Rows of the batch.
    """
    calls = [open_call(model, batch) for model, batch in zip(models, batches, strict=True)]
    for call in calls:
        for _ in range(WARM_UPS):
            call()
    return [summarize(times, rows) for times in _take_turns(calls)]


def open_call(model: Model, batch: Any) -> Call:
    """Returns a function that predicts a batch and waits for the outputs.

    XLA compiles it if it compiles the model (and the session allows it), unless XLA refuses the
    model.
    """
    device = model_device(model)
    batch = runtime.tree().map_structure(lambda rows: tensor_ops.put(rows, device), batch)
    compiled = bool(getattr(model, "jit_compile", False)) and devices.current().jit is not False
    call = _trace(model, batch, compiled)
    try:
        with cpp_log.muted_cpp_log():
            call()
    except tensor_ops.refusals():
        if not compiled:
            raise
        call = _trace(model, batch, False)
    return call


def _trace(model: Model, batch: Any, compiled: bool) -> Call:
    predict, nest = tensor_ops.predictor(model, compiled), runtime.tree()
    return lambda: [np.asarray(output) for output in nest.flatten(predict(batch))]


def _take_turns(calls: Sequence[Call]) -> list[list[float]]:
    """Returns the seconds of each call's runs."""
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    began = time.perf_counter()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for done in range(MOST_RUNS):
            if done >= LEAST_RUNS and time.perf_counter() - began > BUDGET_S * len(calls):
                break
            for place in order if done % 2 == 0 else order[::-1]:
                start = time.perf_counter()
                calls[place]()
                times[place].append(time.perf_counter() - start)
    finally:
        if enabled:
            gc.enable()
    return times


def summarize(times: Sequence[float], rows: int) -> Latency:
    """Returns median and 95th percentile of run times."""
    median, p95 = np.percentile(times, [50, 95])
    return Latency(rows, float(median), float(p95), len(times))
