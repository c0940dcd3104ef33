"""One step of a model on several devices: each takes its own rows, all apply the same update.

Variables are plain ones, with a copy on each device (see `keras_internals`). A replica reads and
writes its own copies; gradients are summed before the optimizer uses them. So normalisation,
clipping, accumulation, loss scaling and Keras' own averages work as on one device, and copies never
differ. Only two things differ between replicas while batches run, and are made equal when a call
ends: the metrics' sums, to which each replica adds its own rows, and random states. Metrics that
may be no sums over rows see the rows of all replicas instead, and those of the first one count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.data.loader.sharding import BatchSharding
from gpukeras.distributed.keras_internals import (
    Reduction,
    gather_metrics,
    hold_losses,
    seed_states,
    sum_up,
    this_replica,
)
from gpukeras.engine.programs import Logs, cut
from gpukeras.engine.rowwise import explain_metrics
from gpukeras.engine.train_step import Averages, NonFiniteMonitor
from gpukeras.models.losses import sums_rows

Batches = Sequence[Any]  # the rows of each device of this process
OWN = "train_step", "test_step", "compute_metrics"  # which may update metrics by other means


def gathers_metrics(model: Model) -> bool:
    """Whether the compiled metrics of a model need the rows of all replicas, and can get them."""
    own = any(tensor_ops.overrides(model, name) for name in OWN)
    return not own and bool(explain_metrics(model))


class ReplicatedStep:
    """A model's training or test step on several devices.

    Args:
        model: A compiled model whose variables are copied to each device.
        kind: "train" or "test".
        strategy: TensorFlow's strategy that runs the replicas.
        shares: The batch sharding over replicas.
        reduction: Sums their gradients; None for a test step.
        watch: Monitors each step's loss, or None.
        averages: Averages of the weights, or None.
    """

    def __init__(
        self,
        model: Model,
        kind: str,
        strategy: Any,
        shares: BatchSharding,
        *,
        reduction: Reduction | None = None,
        watch: NonFiniteMonitor | None = None,
        averages: Averages | None = None,
    ) -> None:
        """Keeps the model's own step."""
        self._model, self._own = model, getattr(model, f"{kind}_step")
        self._logs_more = tensor_ops.overrides(model, f"{kind}_step")
        self._strategy, self.shares = strategy, shares
        self._reduction, self._watch, self._averages = reduction, watch, averages
        self._sums = sums_rows(model.loss)
        self._gathers = gathers_metrics(model)

    def __call__(self, batches: Batches, rows: int = 0) -> Logs:
        """Traced: runs one step; `rows` is the number of rows of a short last batch."""
        self._weigh(rows)
        whole = bool(rows) and self.shares.is_whole(rows)
        gathers = self._gathers and not whole
        metrics = gather_metrics(self._model) if gathers else nullcontext()
        with self._hold_sums(rows, whole), metrics:
            results = self._strategy.run(lambda: self._step_here(batches, whole))
        logs, losses = self._first(results)
        self._look(losses)
        if self._averages is not None:
            self._averages.update()
        return logs

    @property
    def variables(self) -> list[Any]:
        """The variables that it changes besides the model's own."""
        watch = [] if self._watch is None else self._watch.variables
        return [*watch, *([] if self._averages is None else self._averages.variables)]

    def going(self) -> Any:
        """Traced: whether there should be another step; the same on all computers."""
        return True if self._watch is None else self._watch.going()

    def cut(self, arrays: Batches, first: Any, rows: int) -> list[Any]:
        """Traced: slices rows of each device's arrays, on that device.

        Args:
            arrays: The arrays of each device of this process.
            first: The first row.
            rows: The number of rows.
        """
        tf, parts = runtime.tensorflow(), []
        for device, own in zip(self.shares.devices, arrays, strict=True):
            with tf.device(f"/{device}"):
                parts.append(cut(own, first, rows))
        return parts

    def begin(self) -> None:
        """Traced: before a call, prepares replicas other than the first.

        Their metrics start at 0, and their random states are shifted.
        """
        tf = runtime.tensorflow()

        def begin_here() -> None:
            rank = this_replica()
            for variable in self._model.metrics_variables if rank else ():
                variable.assign(tf.zeros(variable.shape, variable.dtype))
            self._shift_seeds(rank)

        self._strategy.run(begin_here)

    def end(self) -> None:
        """Traced: after the last batch of a call, every replica gets the sums of all."""

        def end_here() -> None:
            variables = self._model.metrics_variables
            totals = sum_up([variable.value for variable in variables])
            for variable, total in zip(variables, totals, strict=True):
                variable.assign(total)
            self._shift_seeds(-this_replica())

        self._strategy.run(end_here)

    def read_logs(self, logs: Logs) -> Logs:
        """Traced, after `end()`: returns a call's logs from those of its last step.

        Metrics cover the rows of all replicas. For other values, which a user's own step may log,
        the mean over the replicas is returned.
        """
        tf, metrics = runtime.tensorflow(), self._model.get_metrics_result()
        if not self._logs_more:
            return metrics
        return {
            name: tf.where(
                tf.equal(same, float(self.shares.replicas)),
                tf.cast(metrics.get(name, mean), mean.dtype),
                mean,
            )
            for name, (mean, same) in logs.items()
        }

    def _step_here(self, batches: Batches, whole: bool) -> tuple[Logs, list[Any]]:
        """Traced in each replica: returns the logs of a user's own step, and the loss."""
        rank = this_replica()
        kept = [variable.value.read_value() for variable in self._uncounted(rank, whole)]
        logs = self._own(batches[rank - self.shares.first])
        told = self._mean(logs) if self._logs_more else {}
        for variable, value in zip(self._uncounted(rank, whole), kept, strict=True):
            variable.assign(value)
        losses = {} if self._reduction is None else self._reduction.losses
        loss = [losses.pop(rank)] if losses else []
        return told, loss

    def _first(self, results: Any) -> Any:
        """Returns the results of the first replica of this process."""
        local = self._strategy.experimental_local_results
        return runtime.tensorflow().nest.map_structure(lambda value: local(value)[0], results)

    def _uncounted(self, rank: int, whole: bool) -> list[Any]:
        """Returns the metrics' variables where the first replica counts the same rows already."""
        if rank and whole:
            return self._model.metrics_variables
        compiled = keras_private.compiled_metrics(self._model) if rank and self._gathers else None
        return [] if compiled is None else compiled.variables

    def _mean(self, logs: Logs) -> dict[str, Any]:
        """Returns the mean of each logged value, and on how many replicas it equals a metric."""
        tf, names, metrics = runtime.tensorflow(), sorted(logs), self._model.get_metrics_result()
        values = [tf.cast(logs[name], "float32") for name in names]
        same = [
            tf.cast(tf.equal(value, tf.cast(metrics.get(name, math.nan), "float32")), "float32")
            for name, value in zip(names, values, strict=True)
        ]
        sums = sum_up([*values, *same])
        means = [total / self.shares.replicas for total in sums[: len(names)]]
        return dict(zip(names, zip(means, sums[len(names) :], strict=True), strict=True))

    def _weigh(self, rows: int) -> None:
        if self._reduction is None:
            return
        shares, count = self.shares, self.shares.replicas
        if rows and shares.is_whole(rows):  # all have the same rows: the first one's loss counts
            self._reduction.factors = {rank: float(rank == 0) for rank in shares.ranks}
            return
        tail = bool(rows) and not self._sums
        self._reduction.factors = {
            rank: (1.0 if self._sums else 1.0 / count)
            * (shares.weigh_tail(rows, rank) if tail else 1.0)
            for rank in shares.ranks
        }

    def _hold_sums(self, rows: int, whole: bool) -> AbstractContextManager[None]:
        """Scales a loss that sums over rows: penalties count once, and the total sum is logged."""
        if not self._sums:
            return nullcontext()
        shares, share = self.shares, 1.0 if whole else 1.0 / self.shares.replicas
        more = {
            rank: 1.0 if whole else shares.replicas / (shares.weigh_tail(rows, rank) if rows else 1)
            for rank in shares.ranks
        }
        return hold_losses(lambda value: value * share, lambda value: value * more[this_replica()])

    def _look(self, losses: list[Any]) -> None:
        if self._watch is not None:
            self._watch.look({"loss": losses[0]} if losses else {})

    def _shift_seeds(self, by: int) -> None:
        """Changes the random states of a replica: dropout differs between different rows."""
        tf = runtime.tensorflow()
        for state in seed_states(self._model) if by else ():
            shift = tf.cast(tf.constant([by, 0], tf.int64), state.dtype)  # unsigned integers wrap
            state.assign(state.value + shift)
