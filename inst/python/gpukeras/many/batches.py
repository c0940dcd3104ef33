"""Arranges the rows of many models as batches that one program takes. Pure NumPy.

A step trains each model on a batch of its own rows. Models with fewer rows than others have no
batch in the last steps of an epoch, and short last batches are filled up; the numbers of rows that
count say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Piece:
    """Steps whose batches have one size.

    Args:
        rows: Row numbers, (steps, models, batch size), int32.
        counts: Rows that count, (steps, models), int32: the first ones of each batch.
        partial: Whether some batches have fewer rows that count than their size, but more than 0.
    """

    rows: np.ndarray
    counts: np.ndarray
    partial: bool

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.rows)

    @property
    def batch_size(self) -> int:
        """Rows per batch of a model."""
        return int(self.rows.shape[2])


def plan_epoch(
    orders: Sequence[np.ndarray], batch_size: int, exact: bool = False, drop_last: bool = False
) -> list[Piece]:
    """Returns the steps of an epoch.

    Args:
        orders: Each model's row numbers, in the epoch's order; empty for a model that rests.
        batch_size: Rows per batch.
        exact: Whether no batch may be filled up, as for batch normalisation: then short last
            batches of each size are steps of their own.
        drop_last: Leave out short last batches of models that have a full one.
    """
    sizes = np.array([len(order) for order in orders], np.int64)
    if drop_last:
        sizes = np.array([_without_short(size, batch_size) for size in sizes.tolist()], np.int64)
        orders = [order[:size] for order, size in zip(orders, sizes, strict=True)]
    full = sizes // batch_size * batch_size if exact else sizes
    steps = int(-(-full.max(initial=0) // batch_size))
    pieces = [_fill(orders, full, steps, batch_size)] if steps else []
    for size in sorted(set((sizes - full).tolist()) - {0}):
        has = sizes - full == size
        tails = [order[done:] for order, done in zip(orders, full, strict=True)]
        pieces.append(_fill(tails, np.where(has, size, 0), 1, int(size)))
    return pieces


def count_steps(rows: int, batch_size: int, drop_last: bool = False) -> int:
    """Returns the steps of a model's epoch; arguments as of `plan_epoch()`."""
    return -(-(_without_short(rows, batch_size) if drop_last else rows) // batch_size)


def _without_short(rows: int, batch_size: int) -> int:
    return rows // batch_size * batch_size if rows >= batch_size else rows


def _fill(orders: Sequence[np.ndarray], sizes: np.ndarray, steps: int, batch_size: int) -> Piece:
    """Returns steps on the first rows of each model; its first row fills up.

    Args:
        orders: Each model's row numbers.
        sizes: How many of them each trains on here.
        steps: The number of steps.
        batch_size: Rows per batch.
    """
    rows = np.zeros((len(orders), steps * batch_size), np.int32)
    for place, (order, size) in enumerate(zip(orders, sizes, strict=True)):
        if size:
            rows[place, :size] = order[:size]
            rows[place, size:] = order[0]
    shaped = rows.reshape(len(orders), steps, batch_size).transpose(1, 0, 2)
    begun = np.arange(steps)[:, None] * batch_size
    counts = np.clip(sizes[None, :] - begun, 0, batch_size).astype(np.int32)
    partial = bool(((counts > 0) & (counts < batch_size)).any())
    return Piece(np.ascontiguousarray(shaped), counts, partial)


def split_models(sizes: Sequence[int], most: int) -> list[list[int]]:
    """Splits models into stacks of equally many, where those of one stack have similar sizes.

    Steps in which a model has no rows are computed and thrown away, so a stack of models with
    equally many rows wastes least.

    Args:
        sizes: Training rows of each model.
        most: Models that a stack may have.

    Returns:
        The places of the models of each stack, largest models first.
    """
    if not sizes:
        return []
    stacks = -(-len(sizes) // most)
    each = -(-len(sizes) // stacks)
    order = np.argsort(-np.asarray(sizes), kind="stable").tolist()
    return [order[start : start + each] for start in range(0, len(order), each)]
