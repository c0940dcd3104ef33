"""What a model's last training did, kept beside the model for who saves it.

A weak table: the model itself stays an ordinary Keras model.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from .checkpoints.store import to_plain

_HISTORIES: weakref.WeakKeyDictionary[Any, Mapping[str, Any]] = weakref.WeakKeyDictionary()


def keep_history(model: Any, record: Any) -> None:
    """Remembers a model's last training.

    Args:
        model: A Keras model.
        record: A `FitReport`, or the plain values that one came back as.
    """
    _HISTORIES[model] = to_plain(record)


def history_of(model: Any) -> Mapping[str, Any] | None:
    """What a model's last training did, as JSON values; None for a model not trained here."""
    return _HISTORIES.get(model)
