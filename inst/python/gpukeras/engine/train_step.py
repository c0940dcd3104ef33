"""One training step of a model, the same for all engines.

It is Keras' own `train_step`, or the same update in micro-batches where a batch does not fit into
the device's memory; then an update of averaged weights, and a check of the loss. All of it is
traced into the step, so no Python runs per step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from gpukeras.backend import keras_private, runtime, tensor_ops
from gpukeras.core.attributes import replaced
from gpukeras.core.keras_types import Model
from gpukeras.engine.programs import Logs, cut
from gpukeras.models.losses import sums_rows

REDUCING = "_all_reduce_sum_gradients"
EMA_START = (1.0, 10.0)  # momentum is at most (1 + t) / (10 + t), see Averages


def step_counter(model: Model) -> Any:
    """Returns the variable in which a model's optimizer counts its steps.

    Not its `iterations`: under gradient accumulation that is the computed number of updates.
    """
    return keras_private.step_count(keras_private.without_scaling(model.optimizer))


@contextmanager
def single_replica(model: Model) -> Iterator[None]:
    """Leaves out the optimizer's sum of gradients over replicas, for a single replica.

    TensorFlow registers a gradient of that sum for each traced function, and never frees it or the
    function's graph: 4 MB per training of a small model (measured, TensorFlow 2.21).
    """
    inner = keras_private.without_scaling(model.optimizer)
    summing = [inner, *keras_private.inner_optimizers(inner)]
    with ExitStack() as held:
        for optimizer in () if tensor_ops.in_strategy() else summing:
            if hasattr(optimizer, REDUCING):
                leave_out = {REDUCING: lambda pairs: list(pairs)}
                held.enter_context(replaced(optimizer, **leave_out))
        yield


class NonFiniteMonitor:
    """Records the first step whose loss is not finite; the host reads it when it needs to.

    Keras' logs hold the mean loss of the epoch so far: it is not finite from the first step on
    whose loss is not.

    Attributes:
        steps: Steps since the training began, skipped ones included.
        bad: The number of the first step with a loss that is not finite; 0 if there is none, and -1
            if losses are not looked at.
    """

    def __init__(self, like: Any) -> None:
        """Creates counters on the device and with the dtype of the optimizer's step counter."""
        self.steps, self.bad = (
            tensor_ops.variable_beside(like, 0),
            tensor_ops.variable_beside(like, 0),
        )

    @property
    def variables(self) -> list[Any]:
        """The variables that a step changes here."""
        return [self.steps, self.bad]

    def reset(self) -> None:
        """Resets the counters."""
        for variable in self.variables:
            variable.assign(0)

    def ignore(self) -> None:
        """Lets steps go on whatever their loss is, until the next reset."""
        self.bad.assign(-1)

    def look(self, logs: Logs) -> None:
        """Traced: counts a step and checks its loss."""
        ops = runtime.keras().ops
        steps = self.steps.value + 1
        self.steps.assign(steps)
        if "loss" in logs:
            finite = ops.all(ops.isfinite(ops.cast(logs["loss"], "float32")))
            fine = ops.logical_or(self.bad.value != 0, finite)
            self.bad.assign(ops.where(fine, self.bad.value, steps))

    def going(self) -> Any:
        """Traced: whether all losses have been finite."""
        return runtime.keras().ops.less_equal(self.bad.value, 0)


class Averages:
    """Exponential moving averages of the trainable weights (Polyak & Juditsky 1992).

    average += (1 - m) * (weight - average), with m = min(momentum, (1 + t) / (10 + t)) at step t,
    so that the average of a short training is not dominated by its first weights (as in
    TensorFlow's `ExponentialMovingAverage` with `num_updates`).

    Args:
        model: A compiled model whose variables exist.
        momentum: In (0, 1).
    """

    def __init__(self, model: Model, momentum: float) -> None:
        """Starts with the current weights."""
        self._momentum, self._weights = momentum, model.trainable_weights
        self.shown = False
        self._count = tensor_ops.variable_beside(step_counter(model), 0)
        self._averages = [tensor_ops.variable_beside(weight, weight) for weight in self._weights]

    @property
    def variables(self) -> list[Any]:
        """The variables that a step changes here."""
        return [self._count, *self._averages]

    def update(self) -> None:
        """Traced: updates the averages with the weights after a step."""
        ops, (above, below) = runtime.keras().ops, EMA_START
        self._count.assign(self._count.value + 1)
        count = ops.cast(self._count.value, "float32")
        share = 1.0 - ops.minimum(self._momentum, (above + count) / (below + count))
        for weight, average in zip(self._weights, self._averages, strict=True):
            change = ops.cast(share, average.dtype) * (weight.value - average.value)
            average.assign(average.value + change)

    def show(self) -> None:
        """Puts the averages in the weights' place, and stores the weights."""
        if not self.shown:
            self._swap()

    def hide(self) -> None:
        """Restores the weights."""
        if self.shown:
            self._swap()

    def _swap(self) -> None:
        self.shown = not self.shown
        for weight, average in zip(self._weights, self._averages, strict=True):
            value = np.array(weight.numpy())
            weight.assign(average.value)
            average.assign(value)

    def get_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns the state for a checkpoint."""
        arrays = {f"{place:04d}": a.numpy() for place, a in enumerate(self._averages)}
        return {"count": int(self._count.numpy())}, arrays

    def set_state(self, plain: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Restores the state of a checkpoint."""
        self._count.assign(plain["count"])
        for place, average in enumerate(self._averages):
            average.assign(arrays[f"{place:04d}"])


