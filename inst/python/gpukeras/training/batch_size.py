"""Chooses the batch size of a training: as requested, as found before, or as the model requires.

What gpu_batch_size() recommended for a model is stored while the model lives.
"""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

from gpukeras.backend import devices
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.messages import count_of
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.plan import PipelinePlan
from gpukeras.data.recipe.recipe import BatchesEncoding
from gpukeras.engine.batch_rows import check_whole, fixed_rows


def plan_batches(
    model: Model, data: Dataset, device: str, requested: int | str | None
) -> PipelinePlan:
    """Returns the pipeline plan of a training.

    Args:
        model: A built model.
        data: The dataset.
        device: The device of the model.
        requested: The batch size; None for the one that a search found, the model's, or the
            dataset's.

    Raises:
        SpecError, ModelError: for a batch size that the rows or the model do not allow.
    """
    fixed = fixed_rows(model)
    if fixed is not None:
        return _plan_fixed(data, device, fixed, requested)
    if requested is not None:
        return data.plan(device, requested)
    remembered = remembered_size(model, data)
    plan = data.plan(device, remembered)
    return plan if remembered is None else replace(plan, batch_reason="as gpu_batch_size() found")


def _plan_fixed(
    data: Dataset, device: str, fixed: int, requested: int | str | None
) -> PipelinePlan:
    asked = requested if isinstance(requested, (int, float)) else data.spec.batch_size
    if isinstance(asked, (int, float)) and asked != fixed:
        raise ModelError(
            f"`model` takes batches of {fixed} rows (`batch_shape`), but `batch_size` is {asked}.",
            hint=f"Use `batch_size = {fixed}`, or leave it.",
            arg="model",
        )
    plan = data.plan(device, fixed)
    check_whole(fixed, plan.last_batch)
    return replace(plan, batch_reason="as the model takes them")


def explain_size(
    plan: PipelinePlan, model: Model, data: Dataset, requested: int | str | None
) -> list[str]:
    """Returns notes on a batch size: larger than the rows, or found by a search and not used.

    Args:
        plan: The pipeline plan.
        model: The model.
        data: The dataset.
        requested: The requested batch size, or None.
    """
    size = found_size(model, data) if requested is None and devices.repeats() else None
    if size not in (None, plan.batch_size):
        return [
            f"gpu_batch_size() found {count_of(size or 0, 'row')} by measuring, which would not "
            "repeat: with a seed, give them as `batch_size`."
        ]
    asked = data.spec.batch_size if requested is None else requested
    if isinstance(asked, str) or plan.rows == 0 or asked <= plan.rows:
        return []
    return [f"`batch_size` is {asked:,}, but there are {plan.rows:,} rows: all make one batch."]


_SIZES: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def remember_batch_size(model: Model, size: int) -> None:
    """Stores a model's batch size while the model lives."""
    _SIZES[model] = size


def remembered_size(model: Model, data: Dataset) -> int | None:
    """Returns the stored batch size of a model, at most the number of rows.

    None where trainings are to repeat: times have found that size.
    """
    return None if devices.repeats() else found_size(model, data)


def found_size(model: Model, data: Dataset) -> int | None:
    """Returns the stored batch size of a model, whether it is used or not."""
    ready = isinstance(data.recipe.features, BatchesEncoding)  # batches that are made already
    size = None if ready else _SIZES.get(model)
    rows = data.count("train")
    return size if size is None or rows is None else min(size, rows)
