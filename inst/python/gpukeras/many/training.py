"""Trains a stack: its epochs, histories and early stopping, halved where memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, tensor_ops
from gpukeras.core.errors import GpuKerasError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import find_reason
from gpukeras.data.arrays import epoch_order
from gpukeras.data.dataset import MapDataset
from gpukeras.engine import rowwise
from gpukeras.engine.lr_tables import draw_rates_at, parse_schedule
from gpukeras.engine.optimizer import count_steps as count_done
from gpukeras.engine.optimizer import read_own_rate, read_rate
from gpukeras.many.batches import count_steps
from gpukeras.many.fits import Fitted, Start
from gpukeras.many.histories import begin_histories, record_epoch
from gpukeras.many.partitions import PartitionedStack, count_cores, count_partitions, split_evenly
from gpukeras.many.stack import Epoch, Stack, StoppedError, open_stack
from gpukeras.training.callbacks.early_stopping import EarlyStoppingSpec
from gpukeras.training.listener import ProgressReporter


@dataclass(frozen=True)
class Task:
    """What the stacks of a training share.

    Args:
        data: The rows.
        epochs: Epochs that each model is to have trained in all.
        batch_size: Rows per step of a model.
        device: Where the models are.
        listener: Hears of the progress, and says when to stop.
        first_epoch: Epochs that the given states have trained already.
        stopping: When to stop a model early; None for never.
        schedule: Learning rate schedule, see `lr_tables`; None for the optimizers' own rates.
        predictions: Whether the models predict the rows that they held out.
        engine: The engine of models that do not stack.
        after_epoch: Called after each epoch with a function that reads what the models have become.
    """

    data: MapDataset
    epochs: int
    batch_size: int
    device: str
    listener: ProgressReporter
    first_epoch: int = 0
    stopping: EarlyStoppingSpec | None = None
    schedule: Mapping[str, Any] | None = None
    predictions: bool = True
    engine: str = "auto"
    after_epoch: Callable[[Callable[[], dict[int, Fitted]]], None] | None = None


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
        return _train_together(starts, task)
    except tensor_ops.exhausted() as error:
        if len(starts) == 1:  # `fit()` can train it in parts of a batch
            raise StackingError(find_reason(error)) from error
    except GpuKerasError:
        raise
    except Exception as error:  # whatever tracing, compiling and running raise
        raise StackingError(find_reason(error)) from error
    half = len(starts) // 2
    return train_stack(starts[:half], task) | train_stack(starts[half:], task)


def _train_together(starts: Sequence[Start], task: Task) -> dict[int, Fitted]:
    training = _Training(starts, task)
    for epoch in range(task.first_epoch, task.epochs):
        if task.listener.stopped or not training.going:
            break
        training.run(epoch)
        if task.after_epoch is not None:
            task.after_epoch(training.read)
    return training.finish()


def _open_stack(starts: Sequence[Start], task: Task) -> Stack | PartitionedStack:
    """Returns a stack of models, or several where a CPU has cores for them."""
    steps = task.epochs * count_steps(max(len(one.member.train) for one in starts), task.batch_size)
    partitions = count_partitions(len(starts), steps, count_cores(), task.device)
    if partitions > 1:
        return PartitionedStack(
            [_open_one(starts[part], task) for part in split_evenly(len(starts), partitions)]
        )
    return _open_one(starts, task)


def _open_one(starts: Sequence[Start], task: Task) -> Stack:
    given = [one.state for one in starts]
    return open_stack(
        [one.model for one in starts],
        [one.structure for one in starts],
        task.data,
        task.device,
        states=None if None in given else [one for one in given if one is not None],
    )


def mixes_rows(model: Model) -> bool:
    """Whether what a row gives in training may depend on its batch's other rows.

    Then no row may fill up a batch.
    """
    names = {type(layer).__name__ for layer in keras_private.list_layers(model)}
    return "BatchNormalization" in names or _may_mix(model)


def _may_mix(model: Model) -> bool:
    """Whether outputs, loss or metrics of rows are not known to be the same in any batches."""
    return bool(rowwise.find_unknown_layer(model) or rowwise.explain_results(model))


class _Training:
    """The training of a stack."""

    def __init__(self, starts: Sequence[Start], task: Task) -> None:
        """Starts before the first epoch."""
        self._members, self._task = [one.member for one in starts], task
        self._stack = _open_stack(starts, task)
        self._histories = begin_histories(len(starts), task.stopping)
        self._best: Any = self._stack.state
        models = [one.model for one in starts]
        self._exact, self._batched = mixes_rows(models[0]), _may_mix(models[0])
        self._models, self._first = models, [read_rate(model) for model in models]
        self._schedule = None if task.schedule is None else parse_schedule(task.schedule)
        short = task.data.spec.drop_last
        self._steps = [count_steps(len(one.train), task.batch_size, short) for one in self._members]
        self._began = np.array([count_done(model) for model in models])
        self._epoch = 0

    @property
    def going(self) -> bool:
        """Whether some model still trains."""
        return any(not one.stopped for one in self._histories)

    def run(self, epoch: int) -> None:
        """Trains an epoch, from 0; one that the user ends in the middle has never been."""
        before: Any = self._stack.state
        done = self._stack.count_steps()
        self._epoch = epoch
        try:
            logs = self._train(epoch)
        except StoppedError:
            self._stack.state = before
            return
        stuck = self._stack.are_stuck()
        if stuck.any():
            logs["loss"] = np.where(stuck, np.nan, logs["loss"])
        training = [not one.stopped for one in self._histories]
        verdict = record_epoch(self._histories, logs, epoch + 1, self._task.stopping)
        self._record_steps(np.flatnonzero(training), done)
        if verdict.failed.any():
            self._stack.state = self._stack.keep(~verdict.failed, before)
        self._best = self._stack.keep(verdict.better, self._best)
        mean = {name: float(np.nanmean(values)) for name, values in logs.items() if values.ndim < 2}
        self._task.listener.emit("epoch", epoch + 1, 0, None, mean)

    def finish(self) -> dict[int, Fitted]:
        """Returns what each model has become."""
        stack, end = self._stack, "interrupted" if self._task.listener.stopped else "completed"
        stack.state = self._best
        if self._schedule is not None:  # it was this training's only
            stack.set_rates(self._first)
        held = [one.held_out for one in self._members]
        trained = any(one.epochs for one in self._histories)
        wanted = self._task.predictions and trained and any(map(len, held))
        outputs = stack.predict(held) if wanted else [None] * len(held)
        for one in self._histories:
            one.stopped = one.stopped or end
        return self.read(outputs)

    def read(self, outputs: Sequence[Any] = ()) -> dict[int, Fitted]:
        """Returns what each model is now, with its outputs for the rows that it held out."""
        rest = outputs or [None] * len(self._members)
        found = zip(self._members, self._histories, self._stack.read(), rest, strict=True)
        return {member.number: Fitted(*each) for member, *each in found}

    def _train(self, epoch: int) -> dict[str, np.ndarray]:
        stack, task, places = self._stack, self._task, range(len(self._members))
        inputs = Epoch(
            [self._order(place, epoch) for place in places],
            task.batch_size,
            self._draw_rates(),
            epoch,
            self._exact,
            task.data.spec.drop_last,
        )
        logs = stack.train(inputs, self._stops)
        if any(len(one.held_out) for one in self._members):
            size = task.batch_size if self._batched else None
            held = stack.evaluate([self._held(place) for place in places], size, self._batched)
            logs |= {f"val_{name}": values for name, values in held.items()}
        return logs

    def _stops(self) -> bool:
        listener = self._task.listener
        return listener.due and listener.emit("waiting", self._epoch + 1, 0, None, {})

    def _order(self, place: int, epoch: int) -> np.ndarray:
        """Returns a model's rows in an epoch's order; none for one that rests."""
        member, spec = self._members[place], self._task.data.spec
        if self._histories[place].stopped:
            return member.train[:0]
        seed = spec.seed if member.seed is None else member.seed
        return epoch_order(member.train, spec.shuffle, seed, epoch)

    def _held(self, place: int) -> np.ndarray:
        rows = self._members[place].held_out
        return rows[:0] if self._histories[place].stopped else rows

    def _draw_rates(self) -> np.ndarray | None:
        """Returns the rates of each model's next steps, (models, steps), or None."""
        if self._schedule is None:
            return None
        rates = np.zeros((len(self._steps), max(self._steps)), np.float32)
        for place, done in enumerate(self._stack.count_steps() - self._began):
            steps = self._steps[place]
            rates[place, :steps] = self._read_rates(place, done + np.arange(steps))
        return rates

    def _read_rates(self, place: int, at: np.ndarray) -> np.ndarray:
        """Returns the rates of some of a model's steps, counted from the training's start."""
        steps, first = self._steps[place], self._first[place]
        if self._schedule is None:
            optimizer = keras_private.without_scaling(self._models[place].optimizer)
            return np.array([read_own_rate(optimizer, int(self._began[place] + one)) for one in at])
        return draw_rates_at(self._schedule, first, at, steps * self._task.epochs, steps)

    def _record_steps(self, trained: np.ndarray, before: np.ndarray) -> None:
        """Records, of the models that trained an epoch, its last rate and the steps left out.

        Args:
            trained: The models' places.
            before: The steps of each model's optimizer before the epoch.
        """
        after = self._stack.count_steps()
        for place in trained:
            own, done = self._histories[place], int(after[place] - self._began[place])
            if keras_private.scales_loss(self._models[place].optimizer):
                own.skipped += self._steps[place] - int(after[place] - before[place])
            if own.epochs > len(own.rates):
                own.rates += self._read_rates(place, np.array([max(0, done - 1)])).tolist()
