"""Stores the report of each model's last training, for saving it with the model.

The table is weak, and the model itself stays an ordinary Keras model.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping
from typing import Any

from gpukeras.checkpoint.store import to_plain
from gpukeras.core.keras_types import Model

MOST_NESTED = 16  # deepest nesting of lists and records; a training's report has 5 levels
MOST_ITEMS = 10_000_000  # in a whole history
LARGEST = 2**63  # of integers: those of JSON may have any number of digits

_HISTORIES: weakref.WeakKeyDictionary[Any, Mapping[str, Any]] = weakref.WeakKeyDictionary()


def keep_history(model: Model, record: Any) -> None:
    """Stores the report of a model's last training.

    Args:
        model: A Keras model.
        record: A `FitReport`, or plain values that were read from a file.
    """
    _HISTORIES[model] = to_plain(record)


def keep_stored(model: Model, record: Any) -> str:
    """Stores a report that was read from a file, unless it is None or damaged.

    Returns:
        Why it is left out, as the end of a sentence, or "".
    """
    fault = "" if record is None else explain_history(record)
    if record is not None and not fault:
        keep_history(model, record)
    return fault


def history_of(model: Model) -> Mapping[str, Any] | None:
    """Returns the report of a model's last training as JSON values, or None if there is none."""
    return _HISTORIES.get(model)


def explain_history(record: Any) -> str:
    """Returns what is wrong with a report from a file, as the end of a sentence, or "".

    Args:
        record: Values from JSON text of unknown origin.
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
    """Whether a value is a number, None, or an array of numbers; the depth is checked elsewhere."""
    numeric = isinstance(value, (int, float, list)) and not isinstance(value, bool)
    return value is None or numeric


def _explain_values(record: Any) -> str:
    """Returns which values standard JSON does not hold, or which are too large, or ""."""
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
