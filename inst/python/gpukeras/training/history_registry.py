"""What a model's last training did, kept beside the model for who saves it.

A weak table: the model itself stays an ordinary Keras model.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

from gpukeras.checkpoint.store import to_plain

MOST_NESTED = 16  # lists and records in each other; a training's have 5
MOST_ITEMS = 10_000_000  # in all of a history
LARGEST = 2**63  # of whole numbers: JSON's may have any number of digits

_HISTORIES: weakref.WeakKeyDictionary[Any, Mapping[str, Any]] = weakref.WeakKeyDictionary()


def keep_history(model: Any, record: Any) -> None:
    """Remembers a model's last training.

    Args:
        model: A Keras model.
        record: A `FitReport`, or the plain values that one came back as.
    """
    _HISTORIES[model] = to_plain(record)


def keep_stored(model: Any, record: Any) -> str:
    """Remembers a training's record out of a file, unless it is None or damaged.

    Returns:
        Why it is left out, as the end of a sentence, or "".
    """
    fault = "" if record is None else explain_history(record)
    if record is not None and not fault:
        keep_history(model, record)
    return fault


def history_of(model: Any) -> Mapping[str, Any] | None:
    """What a model's last training did, as JSON values; None for a model not trained here."""
    return _HISTORIES.get(model)


def explain_history(record: Any) -> str:
    """What is wrong with a record out of a file, as the end of a sentence; "" for nothing.

    Args:
        record: What JSON text of unknown origin holds.
    """
    if not isinstance(record, Mapping):
        return "it is no record"
    epochs = record.get("epochs", 0)
    if not isinstance(epochs, int) or isinstance(epochs, bool) or not 0 <= epochs < 2**31:
        return "`epochs` is no number of epochs"
    metrics = record.get("history")
    if not isinstance(metrics, Mapping):
        return "`history` has no metrics"
    for values in metrics.values():
        if not isinstance(values, list) or not all(_is_metric(value) for value in values):
            return "a metric has values that are no numbers"
    return _explain_values(record)


def _is_metric(value: Any) -> bool:
    """A number, None for none, or an array of them; arrays in arrays are counted elsewhere."""
    numeric = isinstance(value, (int, float, list)) and not isinstance(value, bool)
    return value is None or numeric


def _explain_values(record: Any) -> str:
    """Whether values are what standard JSON holds, of a size that can be kept."""
    level, count = [record], 0
    for _ in range(MOST_NESTED):
        count += len(level)
        if count > MOST_ITEMS:
            return "it has too many values"
        if not all(_is_kept(value) for value in level):
            return "it has a number that is infinite or too large"
        level = [item for value in level for item in _items(value)]
        if not level:
            return ""
    return "it is nested too deeply"


def _is_kept(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or abs(value) < LARGEST


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []
