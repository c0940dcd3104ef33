"""The ways of `evidence_ways` that are JAX's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from evidence_questions import BARE, LIMIT, STEPS
from evidence_ways import Given, KerasWay, Way, put_rows
from steps_search import choose_best, set_steps, time_steps

from gpukeras.backend import tensor_ops
from gpukeras.backend.jax_module import jax
from gpukeras.backend.jax_state import find_variables


def list_peers(given: Given) -> dict[str, Callable[[], Way]]:
    """What makes the ways of Keras beside the default."""
    return {STEPS: lambda: StepsWay(given)}


def list_limits(given: Given, compiled: Callable[[], bool]) -> dict[str, Callable[[], Way]]:
    """What makes the limits.

    Args:
        given: What they are made from.
        compiled: Of no effect: XLA compiles all programs.
    """
    limits: dict[str, Callable[[], Way]] = {LIMIT: lambda: LimitWay(given)}
    bare = given.case.model == "dense_small" and given.case.precision == "float32"
    return {**limits, BARE: lambda: BareWay(given)} if bare and not given.case.loops else limits


class StepsWay(KerasWay):
    """Plain `model.fit()` with the `steps_per_execution` that is fastest."""

    def warm(self, limit_s: float) -> None:
        """Searches it, as far as the time goes."""
        end = time.perf_counter() + limit_s

        def train(steps: int, epochs: int) -> list[float]:
            set_steps(self.model, steps)
            return self.train(epochs)

        steps = self.given.case.steps
        self._found = time_steps(train, steps, lambda: time.perf_counter() > end)
        self._best = choose_best(self._found)
        train(self._best, 1)

    def describe(self) -> dict[str, Any]:
        """What was found, and seconds of an epoch by candidate."""
        return {"steps": self._best, "searched": self._found}


class LimitWay(Way):
    """Keras' step alone, in one `lax.scan`, on one batch that is on the device already."""

    def __init__(self, given: Given) -> None:
        """Puts the batch on the device."""
        super().__init__(given)
        self._batch = put_rows(given, given.case.batch)
        tensor_ops.build_state(self.model, self._batch)
        state = find_variables(self.model, "train").read()
        # Copies: their memory is given to the program, and that of the variables stays.
        self._state = jax().tree.map(lambda value: tensor_ops.put(value + 0, given.device), state)
        self._program = jax().jit(self._loop, donate_argnums=0)

    def warm(self, limit_s: float) -> None:
        """Traces and compiles."""
        self.train(1)

    def train(self, epochs: int) -> list[float]:
        """One call an epoch."""
        seconds = []
        for _ in range(epochs):
            began = time.perf_counter()
            losses, self._state = self._program(self._state, self._batch)
            tensor_ops.wait(losses)
            seconds.append(time.perf_counter() - began)
        return seconds

    def _loop(self, state: Any, batch: Any) -> Any:
        def body(state: Any, _: Any) -> Any:
            logs, after = self.model.train_step(state, batch)
            after = tuple(map(list, after))
            return jax().tree.map(lambda new, old: new.astype(old.dtype), after, state), logs

        state, logs = jax().lax.scan(body, state, length=self.given.case.steps)
        return jax().tree.map(lambda values: values[-1], logs), state

    def describe(self) -> dict[str, Any]:
        """XLA compiles it."""
        return {"engine": "compiled"}


class BareWay(Way):
    """The same network without Keras: one gather and one `lax.scan` an epoch."""

    def __init__(self, given: Given) -> None:
        """Puts the rows on the device."""
        from bench_limit_jax import BareLoop

        super().__init__(given)
        with tensor_ops.device_scope(given.device):
            self._loop = BareLoop(*given.rows, given.case.batch, dropout=0.1, metrics=True)

    def warm(self, limit_s: float) -> None:
        """Traces and compiles."""
        self.train(1)

    def train(self, epochs: int) -> list[float]:
        """One call an epoch."""
        return [self._loop.epoch()[0] for _ in range(epochs)]

    def describe(self) -> dict[str, Any]:
        """XLA compiles it."""
        return {"engine": "compiled"}
