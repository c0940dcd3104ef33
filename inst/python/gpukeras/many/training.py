"""Trains a stack by the loop of all trainings; halves it where memory runs out.

train_stack() --> StackTraining.train() --> run_epochs() --> StackTraining.run() --> Stack.train()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.errors import GpuKerasError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.core.options import Spec, check_count, check_flag, option
from gpukeras.data.arrays import epoch_order
from gpukeras.data.dataset.map_dataset import MapDataset
from gpukeras.engine import rowwise
from gpukeras.engine.programs import Logs
from gpukeras.engine.schedules import PlateauSpec
from gpukeras.many.batches import count_steps
from gpukeras.many.callbacks import (
    Divergence,
    Recording,
    StackEarlyStopping,
    StackEvents,
    StackPlateau,
    StackRates,
    StoppedError,
)
from gpukeras.many.fits import Fitted, ModelHistory, ModelProgress, Start
from gpukeras.many.futures import Futures, check_workers
from gpukeras.many.partitions import PartitionedStack, count_cores, count_partitions, split_evenly
from gpukeras.many.stack import Epoch, Stack, open_stack
from gpukeras.training.callbacks.early_stopping import EarlyStoppingSpec, parse_early_stopping
from gpukeras.training.callbacks.keras_class import as_callback
from gpukeras.training.listener import ProgressReporter
from gpukeras.training.loop import Call, run_epochs, tell_call_end


@dataclass(frozen=True)
class ManySpec(Spec):
    """Options of a training of many models.

    Args:
        epochs: Passes of each model over its training rows.
        batch_size: Rows per step of each model, or "auto": those of the dataset, or by the rows of
            the median model.
        schedule: Learning rate schedule, see `schedules`; None for the optimizers' own rates.
        early_stopping: When to stop a model; also given as its patience or options, see
            `parse_early_stopping()`. None for never.
        most: Models that train at a time, or "auto" (by memory).
        predictions: Whether the models predict the rows that they held out.
        workers: Processes that train models which do not stack, "auto", or an engine that starts
            them, see `workers.plan`.
        repeats: Whether the user gave seeds, so that no clock chooses an engine.
    """

    epochs: int = option(10, check_count)
    batch_size: str | int = option("auto", check_count)
    schedule: Mapping[str, Any] | None = None
    early_stopping: EarlyStoppingSpec | None = None
    most: str | int = option("auto", check_count)
    predictions: bool = option(True, check_flag)
    workers: str | int | Futures = option("auto", check_workers)
    repeats: bool = option(False, check_flag)

    def __post_init__(self) -> None:
        """Checks and normalises every field."""
        super().__post_init__()
        stopping: Any = self.early_stopping
        if stopping is not None and not isinstance(stopping, EarlyStoppingSpec):
            self._set(early_stopping=parse_early_stopping(stopping))

    @property
    def engine(self) -> str:
        """The engine of models that do not stack."""
        return "repeatable" if self.repeats else "auto"


@dataclass(frozen=True)
class Task:
    """What the stacks of a training share.

    Args:
        data: The rows.
        spec: The options; the epochs are those that each model is to have trained in all.
        batch_size: Rows per step of a model.
        device: Where the models are.
        listener: Hears of the progress, and says when to stop.
        after_epoch: Called after each epoch, and where the user ends one, with a function that
            reads where the models stand.
        states: Folder of the checkpoints of models that train alone; None to keep none.
        after_models: Called with what models have become, by number.
    """

    data: MapDataset
    spec: ManySpec
    batch_size: int
    device: str
    listener: ProgressReporter
    after_epoch: Callable[[Callable[[], dict[int, ModelProgress]]], None] | None = None
    states: Path | None = None
    after_models: Callable[[Mapping[int, Fitted]], None] = lambda fitted: None


class StackingError(Exception):
    """A stack fails where its models alone may not; the text says why."""


def train_stack(starts: Sequence[Start], task: Task) -> dict[int, Fitted]:
    """Trains models of one structure; those that the user's wish to stop leaves stay as they were.

    Returns:
        What each has become, by the member's number.

    Raises:
        StackingError: if the backend cannot make a program of them, or it fails.
    """
    try:
        return StackTraining(starts, task).train()
    except tensor_ops.exhausted() as error:
        if len(starts) == 1:  # `fit()` can train it in parts of a batch
            raise StackingError(find_reason(error)) from error
    except GpuKerasError:
        raise
    except Exception as error:  # whatever tracing, compiling and running raise
        raise StackingError(find_reason(error)) from error
    half = len(starts) // 2
    return train_stack(starts[:half], task) | train_stack(starts[half:], task)


def _open_stack(starts: Sequence[Start], task: Task) -> Stack | PartitionedStack:
    """Returns a stack of models, or several where a CPU has cores for them."""
    steps = task.spec.epochs * count_steps(
        max(len(start.member.train) for start in starts), task.batch_size
    )
    partitions = count_partitions(len(starts), steps, count_cores(), task.device)
    if partitions > 1:
        return PartitionedStack(
            [_open_one(starts[part], task) for part in split_evenly(len(starts), partitions)]
        )
    return _open_one(starts, task)


def _open_one(starts: Sequence[Start], task: Task) -> Stack:
    states = [start.begun.fitted.state for start in starts if start.begun is not None]
    return open_stack(
        [start.model for start in starts],
        [start.structure for start in starts],
        task.data,
        task.device,
        states=states if len(states) == len(starts) else None,
    )


def mixes_rows(model: Model) -> bool:
    """Whether what a row gives in training may depend on its batch's other rows.

    Then no row may fill up a batch.
    """
    names = {type(layer).__name__ for layer in keras_private.list_layers(model)}
    return "BatchNormalization" in names or _may_mix(model)


def _may_mix(model: Model) -> bool:
    """Whether outputs, loss or metrics of rows are not known to be the same in any batches.

    Penalties of outputs are those of all rows of a batch, also of rows that only fill it up.
    """
    layers = keras_private.list_layers(model)
    penalised = any(getattr(layer, "activity_regularizer", None) is not None for layer in layers)
    return bool(penalised or rowwise.find_unknown_layer(model) or rowwise.explain_results(model))


def _read_history(begun: ModelProgress | None) -> ModelHistory:
    """Returns the history that a model goes on with, as one that trains unless it has stopped."""
    if begun is None:
        return ModelHistory()
    history = deepcopy(begun.fitted.history)
    if history.stopped == "interrupted":
        history.stopped = ""
    return history


class StackTraining:
    """A training of a stack that is open, and the calls of its epochs, see `EpochCalls`.

    An epoch is one call to callbacks, whatever its programs.
    """

    def __init__(self, starts: Sequence[Start], task: Task) -> None:
        """Opens it.

        Args:
            starts: Where each model begins.
            task: What they share.
        """
        self._members, self._task = [start.member for start in starts], task
        self._holds_out = [len(member.held_out) > 0 for member in self._members]
        models = [start.model for start in starts]
        self._stack = _open_stack(starts, task)
        self._histories = [_read_history(start.begun) for start in starts]
        short = task.data.spec.drop_last
        steps = [count_steps(len(member.train), task.batch_size, short) for member in self._members]
        self._rates = StackRates(models, steps, task.spec.epochs, task.spec.schedule)
        # Of weights by output only some outputs may have any, which could mark rows.
        label = task.data.recipe.label
        self._batched = _may_mix(models[0]) or (label is not None and label.weighed)
        self._exact = self._batched or mixes_rows(models[0])
        self._divergence = as_callback(Divergence, self._histories)
        stopping, plateau = task.spec.early_stopping, self._rates.schedule
        directions = keras_private.metric_directions(models[0])
        self._early = stopping and as_callback(
            StackEarlyStopping, self._histories, stopping, directions
        )
        self._plateau = None
        if isinstance(plateau, PlateauSpec):
            self._plateau = as_callback(
                StackPlateau, self._histories, plateau, directions, self._rates
            )
        self._resume([start.begun for start in starts])

    def train(self) -> dict[int, Fitted]:
        """Trains, and returns what each model has become; an epoch that was ended never was."""
        task, stack = self._task, self._stack
        try:
            run_epochs(
                stack,
                self,
                self.in_order(),
                epochs=self._epochs if task.listener.stopped else task.spec.epochs,
                initial_epoch=self._epochs,
                evaluate=self._evaluate if any(self._holds_out) else None,
            )
        except StoppedError:
            stack.state = self._divergence.before
            self._tell_progress()
        return self._finish()

    def in_order(self) -> list[Any]:
        """Returns all callbacks of the training, in the order in which they run."""
        histories = self._histories
        return [
            self._divergence,  # models whose loss or weights are no numbers
            as_callback(Recording, histories, self._holds_out),
            *([self._early] if self._early else []),  # and the best states
            *([self._plateau] if self._plateau else []),
            as_callback(StackEvents, histories, self._task.listener),  # progress and interrupts
            runtime.keras().callbacks.LambdaCallback(on_epoch_end=self._end_epoch),
        ]

    def _resume(self, begun: Sequence[ModelProgress | None]) -> None:
        """Goes on from where an earlier process has left the models."""
        known = [progress for progress in begun if progress is not None]
        self._epochs = max((progress.epoch for progress in known), default=0)
        if len(known) < len(begun):
            return
        self._rates.factors = np.array([progress.factor for progress in known], np.float32)
        for name, callback in self._monitoring().items():
            callback.resume([progress.monitors.get(name) for progress in known])
        if self._early and any(progress.best for progress in known):
            best = [progress.best or progress.fitted.state for progress in known]
            self._early.best = self._stack.load(best)

    def _monitoring(self) -> dict[str, Any]:
        """Returns the callbacks that monitor a metric, by name."""
        both = {"early_stopping": self._early, "plateau": self._plateau}
        return {name: callback for name, callback in both.items() if callback}

    def _end_epoch(self, epoch: int, logs: Any = None) -> None:
        self._epochs = epoch + 1
        self._tell_progress()

    def _tell_progress(self) -> None:
        if self._task.after_epoch is not None:
            self._task.after_epoch(self._read_progress)

    def _read_progress(self) -> dict[int, ModelProgress]:
        """Returns where each model stands."""
        best: list[Any] = [None] * len(self._members)
        if self._early and self._early.best is not None:
            best = self._stack.read(self._early.best)
        return {
            number: ModelProgress(
                replace(fitted, history=deepcopy(fitted.history)),
                self._epochs,
                best=best[place] if fitted.history.best_epoch else None,
                monitors={
                    name: callback.monitors[place].get_state()
                    for name, callback in self._monitoring().items()
                },
                factor=float(self._rates.factors[place]),
            )
            for place, (number, fitted) in enumerate(self._read().items())
        }

    def count(self) -> int:
        """Returns the calls of an epoch."""
        return 1

    def of(self, epoch: int) -> Iterator[Call]:
        """Begins an epoch, counted from 0, and yields its call."""
        task, spec = self._task, self._task.data.spec
        self._epoch = Epoch(
            [
                epoch_order(
                    rows, spec.shuffle, spec.seed if member.seed is None else member.seed, epoch
                )
                for member, rows in zip(self._members, self._select("train"), strict=True)
            ],
            task.batch_size,
            self._rates.draw(self._stack.count_steps),
            epoch,
            self._exact,
            spec.drop_last,
        )
        yield 0, 0, math.inf

    def run(self, target: float, callbacks: Sequence[Any] = ()) -> Logs:
        """Trains the epoch; its logs are the stack's metrics."""
        self._stack.train(self._epoch, partial(tell_call_end, callbacks, 0, {}))
        return {}

    def _evaluate(self) -> Logs:
        """Evaluates the rows that the models hold out; the logs are the stack's metrics."""
        size = self._task.batch_size if self._batched else None
        self._stack.evaluate(self._select("held_out"), size, self._batched)
        return {}

    def _select(self, part: str) -> list[np.ndarray]:
        """Returns the rows of each model's part; none for one that rests."""
        pairs = zip(self._members, self._histories, strict=True)
        return [
            getattr(member, part)[: 0 if history.stopped else None] for member, history in pairs
        ]

    def _finish(self) -> dict[int, Fitted]:
        stack, task = self._stack, self._task
        if self._early:
            self._early.restore_best()
        if self._rates.schedule is not None:  # it was this training's only
            stack.set_rates(self._rates.own)
        held = [member.held_out for member in self._members]
        wanted = [task.spec.predictions and history.epochs > 0 for history in self._histories]
        outputs: list[Any] = [None] * len(held)
        if any(part and len(rows) for part, rows in zip(wanted, held, strict=True)):
            pairs = zip(wanted, stack.predict(held), strict=True)
            outputs = [each if part else None for part, each in pairs]
        for history in self._histories:
            history.stopped = history.stopped or (
                "interrupted" if task.listener.stopped else "completed"
            )
        return self._read(outputs)

    def _read(self, outputs: Sequence[Any] = ()) -> dict[int, Fitted]:
        """Returns what each model is now, with its outputs for the rows that it held out."""
        rest = outputs or [None] * len(self._members)
        parts = zip(self._members, self._histories, self._stack.read(), rest, strict=True)
        return {member.number: Fitted(*each) for member, *each in parts}
