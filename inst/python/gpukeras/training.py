"""Fitting, evaluating and predicting.

gpukeras trains through Keras' own `fit()`: callbacks, metrics, validation and history stay Keras'.
Keras counts a few ticks an epoch; at each tick its train function, which is ours, runs the
epoch's batches up to the tick's share through the engine.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import devices, models, runtime
from .arrays import aligned_empty
from .engine import (
    Chooser,
    EngineChoice,
    EngineFacts,
    Engines,
    Logs,
    Runner,
    choose_candidates,
    first_line,
)
from .errors import DataError, ModelError, OutOfMemoryError
from .pipeline import Dataset, Feed, PipelinePlan
from .recipes import Recipe, bake, decode
from .specs import FitSpec, check_choice

EVENT_S = 0.2  # seconds between events: smooth for eyes, free for the device
TICK_BATCHES = 256  # batches Keras counts as one, as with its own `steps_per_execution`
MAX_TICKS = 20
BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")

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
        device: Where the model's variables are.
        precision: Keras' dtype policy of the model.
        peak_bytes: Peak of the GPU allocator, or None on the CPU.
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
    precision: str
    peak_bytes: float | None
    engine: EngineChoice
    stopped: str
    plan: PipelinePlan


def fit(
    model: Any,
    data: Dataset,
    options: Mapping[str, Any],
    validation: Dataset | None = None,
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
    models.check_fit(model, data.recipe)
    if validation is not None:
        _check_validation(data, validation)
    models.tie_recipe(model, data.recipe)
    job = _Job(model, data, validation, spec, batch_size, callbacks, on_event)
    with _own_functions(model), _memory_errors(job):
        return job.run()


def evaluate(
    model: Any, data: Dataset, part: str = "all", batch_size: int | None = None
) -> dict[str, Any]:
    """A model's loss and metrics on rows.

    Args:
        model: A compiled Keras model.
        data: The rows, encoded as those that trained the model.
        part: "all", "train" or "validation".
        batch_size: Rows a batch, or None for large ones.

    Returns:
        `{metrics, rows, elapsed_s}`.
    """
    check_choice("part", part, ("all", "train", "validation"))
    models.check_model(model)
    models.check_fit(model, data.recipe)
    models.check_encoding(model, data.recipe)
    rows = data.rows(part)
    if len(rows) == 0:
        raise DataError("`data` has no validation rows.", arg="part")
    began = time.perf_counter()
    _build(model, data)
    with _own_functions(model):
        loop = _TestLoop(model, data, rows, _model_device(model), epochs=1, rows_a_batch=batch_size)
        model.test_function = loop
        metrics = model.evaluate(_ticks(1), verbose=0, return_dict=True)
    elapsed_s = time.perf_counter() - began
    return {"metrics": metrics, "rows": len(rows), "elapsed_s": elapsed_s}


def predict(
    model: Any,
    features: Mapping[str, Any] | None = None,
    data: Dataset | None = None,
    type: str = "response",  # noqa: A002 (R's name for it)
) -> dict[str, Any]:
    """A model's predictions in the labels' own terms, rows in the order given.

    Args:
        model: A Keras model; need not be compiled.
        features: New rows, encoded by the recipe tied to the model if there is one.
        data: Or a dataset, whose rows are taken in their original order.
        type: "response" or "class".

    Returns:
        See `recipes.decode`.
    """
    check_choice("type", type, ("response", "class"))
    recipe = models.recipe_of(model)
    if data is not None:
        models.check_encoding(model, data.recipe)
        recipe, staged = recipe or data.recipe, data.arrays[0]
    else:
        staged = bake(recipe or _plain_recipe(features or {}), features or {}, "newdata")
    if recipe is not None:
        models.check_input(model, recipe)
    output = _predict_rows(model, staged)
    return decode(recipe and recipe.label, output, type == "class")


# Fitting -----------------------------------------------------------------------------------------


@dataclass
class _Job:
    """One training in progress: Keras calls back into it at ticks and epochs."""

    model: Any
    data: Dataset
    validation: Dataset | None
    spec: FitSpec
    batch_size: int | str | None
    callbacks: Sequence[Any]
    on_event: OnEvent | None
    epoch: int = 0
    tick: int = 0
    ticks: int = 1
    stopped: str = "completed"
    epoch_s: list[float] = field(default_factory=list)
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
        _build(self.model, self.data)
        self.device = _model_device(self.model)
        self.plan = self.data.plan(self.device, self.batch_size)
        steps, batch_size = self.plan.steps_per_epoch, self.plan.batch_size
        self.feed = Feed(self.data, self.plan, batch_size, max(1, self.plan.rows // batch_size))
        facts = self._engine_facts()
        self.ticks = steps if facts.batch_hook else choose_ticks(steps)
        candidates, reason = choose_candidates(facts)
        self.runner = Runner(
            Engines(self.model, "train", batch_size, self.device),
            Chooser(candidates, steps * self.spec.epochs, reason),
            self._after_call,
        )
        self.model.train_function = self._on_tick

    def _engine_facts(self) -> EngineFacts:
        setup = devices.current()
        return EngineFacts(
            wanted=self.spec.engine,
            jit=setup.jit,
            model_jit=runtime.allows_xla(self.model),
            eager=bool(self.model.run_eagerly),
            deterministic=setup.deterministic,
            batch_hook=find_batch_hook(self.callbacks),
            own_function=runtime.overrides(self.model, "make_train_function"),
        )

    def _fit(self) -> None:
        hook = runtime.keras().callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: self._begin_epoch(epoch),
            on_epoch_end=lambda epoch, logs: self._end_epoch(epoch, logs),
        )
        validation = self._validation_loop()
        self.model.fit(
            _ticks(self.ticks),
            epochs=self.spec.epochs,
            verbose=0,
            shuffle=False,
            callbacks=[*self.callbacks, hook],
            validation_data=None if validation is None else _ticks(1),
        )
        if self.stopped == "completed" and len(self.epoch_s) < self.spec.epochs:
            self.stopped = "early"

    def _validation_loop(self) -> _TestLoop | None:
        source = self.validation or self.data
        rows = source.rows("all" if self.validation is not None else "validation")
        if len(rows) == 0:
            return None
        loop = _TestLoop(
            self.model, source, rows, self.device, self.spec.epochs, wanted=self.spec.engine
        )
        self.model.test_function = loop
        return loop

    def _begin_epoch(self, epoch: int) -> None:
        self.epoch, self.tick, self._began = epoch, 0, time.perf_counter()
        self.runner.begin(self.feed.blocks(self.data.order(epoch)))

    def _on_tick(self, iterator: Any) -> Logs:
        """Keras' train function: runs the batches up to this tick's share of the epoch."""
        self.tick += 1
        return self.runner.advance(self.plan.steps_per_epoch * self.tick // self.ticks)

    def _after_call(self, position: int, logs: Logs) -> bool:
        if time.perf_counter() - self._last_event < EVENT_S:
            return bool(self.model.stop_training)
        loss = {"loss": float(logs["loss"])} if "loss" in logs else {}
        return self._send("progress", step=position, metrics=loss)

    def _end_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        self.epoch_s.append(time.perf_counter() - self._began)
        metrics = {name: float(value) for name, value in (logs or {}).items()}
        self._send("epoch", step=self.runner.position, metrics=metrics)

    def _send(self, kind: str, step: int, metrics: dict[str, float]) -> bool:
        """Tells the listener; true when training is to stop."""
        self._last_event = time.perf_counter()
        event = {
            "kind": kind,
            "epoch": self.epoch + 1,
            "epochs": self.spec.epochs,
            "step": step,
            "steps": self.plan.steps_per_epoch,
            "metrics": metrics,
        }
        if self.on_event is not None and self.on_event(event) is True:
            self.stopped = "interrupted"
            self.model.stop_training = True
        return bool(self.model.stop_training)

    def _report(self, elapsed_s: float) -> FitReport:
        history = getattr(self.model.history, "history", {}) or {}
        fastest = min(self.epoch_s, default=elapsed_s)
        epochs = len(self.epoch_s)
        return FitReport(
            history={name: [float(v) for v in values] for name, values in history.items()},
            epochs=epochs,
            rows=epochs * self.plan.rows,
            elapsed_s=elapsed_s,
            epoch_s=self.epoch_s,
            samples_per_s=self.plan.rows / fastest if epochs else 0.0,
            input_share=min(1.0, self.feed.wait_s / elapsed_s),
            device=self.device,
            precision=self.model.dtype_policy.name,
            peak_bytes=_peak_bytes(self.device),
            engine=self.runner.chooser.finish(),
            stopped=self.stopped,
            plan=self.plan,
        )


class _TestLoop:
    """Keras' test function: evaluates all rows in one tick, in large batches."""

    def __init__(
        self,
        model: Any,
        data: Dataset,
        rows: np.ndarray,
        device: str,
        epochs: int,
        wanted: str = "auto",
        rows_a_batch: int | None = None,
    ) -> None:
        plan = data.plan(device, "auto")
        size = rows_a_batch or models.evaluation_rows(32, data.row_bytes, len(rows))
        self._rows, self._steps = rows, math.ceil(len(rows) / size)
        self._feed = Feed(data, plan, size, max(1, len(rows) // size))
        engines = Engines(model, "test", size, device)
        alone = ("keras",) if model.run_eagerly else () if wanted == "auto" else (wanted,)
        chooser = Chooser(alone or ("superstep", "compiled"), self._steps * epochs, "as asked")
        self._runner = Runner(engines, chooser)

    def __call__(self, iterator: Any) -> Logs:
        self._runner.begin(self._feed.blocks(self._rows))
        return self._runner.advance(self._steps)


def choose_ticks(steps: int) -> int:
    """Ticks an epoch: what Keras and its callbacks see as batches."""
    return max(1, min(MAX_TICKS, steps // TICK_BATCHES))


def find_batch_hook(callbacks: Sequence[Any]) -> str:
    """The name of the first callback, not Keras' own, that works on every batch; or ""."""
    base = runtime.keras().callbacks.Callback
    for callback in callbacks:
        lambdas = isinstance(callback, runtime.keras().callbacks.LambdaCallback)
        if type(callback).__module__.startswith("keras.") and not lambdas:
            continue  # Keras' own know of several batches a call (`steps_per_execution`)
        for hook in BATCH_HOOKS:
            method = getattr(callback, hook)
            if getattr(method, "__func__", method) is not getattr(base, hook):
                return type(callback).__name__
    return ""


def _ticks(count: int) -> Any:
    return runtime.tensorflow().data.Dataset.range(count)


def _check_validation(data: Dataset, validation: Dataset) -> None:
    if not models.same_encoding(data.recipe, validation.recipe):
        raise DataError(
            "`validation` was encoded by its own means and levels, not by those of `data`.",
            hint="Pass the data frame or matrix itself, or use gpu_dataset(recipe = ).",
            arg="validation",
        )


def _build(model: Any, data: Dataset) -> None:
    """Creates the variables of the model, its metrics and its optimizer."""
    try:
        runtime.build_state(model, data.batch(min(32, len(data.arrays[0]))))
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"Keras cannot build the model on this data: {first_line(error)}",
            hint="Check the layers' shapes against the data's columns.",
            arg="model",
        ) from error


@contextmanager
def _own_functions(model: Any) -> Iterator[None]:
    """Gives Keras its functions and settings back, so that its own fit() works as before."""
    steps = model.steps_per_execution
    model.steps_per_execution = 1
    try:
        yield
    finally:
        model.steps_per_execution = steps
        model.train_function = model.test_function = None


@contextmanager
def _memory_errors(job: _Job) -> Iterator[None]:
    try:
        yield
    except runtime.tensorflow().errors.ResourceExhaustedError as error:
        batch_size = getattr(getattr(job, "plan", None), "batch_size", None)
        device = getattr(job, "device", "the device")
        raise OutOfMemoryError(
            f"{device} ran out of memory at batch size {batch_size}.",
            hint="Use a smaller `batch_size`, or gpu_dataset(cache = \"host\").",
            device=device,
            batch_size=batch_size,
        ) from error


def _model_device(model: Any) -> str:
    names = runtime.variable_devices(model)
    return names[0] if names else "CPU:0"


def _peak_bytes(device: str) -> float | None:
    if device.startswith("CPU"):
        return None
    return float(runtime.memory_info(device)["peak"])


# Predicting --------------------------------------------------------------------------------------


def _plain_recipe(features: Mapping[str, Any]) -> Recipe:
    if features["kind"] != "array":
        raise DataError(
            "`newdata` is a data frame, but `model` was not trained by gpukeras on one.",
            hint="Pass a numeric matrix.",
            arg="newdata",
        )
    return Recipe("array", tuple(features["values"].shape[1:]))


def _predict_rows(model: Any, staged: np.ndarray) -> np.ndarray:
    """Runs all rows through the model in large batches."""
    tf = runtime.tensorflow()
    size = models.evaluation_rows(32, staged[:1].nbytes, len(staged))
    function = tf.function(model.predict_step, reduce_retracing=True)
    output: np.ndarray | None = None
    for start in range(0, len(staged), size):
        values = function((tf.constant(staged[start : start + size]),)).numpy()
        if output is None:
            output = aligned_empty((len(staged), *values.shape[1:]), values.dtype)
        output[start : start + size] = values
    return output
