"""The engines of a training on several devices: the same loop, each batch split over replicas.

"graph_loop" loops over many batches inside a graph; "keras" makes one call per batch, for callbacks
that must see each. XLA compiles programs for one device, so there is no "compiled" engine here.
"""

from __future__ import annotations

from typing import Any

from gpukeras.backend import runtime, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.loader.loader import Block
from gpukeras.distributed.replicated_step import ReplicatedStep
from gpukeras.engine.engines import Engines
from gpukeras.engine.programs import Logs


class ReplicatedEngines(Engines):
    """The engines of one model on several devices.

    Args:
        model: A compiled Keras model whose variables are copied to each device.
        kind: "train" or "test".
        batch_size: Rows per batch, on all devices together.
        device: The first of the devices.
        step: The step.
    """

    _step: ReplicatedStep

    def __init__(
        self, model: Model, kind: str, batch_size: int, device: str, step: ReplicatedStep
    ) -> None:
        """Starts without traced functions."""
        super().__init__(model, kind, step.shares.count_part(batch_size), device, step)
        tf = runtime.tensorflow()
        self._one = tf.function(self._run_once, autograph=False)

    def run_tail(self, engine: str, block: Block) -> Logs:
        """Runs the short last batch of an epoch."""
        return self._one(block.arrays, block.rows)

    def _take_function(self, step: Any) -> None:
        """Does nothing: Keras' own function does not split a batch over replicas."""

    def _run_keras(self, block: Block, first: int, count: int) -> Logs:
        logs: Logs = {}
        for index in range(first, first + count):
            start = runtime.tensorflow().constant(index * self.batch_size)
            logs = self._one(self._step.cut(block.arrays, start, self.batch_size), 0)
        return logs

    def _run_once(self, batches: Any, rows: int) -> Logs:
        """Traced: a single batch; `rows` is the number of rows of a short last batch."""
        self._step.begin()
        logs = self._step(batches, rows)
        self._step.end()
        return self._step.read_logs(logs)

    def _program(
        self, arrays: Any, first: Any, count: Any, size: Any = None, *, asks: bool = True
    ) -> Logs:
        """Traced: steps over batches `first` to `first + count`, whose size does not change."""
        more = tensor_ops.overrides(self.model, f"{self._kind}_step")
        logs: Logs = {}
        self._step.begin()
        self._loop(arrays, first, count - int(more), self.batch_size, asks)
        if more:  # a user's own step may log more than the metrics
            logs = self._step(self._batch(arrays, first + count - 1, self.batch_size))
        self._step.end()
        return self._step.read_logs(logs)

    def _batch(self, arrays: Any, index: Any, size: Any) -> Any:
        return self._step.cut(arrays, index * size, size)
