"""The ways of `evidence_ways` that are TensorFlow's own."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from evidence_questions import LIMIT, PIPELINE
from evidence_ways import Given, KerasWay, Way, put_rows

from gpukeras.backend import runtime, tensor_ops


def list_peers(given: Given) -> dict[str, Callable[[], Way]]:
    """What makes the ways of Keras beside the default."""
    return {PIPELINE: lambda: PipelineWay(given)}


def list_limits(given: Given, compiled: Callable[[], bool]) -> dict[str, Callable[[], Way]]:
    """What makes the limits.

    Args:
        given: What they are made from.
        compiled: Whether XLA compiles their programs.
    """
    return {LIMIT: lambda: LimitWay(given, compiled())}


class PipelineWay(KerasWay):
    """`model.fit()` on a tf.data pipeline made as TensorFlow's guide advises."""

    def __init__(self, given: Given) -> None:
        """Makes the pipeline; its rows stay in host memory."""
        super().__init__(given)
        tf = runtime.tensorflow()
        with tf.device("/CPU:0"):
            rows = tf.data.Dataset.from_tensor_slices(given.rows)
            shuffled = rows.cache().shuffle(given.case.rows)
            self._data = shuffled.batch(given.case.batch).prefetch(tf.data.AUTOTUNE)

    def _fit(self, **options: Any) -> None:
        self.model.fit(self._data, shuffle=False, **options)  # it shuffles by itself


class LimitWay(Way):
    """The step alone, in a loop within one program, on one batch that is on the device already.

    Args:
        given: What it is made from.
        compiled: Whether XLA compiles the program.
    """

    def __init__(self, given: Given, compiled: bool) -> None:
        """Puts the batch on the device."""
        super().__init__(given)
        self._batch, self._compiled = put_rows(given, given.case.batch), compiled
        tensor_ops.build_state(self.model, self._batch)
        function = runtime.tensorflow().function
        self._program = function(self._loop, jit_compile=compiled, autograph=False)

    def warm(self, limit_s: float) -> None:
        """Traces and compiles."""
        on_cpu = self._compiled and self.given.device.startswith("CPU")
        with tensor_ops.threefry_dropout() if on_cpu else contextlib.nullcontext():
            self.train(1)

    def train(self, epochs: int) -> list[float]:
        """One call an epoch."""
        seconds = []
        for _ in range(epochs):
            began = time.perf_counter()
            self._program(*self._batch)["loss"].numpy()  # not before the device is done
            seconds.append(time.perf_counter() - began)
        return seconds

    def _loop(self, x: Any, y: Any) -> Any:
        def body(index: Any) -> tuple[Any]:
            self.model.train_step((x, y))
            return (index + 1,)

        tf = runtime.tensorflow()
        tf.while_loop(lambda index: index < self.given.case.steps, body, (tf.constant(0),))
        return self.model.get_metrics_result()

    def describe(self) -> dict[str, str]:
        """Whether XLA compiled it."""
        return {"engine": "compiled" if self._compiled else "graph_loop"}
