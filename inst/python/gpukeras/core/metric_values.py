"""Converts Keras logs to plain numbers: a metric is a number or an array of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

Value = float | list[Any]  # a number, or a nested list of them


def order_metrics(names: Iterable[str]) -> list[str]:
    """Sorts names: loss before metrics, training before validation, otherwise Keras' order."""

    def place(name: str) -> tuple[bool, bool, bool]:
        plain = name.removeprefix("val_")
        return plain != name, plain != "loss", not plain.endswith("loss")

    return sorted(names, key=place)


def read_metrics(logs: Mapping[str, Any] | None) -> dict[str, Value]:
    """Returns Keras' logs in order, without non-numeric entries that a callback may have added."""
    logs = logs or {}
    values = {name: _read(logs[name]) for name in order_metrics(logs)}
    return {name: value for name, value in values.items() if value is not None}


def _read(value: Any) -> Value | None:
    if isinstance(value, (str, bytes)):
        return None
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return None
    return float(array.reshape(())) if array.size == 1 else array.tolist()


def split_components(metrics: Mapping[str, Value]) -> dict[str, float]:
    """Splits array metrics into numbers named "name[1]", "name[2]", or "name[1,2]" for a matrix."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        array = np.asarray(value, np.float64)
        for place, number in np.ndenumerate(array):
            where = ",".join(str(index + 1) for index in place)
            numbers[f"{name}[{where}]" if where else name] = float(number)
    return numbers
