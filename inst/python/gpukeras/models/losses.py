"""Finds how a loss depends on the rows of a batch: their weights, and mean or sum."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from gpukeras.backend import keras_private, runtime
from gpukeras.core.attributes import replaced
from gpukeras.core.keras_types import Model


def losses_of(loss: Any) -> list[Any]:
    """Returns the losses, or metrics, that a model was compiled with, from any structure."""
    if isinstance(loss, Mapping):
        loss = list(loss.values())
    if isinstance(loss, (list, tuple)):
        return [each for part in loss for each in losses_of(part)]
    return [] if loss is None else [loss]


def sums_rows(loss: Any) -> bool:
    """Whether a loss sums over rows instead of averaging."""
    return any(getattr(each, "reduction", "") == "sum" for each in losses_of(loss))


@contextmanager
def weighing_rows(model: Model, rows: Any = None, by_batch: bool = False) -> Iterator[None]:
    """Makes the loss of each output a mean over rows in programs traced inside the context.

    Weights of several outputs are arranged as the outputs, see `arrange_weights()`.
    Keras weights a batch by its rows only if their number is known when the step is traced, else as
    one row: if the last batch is short, the losses of the outputs then do not add up to the total.

    Args:
        model: The model.
        rows: How many rows of a batch count, a scalar; None for all of them.
        by_batch: Leave the means as Keras takes them, and arrange the weights alone.
    """
    loss = keras_private.compiled_loss(model)
    if loss is None or "call" in vars(loss):
        yield
        return
    own = loss.call
    here = threading.local()
    metrics = keras_private.compiled_metrics(model)
    with ExitStack() as held:

        def call(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            keras = runtime.keras()
            here.rows = rows
            if rows is None:
                here.rows = keras.ops.shape(keras.tree.flatten(y_pred)[0])[0]
            for metric in () if by_batch else loss.metrics:
                if "update_state" not in vars(metric):
                    weigh = _weigh(metric.update_state, here)
                    held.enter_context(replaced(metric, update_state=weigh))
            return own(y_true, y_pred, arrange_weights(loss, y_pred, sample_weight))

        held.enter_context(replaced(loss, call=call))
        if metrics is not None:
            arrange = _arrange(metrics.update_state, loss)
            held.enter_context(replaced(metrics, update_state=arrange))
        yield


def arrange_weights(loss: Any, outputs: Any, weights: Any) -> Any:
    """Returns weights by output name in the structure of the outputs; None for outputs without.

    Keras arranges labels so, but looks up weights by the place of an output, and fails if they are
    a dict and the outputs a list.

    Args:
        loss: The compiled losses, which know the names of the outputs.
        outputs: The model's outputs.
        weights: The weights of all outputs, or of each, or None.
    """
    if not isinstance(weights, Mapping):
        return weights
    if isinstance(outputs, Mapping):
        return {name: weights.get(name) for name in outputs}
    names = loss.output_names or ()
    several = isinstance(outputs, (list, tuple)) and len(names) == len(outputs)
    return [weights.get(name) for name in names] if several else weights


def _arrange(update: Any, loss: Any) -> Any:
    def update_state(y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return update(y_true, y_pred, arrange_weights(loss, y_pred, sample_weight))

    return update_state


def _weigh(update: Any, here: Any) -> Any:
    return lambda values, sample_weight=None: update(values, sample_weight=here.rows)
