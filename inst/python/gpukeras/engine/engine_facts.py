"""Reads the facts that decide which engines are candidates, and which callbacks need batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpukeras.backend import devices, runtime, tensor_ops
from gpukeras.core.keras_types import Model
from gpukeras.engine.autotune import EngineFacts

BATCH_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


def read_engine_facts(model: Model, requested: str, callbacks: Sequence[Any] = ()) -> EngineFacts:
    """Returns the facts that decide which engines are candidates."""
    setup = devices.current()
    return EngineFacts(
        requested=requested,
        available=runtime.engine_names(),
        jit=setup.jit,
        model_jit=tensor_ops.allows_xla(model),
        eager=bool(model.run_eagerly),
        deterministic=setup.deterministic,
        batch_hook=find_batch_hook(callbacks),
        own_function=tensor_ops.overrides(model, "make_train_function"),
        own_step=any(tensor_ops.overrides(model, name) for name in ("train_step", "test_step")),
    )


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
    """Returns the name of the first callback that works on batches of validation rows; or ""."""
    found = (type(one).__name__ for one in callbacks if _overrides(one, TEST_HOOKS))
    return next(found, "")


def _overrides(callback: Any, hooks: Sequence[str]) -> bool:
    base = runtime.keras().callbacks.Callback
    methods = {hook: getattr(callback, hook) for hook in hooks}
    return any(
        getattr(method, "__func__", method) is not getattr(base, hook)
        for hook, method in methods.items()
    )


def explain_test_hook(callbacks: Sequence[Any]) -> list[str]:
    """Returns a note of the first callback that would work on batches of validation rows."""
    name = find_test_hook([one for one in callbacks if not _is_own(one)])
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
