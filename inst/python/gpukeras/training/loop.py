"""The loop of a training: epochs, calls of the engine in each, validation, and callbacks.

    run_epochs() --> Calls.of(epoch): (first, last, target) --> Calls.run() --> EpochLoop.advance()
                 --> evaluate_rows(): the validation

One model and a stack of models are trained by the same loop: a stack has the methods of a model
that the loop calls, and calls of its own, see `many.training`.

Callbacks are told what Keras' own `fit()` and `evaluate()` tell them, in the same order. A batch
to them is a call of many batches, as with Keras' `steps_per_execution`, unless one of them works on
batches.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from gpukeras.backend import keras_private, runtime
from gpukeras.data.loader.loader import Block, DataLoader
from gpukeras.engine.epoch_loop import EpochLoop
from gpukeras.engine.programs import Logs

# Batches per call that callbacks are told of, which costs about 0.5 ms and ends a call of the
# engine.
CALL_BATCHES = 1024
MOST_CALLS = 20

Call = tuple[int, int, float]  # the first and last batch to callbacks, and the batches done then


class EpochCalls(Protocol):
    """The calls of the engine in an epoch; see `Calls`, which are those of one model."""

    def count(self) -> int | None:
        """Returns the batches of an epoch as callbacks are told of them; None if unknown."""

    def of(self, epoch: int) -> Iterator[Call]:
        """Begins an epoch, counted from 0, and yields its calls."""

    def run(self, target: float, callbacks: Sequence[Any] = ()) -> Logs | None:
        """Runs a call; returns the last logs, or None where there are no more batches."""


def run_epochs(
    model: Any,
    calls: EpochCalls,
    callbacks: Sequence[Any],
    *,
    epochs: int,
    initial_epoch: int = 0,
    evaluate: Callable[[], Logs] | None = None,
    validation_freq: int | Sequence[int] = 1,
    params: Mapping[str, Any] | None = None,
) -> None:
    """Trains a model.

    Args:
        model: A compiled model whose variables exist, or a stack of models.
        calls: The calls of the engine in an epoch.
        callbacks: All callbacks in their order. A method `on_engine_call_end(position, logs)` of
            one is called after each call of the engine.
        epochs: The epochs in all, including those before the first.
        initial_epoch: The first epoch, counted from 0, unless BackupAndRestore sets another one.
        evaluate: Evaluates the validation rows, see `evaluate_rows()`; None without them.
        validation_freq: Epochs from one validation to the next, or which are validated, from 1.
        params: What callbacks are told of the training, as by Keras; None for its epochs and calls.
    """
    keras = runtime.keras()
    params = params or {"verbose": 0, "epochs": epochs, "steps": calls.count()}
    told = keras.callbacks.CallbackList(list(callbacks), model=model, **params)
    model.stop_training = False
    told.on_train_begin()
    epoch_logs = None
    with finalizing_weights(model, epochs):
        for epoch in range(keras_private.initial_epoch(model) or initial_epoch, epochs):
            model.reset_metrics()
            told.on_epoch_begin(epoch)
            logs: Logs = {}
            for first, last, target in calls.of(epoch):
                told.on_train_batch_begin(first)
                done = calls.run(target, callbacks)
                if done is None:  # Keras too learns so that there are no more batches
                    break
                logs = done
                told.on_train_batch_end(last, logs)
                if model.stop_training:
                    break
            epoch_logs = keras_private.epoch_logs(model, logs)
            if evaluate is not None and is_validated(epoch, validation_freq):
                validated = evaluate_rows(model, evaluate, told)
                epoch_logs.update({f"val_{name}": value for name, value in validated.items()})
            told.on_epoch_end(epoch, epoch_logs)
            if model.stop_training:
                break
    told.on_train_end(epoch_logs)


@contextmanager
def finalizing_weights(model: Any, epochs: int) -> Iterator[None]:
    """Lets the optimizer finalize the weights, as with the averages of `use_ema`.

    Keras does so where its epochs have ended, and on JAX also where an error ends them.

    Args:
        model: A model, or a stack, which has the optimizers of its models.
        epochs: The epochs in all.
    """
    optimizer: Any = getattr(model, "optimizer", None)
    finalizes = isinstance(optimizer, runtime.keras().optimizers.Optimizer) and epochs > 0
    try:
        yield
    except BaseException:
        if finalizes and runtime.backend() == "jax":
            with suppress(RuntimeError):  # the call that failed has taken their arrays
                optimizer.finalize_variable_values(model.trainable_weights)
        raise
    if finalizes:
        optimizer.finalize_variable_values(model.trainable_weights)


def evaluate_rows(model: Any, evaluate: Callable[[], Logs], told: Any) -> dict[str, Any]:
    """Returns a model's loss and metrics on rows, which are one batch to callbacks.

    Args:
        model: See `run_epochs()`.
        evaluate: Evaluates all rows; returns the last logs, or none for those of the metrics.
        told: A `keras.callbacks.CallbackList`.
    """
    model.stop_evaluating = False
    told.on_test_begin()
    model.reset_metrics()
    told.on_test_batch_begin(0)
    logs = evaluate()
    told.on_test_batch_end(0, logs)
    results = keras_private.plain_logs(keras_private.epoch_logs(model, logs))
    told.on_test_end(results)
    return results


def tell_call_end(callbacks: Sequence[Any], position: int, logs: Logs) -> None:
    """Tells callbacks with a method `on_engine_call_end()` of a call of the engine."""
    for callback in callbacks:
        if hasattr(callback, "on_engine_call_end"):
            callback.on_engine_call_end(position, logs)


def limit_epochs(epochs: int) -> int:
    """Returns the epochs that `keras.config.set_max_epochs()` allows; warns as Keras does."""
    most = runtime.keras().config.max_epochs() or epochs
    if most < epochs:
        warnings.warn(f"Limiting epochs to {most}", stacklevel=2)
    return min(most, epochs)


def limit_steps(steps: int | None) -> int | None:
    """Returns the batches of an epoch that `keras.config.set_max_steps_per_epoch()` allows.

    Args:
        steps: `steps_per_epoch`, or None for a pass over the rows.
    """
    most = runtime.keras().config.max_steps_per_epoch()
    if not most or (steps is not None and steps <= most):
        return steps
    warnings.warn(f"Limiting steps_per_epoch to {most}", stacklevel=2)
    return int(most)


def is_validated(epoch: int, freq: int | Sequence[int]) -> bool:
    """Whether an epoch, counted from 0, is followed by a validation; see `run_epochs()`."""
    return (epoch + 1) % freq == 0 if isinstance(freq, int) else epoch + 1 in freq


def count_calls(steps: int | None, capacity: int = 1) -> int:
    """Returns the calls of an epoch that callbacks are told of, where none works on batches.

    Args:
        steps: Batches per epoch, or None if that is uncertain: then one call runs to its end.
        capacity: Batches per block: a call that ends within one would cost a call of the engine.
    """
    if not steps:
        return 1
    return max(1, min(MOST_CALLS, steps // CALL_BATCHES, -(-steps // max(1, capacity))))


@dataclass(frozen=True)
class Calls:
    """The calls of the engine in an epoch, as callbacks are told of them.

    Args:
        runner: Runs an epoch's blocks.
        loader: The data loader.
        open_blocks: Returns the blocks of an epoch, and the number of its batches that were done
            before this process began.
        together: Batches of a call where a callback works on batches; None where none does.
        expected: Batches of an epoch where the loader is not exact, or None if unknown.
        record: Runs the work that it is given, and returns its result.
        check: Called before callbacks are told of the end of an epoch's last call, or of each one
            where a callback works on batches, with whether no more follow.
    """

    runner: EpochLoop
    loader: DataLoader
    open_blocks: Callable[[int], tuple[Iterator[Block], int]]
    together: int | None = None
    expected: int | None = None
    record: Callable[[Callable[[], Any]], Any] = lambda work: work()
    check: Callable[[bool], None] = lambda ends: None

    def count(self) -> int | None:
        """Returns the batches of an epoch as callbacks are told of them; None if unknown."""
        exact = self.loader.steps if self.loader.exact else None
        if self.together is not None:
            return exact or self.expected
        return count_calls(exact, self.loader.capacity)

    def of(self, epoch: int) -> Iterator[Call]:
        """Begins an epoch, counted from 0, and yields its calls."""
        self.runner.begin(*self.open_blocks(epoch))
        return self._by_blocks() if self.together is None else self._by_batches(self.together)

    def run(self, target: float, callbacks: Sequence[Any] = ()) -> Logs | None:
        """Runs batches until `target` of the epoch's are done; returns the last logs.

        Args:
            target: Number of batches, counted from the start of the epoch.
            callbacks: Told of each call of the engine, see `run_epochs()`.

        Returns:
            The logs; None where a call is a batch, and there are no more.
        """
        runner, before = self.runner, self.runner.position

        def after_call(position: int, logs: Logs) -> bool:
            tell_call_end(callbacks, position, logs)
            return bool(runner.engines.model.stop_training)

        logs: Logs = self.record(partial(runner.advance, target, after_call))
        ends = runner.finished or runner.stopped
        if self.together is not None or ends:
            self.check(ends)
        ended = self.together is not None and runner.ended and runner.position == before
        # No batch is left where the checkpoint was made after the epoch's last batch.
        return None if ended else logs or runner.engines.model.get_metrics_result()

    def _by_batches(self, together: int) -> Iterator[Call]:
        runner, expected = self.runner, self.count() or math.inf
        first = runner.position // together * together
        # A stream may have more batches than were expected.
        while first < expected or (not self.loader.exact and self.record(runner.has_more)):
            yield first, first + together - 1, first + together
            first += together

    def _by_blocks(self) -> Iterator[Call]:
        """Yields calls that end where blocks do, as a cut costs a call of the engine."""
        steps, block = self.loader.steps or 0, max(1, self.loader.capacity)
        count = self.count() or 1
        for number in range(count):
            last, share = number + 1 == count, steps * (number + 1) // count
            share = share if last else round(share / block) * block
            if last or share > self.runner.position:
                yield number, number, share if self.loader.exact else math.inf