class TrainingStep:
    """A model's training step.

    Args:
        model: A compiled Keras model whose variables exist.
        microbatch_size: Rows that go through the model at once, or None for whole batches.
            Gradients are summed to one update per batch. Layers that work across rows, such as
            batch normalisation, see micro-batches.
        watch: Checks each step's loss.
        averages: Averages of the weights, or None.
    """

    def __init__(
        self,
        model: Model,
        microbatch_size: int | None,
        watch: NonFiniteMonitor,
        averages: Averages | None = None,
    ) -> None:
        """Keeps the model's own step."""
        self._model = model
        self._own = model.train_step
        self.microbatch_size = microbatch_size
        self._watch, self._averages = watch, averages

    def __call__(self, data: Any) -> Logs:
        """Traced: one update from a batch."""
        logs = self._own(data) if self.microbatch_size is None else self._update(data)
        self.look(logs)
        return logs

    def look(self, logs: Logs) -> None:
        """Traced: what follows an update, the check of its loss and the averages."""
        self._watch.look(logs)
        if self._averages is not None:
            self._averages.update()

    @property
    def variables(self) -> list[Any]:
        """The variables that it changes besides the model's own."""
        averages = [] if self._averages is None else self._averages.variables
        return [*self._watch.variables, *averages]

    @property
    def averaging(self) -> bool:
        """Whether it keeps averages of the weights."""
        return self._averages is not None

    @property
    def is_plain(self) -> bool:
        """Whether it is only the step of the model's class and the check of its loss."""
        own = getattr(self._own, "__func__", None) is type(self._model).train_step
        return own and self.microbatch_size is None and not self.averaging

    @property
    def parts(self) -> tuple[Any, ...]:
        """The objects that it uses besides the model."""
        return self._watch, self._averages

    def going(self) -> Any:
        """Traced: whether there should be another step."""
        return self._watch.going()

    def _update(self, data: Any) -> Logs:
        """Runs Keras' `train_step` with the summed gradients of several micro-batches."""
        tf = runtime.tensorflow()
        first = tf.nest.flatten(data)[0]
        rows = first.shape[0] if first.shape[0] is not None else tf.shape(first)[0]
        if (
            isinstance(rows, int)
            and self.microbatch_size is not None
            and rows <= self.microbatch_size
        ):
            return self._own(data)
        total = self._sum_gradients(data, rows)
        self._model.optimizer.apply_gradients(
            zip(total, self._model.trainable_weights, strict=True)
        )
        return self._model.get_metrics_result()

    def _sum_gradients(self, data: Any, rows: Any) -> list[Any]:
        """Returns the batch's gradients: those of micro-batches, weighted by their rows."""
        tf, microbatch_size = runtime.tensorflow(), self.microbatch_size
        sums = [
            *self._gradients(data, 0, tf.minimum(microbatch_size, rows), rows)
        ]  # shows which are None
        places = [place for place, gradient in enumerate(sums) if gradient is not None]

        def add(totals: Any, start: Any, size: Any) -> list[Any]:
            gradients = self._gradients(data, start, size, rows)
            return [total + gradients[place] for total, place in zip(totals, places, strict=True)]

        static = isinstance(rows, int)
        whole = rows - rows % microbatch_size if static else rows
        _, totals = tf.while_loop(
            lambda start, _: start < whole,
            lambda start, totals: (
                start + microbatch_size,
                add(
                    totals,
                    start,
                    microbatch_size if static else tf.minimum(microbatch_size, rows - start),
                ),
            ),
            (tf.constant(microbatch_size), [sums[place] for place in places]),
        )
        if static and rows % microbatch_size:
            totals = add(totals, whole, rows % microbatch_size)
        for place, total in zip(places, totals, strict=True):
            sums[place] = total
        return sums

    def _gradients(self, data: Any, start: Any, size: Any, rows: Any) -> list[Any]:
        tf = runtime.tensorflow()
        keras = runtime.keras()
        model = self._model
        x, y, weight = keras.utils.unpack_x_y_sample_weight(cut(data, start, size))
        with tf.GradientTape() as tape:
            takes_training = keras_private.takes_training(model)
            predicted = model(x, training=True) if takes_training else model(x)
            loss = keras_private.compute_loss(
                model, x=x, y=y, y_pred=predicted, sample_weight=weight, training=True
            )
            keras_private.loss_tracker(model).update_state(
                loss, sample_weight=tf.cast(size, "float32")
            )
            loss = model.optimizer.scale_loss(loss * tf.cast(size / rows, loss.dtype))
        model.compute_metrics(x, y, predicted, sample_weight=weight)
        gradients = tape.gradient(loss, model.trainable_weights)
        return [
            None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients
        ]


def why_not_split(model: Model) -> str:
    """Returns why a batch cannot go through a model in micro-batches, or "".

    A sum over rows would take another share than penalties and the means of other outputs.
    """
    if tensor_ops.overrides(model, "train_step"):
        return "its own train_step() cannot be split"
    return "its loss adds up rows, which cannot be split" if sums_rows(model.loss) else ""
