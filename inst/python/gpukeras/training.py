"""Fitting.

gpukeras trains through Keras' own `fit()`: callbacks, metrics, validation and history stay Keras'.
Keras counts a few ticks an epoch; at each tick its train function, which is ours, runs the
epoch's batches up to the tick's share through the engine.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import truediv
from typing import Any

from . import models, runtime
from .choosing import Chooser, EngineChoice, choose_candidates
from .engine import Engines, Logs, Runner, read_engine_facts
from .errors import DataError, OutOfMemoryError, SpecError
from .feeding import has_rows, open_feed, sample_rows
from .inference import (
    SAMPLE,
    EvaluationLoop,
    build_variables,
    endless_ticks,
    order_metrics,
    own_functions,
    ticks,
)
from .pipeline import Dataset
from .plans import PipelinePlan
from .predicting import model_device
from .recipes import Recipe
from .specs import FitSpec, describe
from .streams.dataset import StreamDataset

EVENT_S = 0.2  # seconds between events: smooth for eyes, free for the device
TICK_BATCHES = 256  # batches Keras counts as one, as with its own `steps_per_execution`
MAX_TICKS = 20
EXPECTED_STEPS = 500  # an epoch of unknown length, when it is decided which engines are tried

AnyDataset = Dataset | StreamDataset
OnEvent = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class FitReport:
    """What a training did.

    Args:
        history: Each metric's value after each epoch.
        epochs: Epochs finished.
        rows: Rows trained in all.
        elapsed_s: Seconds in all, tracing and compiling included.
        epoch_s: Seconds of each epoch, validation included.
        samples_per_s: Rows a second in the fastest epoch.
        input_share: Share of the time spent waiting for rows.
        device: Where the model's first variable is.
        variables: How many of the model's variables each device holds: where it ran.
        precision: Keras' dtype policy of the model.
        peak_bytes: Most that TensorFlow held of the GPU's memory in this training, or None on the
            CPU.
        engine: The engine that trained, why, and what was measured.
        stopped: "completed", "early" (by a callback) or "interrupted".
        plan: How the rows reached the device.
    """

    history: dict[str, list[float]]
    epochs: int
    rows: int
    elapsed_s: float
    epoch_s: list[float]
    samples_per_s: float
    input_share: float
    device: str
    variables: dict[str, int]
    precision: str
    peak_bytes: float | None
    engine: EngineChoice
    stopped: str
    plan: PipelinePlan


def fit(
    model: Any,
    data: AnyDataset,
    options: Mapping[str, Any],
    validation: AnyDataset | None = None,
    batch_size: int | str | None = None,
    callbacks: Sequence[Any] = (),
    on_event: OnEvent | None = None,
) -> FitReport:
    """Trains a model in place.

    Args:
        model: A compiled Keras model.
        data: The rows; its own validation rows are used unless `validation` is given.
        options: Fields of `FitSpec`.
        validation: Rows to validate on, encoded as `data` is.
        batch_size: Replaces the dataset's own.
        callbacks: Keras callbacks.
        on_event: Called at most every 0.2 s and after each epoch with a plain dict; a true answer
            stops the training cleanly.

    Raises:
        SpecError, DataError, ModelError: for input that does not fit, before anything is trained.
        OutOfMemoryError: if the device's memory is exhausted.
    """
    spec = FitSpec.from_dict(options)
    models.check_model(model)
    models.check_rows(model, data)
    if validation is not None:
        _check_validation(model, data, validation)
    _check_callbacks(callbacks)
    models.tie_recipe(model, data.recipe)
    job = _Job(model, data, validation, spec, batch_size, callbacks, on_event)
    with own_functions(model), _memory_errors(job):
        return job.run()


# Fitting -----------------------------------------------------------------------------------------


@dataclass
class _Job:
    """One training in progress: Keras calls back into it at ticks and epochs."""

    model: Any
    data: AnyDataset
    validation: AnyDataset | None
    spec: FitSpec
    batch_size: int | str | None
    callbacks: Sequence[Any]
    on_event: OnEvent | None
    epoch: int = 0
    tick: int = 0
    ticks: int | None = 1
    stopped: str = "completed"
    epoch_s: list[float] = field(default_factory=list)
    epoch_rows: list[int] = field(default_factory=list)
    _last_event: float = 0.0

    def run(self) -> FitReport:
        """Trains and reports."""
        began = time.perf_counter()
        self._prepare()
        try:
            self._fit()
        except KeyboardInterrupt:
            self.stopped = "interrupted"
        return self._report(time.perf_counter() - began)

    def _prepare(self) -> None:
        build_variables(self.model, sample_rows(self.data, SAMPLE))
        self.device = model_device(self.model)
        _reset_peak(self.device)
        self.plan = self.data.plan(self.device, self.batch_size)
        self.feed = open_feed(self.data, self.plan, self._check_labels, self._idle)
        steps = self.feed.steps or EXPECTED_STEPS
        facts = read_engine_facts(self.model, self.spec.engine, self.callbacks)
        self.ticks = choose_ticks(self.feed.steps, self.feed.exact, bool(facts.batch_hook))
        candidates, reason = choose_candidates(facts)
        self.runner = Runner(
            Engines(self.model, "train", self.plan.batch_size, self.device),
            Chooser(candidates, steps * self.spec.epochs, reason),
            self._after_call,
        )
        self.model.train_function = self._on_tick
        self.model.history = None  # not the one of an earlier training, should this one not start

    def _fit(self) -> None:
        hook = runtime.keras().callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: self._begin_epoch(epoch),
            on_epoch_end=lambda epoch, logs: self._end_epoch(epoch, logs),
        )
        validation = self._validation_loop()
        with warnings.catch_warnings():
            # An epoch of unknown length ends so, and nothing is wrong.
            warnings.filterwarnings("ignore", "Your input ran out of data")
            self.model.fit(
                endless_ticks() if self.ticks is None else ticks(self.ticks),
                epochs=self.spec.epochs,
                verbose=0,
                shuffle=False,
                callbacks=[*self.callbacks, hook],
                validation_data=None if validation is None else ticks(1),
            )
        if self.stopped == "completed" and len(self.epoch_s) < self.spec.epochs:
            self.stopped = "early"

    def _validation_loop(self) -> EvaluationLoop | None:
        source = self.data if self.validation is None else self.validation
        part = "validation" if self.validation is None else "all"
        if not has_rows(source, part):
            return None
        loop = EvaluationLoop(
            self.model,
            source,
            part,
            self.device,
            self.spec.epochs,
            wanted=self.spec.engine,
            idle=self._idle,
        )
        self.model.test_function = loop
        return loop

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch, self.tick, self._began = epoch, 0, time.perf_counter()
        self.runner.begin(self.feed.epoch(epoch))

    def _on_tick(self, iterator: Any) -> Logs:
        """Keras' train function: runs the batches up to this tick's share of the epoch.

        Raises:
            StopIteration: where a tick is a batch and there are no more.
        """
        self.tick += 1
        if self.ticks is None:
            logs = self.runner.advance(self.tick)
            if self.runner.ended:
                raise StopIteration
            return logs
        if not self.feed.exact:
            return self.runner.advance()
        return self.runner.advance((self.feed.steps or 0) * self.tick // self.ticks)

    def _check_labels(self, recipe: Recipe) -> None:
        models.check_fit(self.model, recipe)

    def _idle(self) -> None:
        """Rows are waited for: an interrupt may come in."""
        late = time.perf_counter() - self._last_event > EVENT_S
        if late and self._send("waiting", step=self.runner.position, metrics={}):
            raise KeyboardInterrupt

    def _after_call(self, position: int, logs: Logs) -> bool:
        if time.perf_counter() - self._last_event < EVENT_S:
            return bool(self.model.stop_training)
        loss = {"loss": float(logs["loss"])} if "loss" in logs else {}
        return self._send("progress", step=position, metrics=loss)

    def _end_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        self.epoch_s.append(time.perf_counter() - self._began)
        # An epoch that was stopped half-way must not count as a fast one.
        self.epoch_rows.append(self.runner.rows)
        logs = logs or {}
        metrics = {name: float(logs[name]) for name in order_metrics(logs)}
        self._send("epoch", step=self.runner.position, metrics=metrics)

    def _send(self, kind: str, step: int, metrics: dict[str, float]) -> bool:
        """Tells the listener; true when training is to stop."""
        self._last_event = time.perf_counter()
        event = {
            "kind": kind,
            "epoch": self.epoch + 1,
            "epochs": self.spec.epochs,
            "step": step,
            "steps": self.feed.steps,
            "metrics": metrics,
        }
        if self.on_event is not None and self.on_event(event) is True:
            self.stopped = "interrupted"
            self.model.stop_training = True
        return bool(self.model.stop_training)

    def _report(self, elapsed_s: float) -> FitReport:
        history = getattr(self.model.history, "history", {})
        epochs = min([len(self.epoch_s), *(len(values) for values in history.values())])
        epoch_s = self.epoch_s[:epochs]  # an interrupt may come between an epoch and its record
        return FitReport(
            history={name: [float(v) for v in history[name]] for name in order_metrics(history)},
            epochs=epochs,
            rows=sum(self.epoch_rows[:epochs]),
            elapsed_s=elapsed_s,
            epoch_s=epoch_s,
            samples_per_s=max(map(truediv, self.epoch_rows, epoch_s), default=0.0),
            input_share=min(1.0, self.feed.wait_s / elapsed_s),
            device=self.device,
            variables=dict(Counter(runtime.variable_devices(self.model))),
            precision=self.model.dtype_policy.name,
            peak_bytes=_peak_bytes(self.device),
            engine=self.runner.chooser.finish(),
            stopped=self.stopped,
            plan=self.feed.settle(self.plan),
        )


def choose_ticks(steps: int | None, exact: bool = True, each: bool = False) -> int | None:
    """Ticks an epoch: what Keras and its callbacks see as batches.

    Args:
        steps: Batches an epoch, or None if that is unknown.
        exact: Whether it is known for certain; else an epoch is one tick, and runs to its end.
        each: Whether a callback must see every batch.

    Returns:
        Their number, or None for one a batch until there are no more.
    """
    if each:
        return steps if exact else None
    return max(1, min(MAX_TICKS, (steps or 1) // TICK_BATCHES)) if exact else 1


def _check_callbacks(callbacks: Sequence[Any]) -> None:
    for callback in callbacks:
        if not isinstance(callback, runtime.keras().callbacks.Callback):
            raise SpecError(
                f"`callbacks` must hold Keras callbacks, not {describe(callback)}.",
                arg="callbacks",
            )


def _check_validation(model: Any, data: AnyDataset, validation: AnyDataset) -> None:
    models.check_rows(model, validation, "validation")
    if not models.same_encoding(data.recipe, validation.recipe):
        raise DataError(
            "`validation` was encoded by its own means and levels, not by those of `data`.",
            hint="Pass the data frame or matrix itself, or use gpu_dataset(recipe = ).",
            arg="validation",
        )


@contextmanager
def _memory_errors(job: _Job) -> Iterator[None]:
    try:
        yield
    except runtime.tensorflow().errors.ResourceExhaustedError as error:
        batch_size = getattr(getattr(job, "plan", None), "batch_size", None)
        device = getattr(job, "device", "the device")
        raise OutOfMemoryError(
            f"{device} ran out of memory at batch size {batch_size}.",
            hint='Use a smaller `batch_size`, or gpu_dataset(cache = "host").',
            device=device,
            batch_size=batch_size,
        ) from error


def _reset_peak(device: str) -> None:
    if not device.startswith("CPU"):
        runtime.reset_memory_peak(device)


def _peak_bytes(device: str) -> float | None:
    if device.startswith("CPU"):
        return None
    return float(runtime.memory_info(device)["peak"])
