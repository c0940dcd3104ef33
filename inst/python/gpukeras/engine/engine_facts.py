"""Reads the facts that decide which engines are candidates, and which callbacks need batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpukeras.backend import devices, keras_private, runtime, tensor_ops
from gpukeras.core.errors import SpecError
from gpukeras.core.keras_types import REFUSALS, Model
from gpukeras.data.dataset.iterable_dataset import IterableDataset
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.engine.autotune import EngineFacts

BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")
PREDICT_HOOKS = ("on_predict_batch_begin", "on_predict_batch_end")
# Layers of Keras that are matrix products, or work on single numbers.
DENSE_LAYERS = frozenset(
    (
        "Activation",
        "Add",
        "BatchNormalization",
        "Concatenate",
        "Dense",
        "Dropout",
        "ELU",
        "Flatten",
        "Functional",
        "InputLayer",
        "LayerNormalization",
        "LeakyReLU",
        "PReLU",
        "ReLU",
        "Rescaling",
        "Sequential",
        "Softmax",
    )
)
PASSES = 3  # a training step's matrix products, as multiples of the forward pass
NUMBERS = 2  # FLOPs of a weight and a row


def read_engine_facts(
    model: Model,
    requested: str,
    callbacks: Sequence[Any] = (),
    batch_size: int | None = None,
    device: str = "",
) -> EngineFacts:
    """Returns the facts that decide which engines are candidates.

    Args:
        model: A built model.
        requested: "auto", "repeatable" or the name of an engine.
        callbacks: Keras callbacks.
        batch_size: Rows of a training step; None for an evaluation.
        device: Where the model trains.
    """
    setup, repeatable = devices.current(), requested == "repeatable"
    return EngineFacts(
        requested="auto" if repeatable else requested,
        available=runtime.engine_names(),
        jit=setup.jit,
        model_jit=tensor_ops.allows_xla(model),
        eager=bool(model.run_eagerly),
        repeats=repeatable or devices.repeats(),
        batch_hook=find_batch_hook(callbacks),
        own_function=tensor_ops.overrides(model, "make_train_function"),
        own_step=any(tensor_ops.overrides(model, name) for name in ("train_step", "test_step")),
        convolves=setup.device.startswith("CPU") and has_convolutions(model),
        dense_flops=count_dense_flops(model, batch_size, device) if batch_size else math.inf,
    )


def has_convolutions(model: Model) -> bool:
    """Whether any layer of a model convolves."""
    return any("Conv" in type(layer).__name__ for layer in keras_private.list_layers(model))


def count_dense_flops(model: Model, batch_size: int, device: str) -> float:
    """Returns the FLOPs of a training step; infinity unless all is dense, float32 and on a CPU.

    Args:
        model: A built model.
        batch_size: Rows of a step.
        device: Where it trains.
    """
    known = all(map(_is_dense, keras_private.list_layers(model)))
    if not known or not device.startswith("CPU"):
        return math.inf
    weights = sum(math.prod(variable.shape) for variable in model.trainable_weights)
    return float(PASSES * NUMBERS * weights * batch_size)


def _is_dense(layer: Any) -> bool:
    kind = type(layer)
    if not kind.__module__.startswith("keras.") or kind.__name__ not in DENSE_LAYERS:
        return False
    try:
        rows = kind.__name__ != "Dense" or len(layer.output.shape) == 2  # not places of a series
    except REFUSALS:
        return False
    return rows and layer.dtype_policy.name == "float32"


def find_batch_hook(callbacks: Sequence[Any]) -> str:
    """Returns the name of the first callback that works on batches, every one or some; or ""."""
    for callback in callbacks:
        lambdas = isinstance(callback, runtime.keras().callbacks.LambdaCallback)
        module = getattr(type(callback), "__module__", "")  # a class made in R may lack it
        if module.startswith("keras.") and not lambdas:
            if _counts_batches(callback):
                return type(callback).__name__
            continue  # they work with several batches per call (`steps_per_execution`)
        if _is_own(callback):
            continue  # gpukeras' own
        if _overrides(callback, BATCH_HOOKS):
            return type(callback).__name__
    return ""


def find_test_hook(callbacks: Sequence[Any]) -> str:
    """Returns the name of the first callback that works on batches of an evaluation; or ""."""
    return _find_hook(callbacks, TEST_HOOKS)


def find_predict_hook(callbacks: Sequence[Any]) -> str:
    """Returns the name of the first callback that works on batches of a prediction; or ""."""
    return _find_hook(callbacks, PREDICT_HOOKS)


def refuse_batch_hook(hook: str, data: Dataset) -> None:
    """Refuses a callback of an evaluation or prediction that works on batches, where it may end it.

    All rows are one batch to callbacks, and rows in sequence that have no known end may have none.

    Args:
        hook: The callback, from `find_test_hook()` or `find_predict_hook()`.
        data: The rows.

    Raises:
        SpecError: where it would wait for an end that never comes.
    """
    if hook and isinstance(data, IterableDataset) and not data.facts.rows:
        raise SpecError(
            f"The callback {hook} works on batches, and all rows are one batch here, of rows in "
            "sequence whose number is unknown.",
            hint="Use gpu_dataset(steps = ), or Keras' own function.",
            arg="callbacks",
        )


def _find_hook(callbacks: Sequence[Any], hooks: Sequence[str]) -> str:
    return next(
        (type(callback).__name__ for callback in callbacks if _overrides(callback, hooks)), ""
    )


def _overrides(callback: Any, hooks: Sequence[str]) -> bool:
    base = runtime.keras().callbacks.Callback
    methods = {hook: getattr(callback, hook) for hook in hooks}
    return any(
        getattr(method, "__func__", method) is not getattr(base, hook)
        for hook, method in methods.items()
    )


def explain_test_hook(callbacks: Sequence[Any]) -> list[str]:
    """Returns a note of the first callback that would work on batches of validation rows."""
    name = find_test_hook([callback for callback in callbacks if not _is_own(callback)])
    if not name:
        return []
    return [
        f"The callback {name} sees all validation rows as one batch: they are evaluated together."
    ]


def _is_own(callback: Any) -> bool:
    """Whether a callback is gpukeras' own, which knows that a call runs several batches."""
    return bool(getattr(callback, "takes_several_batches", False))


def _counts_batches(callback: Any) -> bool:
    """Whether a Keras callback saves or writes after a number of batches, not of epochs."""
    frequencies = (getattr(callback, name, "epoch") for name in ("save_freq", "update_freq"))
    return any(type(frequency) is int or frequency == "batch" for frequency in frequencies)
