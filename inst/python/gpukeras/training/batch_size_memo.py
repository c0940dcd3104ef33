"""Stores the batch sizes that gpu_batch_size() recommended, for each model of the session."""

from __future__ import annotations

import weakref
from typing import Any

from gpukeras.backend import devices
from gpukeras.core.keras_types import Model
from gpukeras.data.dataset.base import Dataset
from gpukeras.data.recipe.recipe import BatchesEncoding

_SIZES: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def remember_batch_size(model: Model, size: int) -> None:
    """Stores a model's batch size while the model lives."""
    _SIZES[model] = size


def remembered_batch_size(model: Model) -> int | None:
    """Returns the last recommendation for a model in this session, or None."""
    return _SIZES.get(model)


def remembered_size(model: Model, data: Dataset) -> int | None:
    """Returns the stored batch size of a model, at most the number of rows.

    None where trainings are to repeat: times have found that size.
    """
    return None if devices.repeats() else found_size(model, data)


def found_size(model: Model, data: Dataset) -> int | None:
    """Returns the stored batch size of a model, whether it is used or not."""
    size = (
        None if isinstance(data.recipe.features, BatchesEncoding) else remembered_batch_size(model)
    )
    rows = data.count("train")
    return size if size is None or rows is None else min(size, rows)
