"""Restores a model after a search."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpukeras.core.keras_types import Model
from gpukeras.models.state import apply_snapshot, take_snapshot
from gpukeras.training.keras_functions import preserve_keras_functions


@contextmanager
def kept_model(model: Model) -> Iterator[None]:
    """Restores weights, optimizer, metrics, random state and Keras' own functions on exit.

    It also does so after errors and interrupts. The state is copied to host memory.

    Args:
        model: A compiled Keras model whose variables exist.
    """
    snapshot = take_snapshot(model)
    try:
        with preserve_keras_functions(model):
            yield
    finally:
        apply_snapshot(model, snapshot)
