"""Wraps private attributes of Keras for steps that are functions of a state, see `keras_private`.

Tested with Keras 3.15 on TensorFlow 2.21 and JAX 0.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpukeras.backend.keras_private import VARIABLE_KEY, compiled_metrics, scales_loss
from gpukeras.core.attributes import replaced

STATELESS = (
    "assign",
    "assign_add",
    "assign_sub",
    "_apply_weight_decay",
    "_backend_update_step",
    "_backend_reset_gradient_accumulators",
    "_backend_increment_gradient_accumulators",
    "_overwrite_model_variables_with_average_value",
)


def apply_gradients(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Traced, in a `StatelessScope`: updates variables as the optimizer's own `apply()` does.

    A LossScaleOptimizer decides by a condition whether gradients are finite; of many models each
    has a decision of its own, so here both outcomes are computed and one is chosen.
    """
    if not scales_loss(optimizer):
        with _stateless_updates(optimizer):
            optimizer.apply(gradients, variables)
        return
    from keras import ops

    inner = optimizer.inner_optimizer
    finite = optimizer.check_finite(gradients)
    scale, steps = optimizer.dynamic_scale.value, optimizer.step_counter.value
    before = [(variable, variable.value) for variable in (*variables, *inner.variables)]
    own = optimizer._overwrite_variable_with_gradient
    shares = [
        gradient if own(variable) else ops.divide(gradient, scale)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]
    with _stateless_updates(inner):
        inner.apply(shares, variables)
    for variable, old in before:
        variable.assign(ops.where(finite, variable.value, old))
    grows = ops.logical_and(finite, ops.equal(steps, optimizer.dynamic_growth_steps - 1))
    counts = ops.logical_and(finite, ops.logical_not(grows))
    optimizer.step_counter.assign(ops.where(counts, steps + 1, ops.zeros_like(steps)))
    factor = ops.where(grows, 2.0, ops.where(finite, 1.0, 0.5))
    optimizer.dynamic_scale.assign(scale * ops.cast(factor, scale.dtype))


def updates_otherwise(optimizer: Any) -> bool:
    """Whether `apply_gradients()` would not do what an optimizer does to TensorFlow's variables.

    Nadam counts in a method that is replaced there. ScheduleFreeAdamW changes a variable and goes
    on with what it took for its old value, which is the variable itself where it has one.
    """
    from keras import optimizers
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    kind = type(optimizer)
    if kind.stateless_apply is BaseOptimizer.stateless_apply:  # of another backend
        return False
    base = next(each for each in kind.__mro__ if "stateless_apply" in vars(each))
    replaced = any(getattr(kind, name) is not getattr(base, name) for name in STATELESS)
    return replaced or isinstance(optimizer, getattr(optimizers, "ScheduleFreeAdamW", ()))


@contextmanager
def _stateless_updates(optimizer: Any) -> Iterator[None]:
    """A context in which an optimizer updates the values of a `StatelessScope`, not variables.

    Keras' optimizers on TensorFlow change its variables themselves, for the sake of `tf.distribute`
    ("stateless_apply is not supported"); the methods of their base class do not.
    """
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    kind = type(optimizer)
    if kind.stateless_apply is BaseOptimizer.stateless_apply:  # of another backend
        yield
        return
    methods = {name: getattr(BaseOptimizer, name).__get__(optimizer) for name in STATELESS}
    # In the scope a Keras variable gives its value there, and `_value` still the variable.
    methods[VARIABLE_KEY] = lambda variable: kind._var_key(optimizer, variable._value)
    with replaced(optimizer, **methods):
        yield


def update_metrics_by(model: Any, y: Any, outputs: Any, plain: Any, weights: Any) -> None:
    """Updates a compiled model's metrics, the unweighted ones with weights of their own.

    Args:
        model: The model; its metrics exist.
        y: Labels.
        outputs: Predictions.
        plain: Weights of the rows for metrics without weights, or None.
        weights: The same for weighted metrics.
    """
    compiled = compiled_metrics(model)
    if compiled is None:
        return
    unweighted, weighted = compiled._flat_metrics, compiled._flat_weighted_metrics
    for metrics, sample_weights in ((unweighted, plain), (weighted, weights)):
        with replaced(compiled, _flat_metrics=[], _flat_weighted_metrics=metrics):
            model.compute_metrics(None, y, outputs, sample_weights)
