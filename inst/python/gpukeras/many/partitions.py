"""Divides a stack among the cores of a CPU: each partition is a stack that trains in a thread.

A product of small matrices, one for each model, keeps one core busy only, so a program of XLA's
trains 50 models no faster on two cores than on one. The programs of several partitions run side by
side; on a GPU there is one partition.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from itertools import repeat
from typing import Any, TypeVar

import numpy as np

from gpukeras.backend import runtime
from gpukeras.many.stack import Check, Epoch, ModelState, Orders, Stack
from gpukeras.many.step import State
from gpukeras.system.host import count_workers

LEAST = 8  # models of a partition: what a step costs besides its models, they share
POLL_S = 0.1  # between two questions whether the user wants to stop
UNEVEN_STEPS = 20_000  # of all models: then a program for each of two sizes is worth its seconds

Result = TypeVar("Result")


class EndedError(Exception):
    """Another partition failed, or the epoch was ended."""


def count_partitions(models: int, steps: int, cores: int, device: str) -> int:
    """Returns how many partitions train a stack.

    Args:
        models: Models of the stack.
        steps: Steps of each model.
        cores: Cores that this process may use.
        device: Where they train.
    """
    most = min(cores, models // LEAST)
    if not device.startswith("CPU") or most < 2:
        return 1
    even = next(partitions for partitions in range(most, 0, -1) if models % partitions == 0)
    return most if 2 * even <= most and models * steps >= UNEVEN_STEPS else even


def count_cores() -> int:
    """Returns the cores that stacks may use: those of this process, or as many as it was set to."""
    return min(count_workers(), runtime.threads()[0] or count_workers())


def split_evenly(models: int, partitions: int) -> list[slice]:
    """Returns the models of each partition; sizes differ by one at most, larger ones come first."""
    ends = [models * partition // partitions for partition in range(partitions + 1)]
    sizes = sorted((end - start for start, end in zip(ends, ends[1:], strict=False)), reverse=True)
    starts = np.cumsum([0, *sizes]).tolist()
    return [slice(start, end) for start, end in zip(starts, starts[1:], strict=False)]


class PartitionedStack:
    """Stacks that train side by side, with the methods of one stack of all their models.

    Args:
        stacks: The stacks.
    """

    stop_training = stop_evaluating = False

    def __init__(self, stacks: Sequence[Stack]) -> None:
        """Starts no thread yet."""
        self._stacks = list(stacks)
        self._slices: list[slice] = []
        for stack in stacks:
            start = self._slices[-1].stop if self._slices else 0
            self._slices.append(slice(start, start + stack.size))

    @property
    def state(self) -> list[State]:
        """The state of each partition."""
        return [stack.state for stack in self._stacks]

    @state.setter
    def state(self, states: Sequence[State]) -> None:
        for stack, state in zip(self._stacks, states, strict=True):
            stack.state = state

    def train(self, epoch: Epoch, check: Check = lambda: None) -> None:
        """Trains an epoch, see `Stack.train()`; `check()` is called in this thread."""
        self._map(lambda stack, part, ends: stack.train(epoch.part(part), ends), check)

    def evaluate(self, orders: Orders, batch_size: int | None = None, exact: bool = False) -> None:
        """Updates the metrics of each model, see `Stack.evaluate()`."""
        self._map(lambda stack, part, _: stack.evaluate(orders[part], batch_size, exact))

    def get_metrics_result(self) -> dict[str, np.ndarray]:
        """Returns the loss and the metrics of each model, see `Stack.get_metrics_result()`."""
        logs = [stack.get_metrics_result() for stack in self._stacks]
        return {name: np.concatenate([part[name] for part in logs]) for name in logs[0]}

    def reset_metrics(self) -> None:
        """Resets the metrics."""
        for stack in self._stacks:
            stack.reset_metrics()

    def predict(self, orders: Orders) -> list[Any]:
        """Returns each model's outputs for its rows, see `Stack.predict()`."""
        parts = self._map(lambda stack, part, _: stack.predict(orders[part]))
        return [outputs for part in parts for outputs in part]

    def copy_state(self) -> list[State]:
        """Returns a copy of the state of each partition, see `Stack.copy_state()`."""
        return [stack.copy_state() for stack in self._stacks]

    def keep(self, better: np.ndarray, before: Sequence[State] | None) -> list[State]:
        """Returns a copy of the state of now where `better`, and of that of before for others."""
        parts = zip(self._stacks, self._slices, before or repeat(None), strict=False)
        return [stack.keep(better[part], old) for stack, part, old in parts]

    def set_rates(self, rates: Sequence[float]) -> None:
        """Gives each model's optimizer a learning rate."""
        for stack, part in zip(self._stacks, self._slices, strict=True):
            stack.set_rates(rates[part])

    def count_steps(self) -> np.ndarray:
        """Returns the steps that each model's optimizer has done, see `Stack.count_steps()`."""
        return np.concatenate([stack.count_steps() for stack in self._stacks])

    def are_stuck(self) -> np.ndarray:
        """Whether loss scaling lets each model train no more, see `Stack.are_stuck()`."""
        return np.concatenate([stack.are_stuck() for stack in self._stacks])

    def are_finite(self) -> np.ndarray:
        """Whether each model's weights are finite, see `Stack.are_finite()`."""
        return np.concatenate([stack.are_finite() for stack in self._stacks])

    def load(self, states: Sequence[ModelState]) -> list[State]:
        """Returns a state of each partition from one of each model."""
        parts = zip(self._stacks, self._slices, strict=True)
        return [stack.load(states[part]) for stack, part in parts]

    def read(self, states: Sequence[State] | None = None) -> list[ModelState]:
        """Returns each model's state as NumPy arrays, see `Stack.read()`."""
        pairs = zip(self._stacks, states or repeat(None), strict=False)
        return [state for stack, own in pairs for state in stack.read(own)]

    def _map(
        self, work: Callable[[Stack, slice, Check], Result], check: Check = lambda: None
    ) -> list[Result]:
        """Returns what a function makes of each stack, in threads; the first error ends all."""
        ending = threading.Event()

        def ends() -> None:
            if ending.is_set():
                raise EndedError

        with ThreadPoolExecutor(len(self._stacks), thread_name_prefix="gpukeras-partition") as pool:
            parts = zip(self._stacks, self._slices, strict=True)
            futures = [pool.submit(work, stack, part, ends) for stack, part in parts]
            try:
                _await(futures, check)
            finally:  # an interrupt too: the pool waits for its threads
                ending.set()
        _raise_first([future.exception() for future in futures])
        return [future.result() for future in futures]


def _await(futures: Sequence[Future[Result]], check: Check) -> None:
    """Waits for threads, up to the first error, and now and then calls a function."""
    while True:
        done, left = wait(futures, POLL_S, FIRST_EXCEPTION)
        if not left or any(future.exception() for future in done):
            return
        check()


def _raise_first(errors: Sequence[BaseException | None]) -> None:
    """Raises the first error; that other threads were ended is none where one failed."""
    raised = [error for error in errors if error is not None]
    raised.sort(key=lambda error: isinstance(error, EndedError))
    if raised:
        raise raised[0]
