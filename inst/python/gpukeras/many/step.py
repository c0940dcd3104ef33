"""Steps of one model as functions of its state, from which `stacking` makes those of a stack.

The state is the values of all variables that a step may change, so that many states can be stacked
for one model. A step computes what Keras' own `train_step()`, `test_step()` and `predict_step()`
compute. Rows that only fill up a batch weigh nothing: the loss and the metrics are those of the
other rows. If a batch has none of its own, the state stays as it is, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from gpukeras.backend import keras_private, keras_stateless, runtime, stacking
from gpukeras.core.keras_types import Model, Optimizer
from gpukeras.many.structure import Binding
from gpukeras.models.losses import losses_of, weighing_rows

State = dict[str, list[Any]]
PARTS = WEIGHTS, REST, OPTIMIZER, METRICS = "weights", "rest", "optimizer", "metrics"


def state_variables(model: Model) -> dict[str, list[Any]]:
    """Returns the variables of a compiled and built model, by part of the state."""
    return {
        WEIGHTS: list(model.trainable_variables),
        REST: list(model.non_trainable_variables),
        OPTIMIZER: list(model.optimizer.variables),
        METRICS: list(model.metrics_variables),
    }


@dataclass(frozen=True)
class Batch:
    """A batch of one model; nested structures of tensors.

    Args:
        data: What Keras' steps take: x, or (x, y), or (x, y, weights), each with a batch's rows.
        rows: How many of the rows count, an int32 scalar; those after them fill up the batch.
        rates: The learning rates of the epoch's steps, (steps,), float32, and the optimizer's count
            of steps before them, an int32 scalar; None for the rate in the state. The count is the
            optimizer's, as a step that loss scaling leaves out uses up no rate.
        numbers: Settings in which the models differ, float32 scalars, see `structure`.
    """

    data: Any
    rows: Any
    rates: tuple[Any, Any] | None
    numbers: Sequence[Any]


class StatelessModel:
    """A compiled and built model whose steps are functions of a state.

    Args:
        model: The model; only its structure is used, and its variables keep their values.
        bindings: Settings that are arguments of the step.
    """

    def __init__(self, model: Model, bindings: Sequence[Binding] = ()) -> None:
        """Finds the variables."""
        self.model, self._bindings = model, bindings
        self._variables = state_variables(model)
        self._tracker = keras_private.loss_tracker(model)
        self._scaled = not any(_divides_by_weights(part) for part in losses_of(model.loss))

    def train(self, state: State, batch: Batch, partial: bool) -> State:
        """Traced: returns the state after an update.

        Args:
            state: The state.
            batch: The batch.
            partial: Whether some of its rows may only fill it up.
        """
        weights, x, y, own_weights, filled = self._read(batch, partial)
        optimizer = self.model.optimizer

        def loss(values: Sequence[Any]) -> tuple[Any, State]:
            with self._bound({**state, WEIGHTS: list(values)}, batch) as scope:
                outputs = self._call(x, training=True)
                value = self._loss(x, y, outputs, weights, training=True)
                self._track(value, y, outputs, batch.rows, own_weights, filled)
                return optimizer.scale_loss(value), self._values(scope)

        after, gradients = stacking.find_gradients(loss, state[WEIGHTS])
        with self._bound({**after, WEIGHTS: state[WEIGHTS]}, batch) as scope:
            if batch.rates is not None:
                optimizer.learning_rate.assign(_find_rate(optimizer, *batch.rates))
            keras_stateless.apply_gradients(optimizer, gradients, self.model.trainable_variables)
            after = self._values(scope)
        return self._keep(batch.rows, after, state)

    def evaluate(self, state: State, batch: Batch, partial: bool) -> State:
        """Traced: returns the state with the metrics after a batch; arguments as of `train()`."""
        weights, x, y, own_weights, filled = self._read(batch, partial)
        with self._bound(state, batch) as scope:
            outputs = self._call(x, training=False)
            loss = self._loss(x, y, outputs, weights, training=False)
            self._track(loss, y, outputs, batch.rows, own_weights, filled)
            after = {**state, METRICS: self._values(scope)[METRICS]}
        return self._keep(batch.rows, after, state)

    def predict(self, state: State, x: Any, numbers: Sequence[Any]) -> Any:
        """Traced: returns the model's outputs for rows."""
        with self._bound(state, Batch(x, 0, None, numbers)):
            return self._call(x, training=False)

    def results(self, state: State) -> dict[str, Any]:
        """Traced: returns the loss and the metrics since they were reset."""
        with self._scope(state):
            return dict(self.model.get_metrics_result())

    def _read(self, batch: Batch, partial: bool) -> tuple[Any, Any, Any, Any, Any]:
        """Returns weights for the loss, x, y, the user's weights and those that mark rows."""
        x, y, own_weights = runtime.keras().utils.unpack_x_y_sample_weight(batch.data)
        if not partial:
            return own_weights, x, y, own_weights, None
        ops, tree = runtime.keras().ops, runtime.tree()
        size = tree.flatten(batch.data)[0].shape[0]
        filled = ops.cast(ops.arange(size) < batch.rows, "float32")
        share = size / ops.cast(ops.maximum(batch.rows, 1), "float32") if self._scaled else 1.0

        def weigh(weights: Any, by: Any) -> Any:
            wide = ops.reshape(by, (size, *[1] * (len(weights.shape) - 1)))
            return weights * ops.cast(wide, weights.dtype)

        if own_weights is None:
            return filled * share, x, y, filled, filled
        marked = tree.map_structure(lambda weight: weigh(weight, filled), own_weights)
        return tree.map_structure(lambda weight: weight * share, marked), x, y, marked, filled

    def _call(self, x: Any, training: bool) -> Any:
        takes_training = keras_private.takes_training(self.model)
        return self.model(x, training=training) if takes_training else self.model(x)

    def _loss(self, x: Any, y: Any, outputs: Any, weights: Any, training: bool) -> Any:
        return keras_private.compute_loss(
            self.model, x=x, y=y, y_pred=outputs, sample_weight=weights, training=training
        )

    def _track(
        self, loss: Any, y: Any, outputs: Any, rows: Any, own_weights: Any, filled: Any
    ) -> None:
        """Updates the mean loss, weighted by rows, and the metrics."""
        ops = runtime.keras().ops
        self._tracker.update_state(loss, sample_weight=ops.cast(rows, "float32"))
        keras_stateless.update_metrics_by(self.model, y, outputs, filled, own_weights)

    def _keep(self, rows: Any, after: State, before: State) -> State:
        """Returns the state after a step with rows, else that before; dtypes stay as they are."""
        ops, moves = runtime.keras().ops, rows > 0
        return {
            part: [
                ops.where(moves, ops.cast(new, old.dtype), old)
                for new, old in zip(after[part], values, strict=True)
            ]
            for part, values in before.items()
        }

    def _scope(self, state: Mapping[str, Sequence[Any]]) -> Any:
        pairs = [
            pair
            for part, values in state.items()
            for pair in zip(self._variables[part], values, strict=True)
        ]
        # With the losses that layers add in their call, which Keras drops else.
        return runtime.keras().StatelessScope(state_mapping=pairs, collect_losses=True)

    @contextmanager
    def _bound(self, state: State, batch: Batch) -> Iterator[Any]:
        """Puts a state in the variables' place, numbers in that of settings, and weighs losses."""
        with ExitStack() as stack:
            for binding, number in zip(self._bindings, batch.numbers, strict=True):
                stack.enter_context(binding.bound_to(number))
            stack.enter_context(weighing_rows(self.model, batch.rows))
            yield stack.enter_context(self._scope(state))

    def _values(self, scope: Any) -> State:
        return {
            part: [scope.get_current_value(variable) for variable in variables]
            for part, variables in self._variables.items()
        }


def _find_rate(optimizer: Optimizer, rates: Any, begun: Any) -> Any:
    """Traced: returns the rate of an optimizer's next step."""
    ops = runtime.keras().ops
    done = keras_private.step_count(keras_private.without_scaling(optimizer))
    place = ops.cast(done.value, "int32") - begun
    return ops.take(rates, ops.clip(place, 0, rates.shape[0] - 1))


def _divides_by_weights(loss: Any) -> bool:
    """Whether a loss needs no correction for rows that only fill up a batch."""
    return getattr(loss, "reduction", "") in ("sum", "mean_with_sample_weight")
