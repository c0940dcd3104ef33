"""A model lent to a search and given back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpukeras.models.state import apply_snapshot, take_snapshot
from gpukeras.training.keras_functions import preserve_keras_functions


@contextmanager
def kept_model(model: Any) -> Iterator[None]:
    """Puts back weights, optimizer, metrics, random state and Keras' own functions.

    Also after errors and interrupts. What is put back was copied to host memory.

    Args:
        model: A compiled Keras model whose variables exist.
    """
    snapshot = take_snapshot(model)
    try:
        with preserve_keras_functions(model):
            yield
    finally:
        apply_snapshot(model, snapshot)
