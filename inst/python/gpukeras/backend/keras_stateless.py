"""Wraps private attributes of Keras for steps that are functions of a state, see `keras_private`.

Tested with Keras 3.15 on TensorFlow 2.21 and JAX 0.7.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpukeras.backend.keras_private import VARIABLE_KEY, compiled_metrics

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


@contextmanager
def stateless_updates(optimizer: Any) -> Iterator[None]:
    """A context in which an optimizer updates the values of a `StatelessScope`, not variables.

    Keras' optimizers on TensorFlow change its variables themselves, for the sake of `tf.distribute`
    ("stateless_apply is not supported"); the methods of their base class do not.
    """
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    kind, own = type(optimizer), vars(optimizer)
    if kind.stateless_apply is BaseOptimizer.stateless_apply:  # of another backend
        yield
        return
    methods = {name: getattr(BaseOptimizer, name).__get__(optimizer) for name in STATELESS}
    # In the scope a Keras variable gives its value there, and `_value` still the variable.
    methods[VARIABLE_KEY] = lambda variable: kind._var_key(optimizer, variable._value)
    before = {name: own[name] for name in methods if name in own}
    own.update(methods)
    try:
        yield
    finally:
        for name in methods:
            del own[name]
        own.update(before)


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
    try:
        for metrics, given in ((unweighted, plain), (weighted, weights)):
            vars(compiled).update(_flat_metrics=[], _flat_weighted_metrics=metrics)
            compiled.update_state(y, outputs, given)
    finally:
        vars(compiled).update(_flat_metrics=unweighted, _flat_weighted_metrics=weighted)
