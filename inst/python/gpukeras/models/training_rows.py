"""Remembers the rows that trained a model, so that they are not taken for held-out ones.

A model keeps digests of at most 10,000 of its training rows, see `row_digests`. Rows of another
dataset are training rows if far more of them are found among these than equal rows occur by chance,
as rows of a few categories do.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.core.keras_types import Model
from gpukeras.data.builder import ShardedDataset
from gpukeras.data.dataset.map_dataset import Dataset, MapDataset
from gpukeras.data.reader.rows import can_digest, digest_rows, sample_rows
from gpukeras.data.recipe.multi_output import own_weights

MOST_TRAININGS = 8  # the last ones
MOST_ASKED = 100_000  # rows that are looked up
SURE = 3.0  # standard deviations above chance
LEAST = 0.05  # share of training rows that is worth a word


@dataclass(frozen=True)
class TrainingRows:
    """The rows of one training.

    Args:
        count: Their number.
        digests: Digests of all or some of them, in their order (uint32).
        data: Returns the dataset as long as it lives, else None.
        weighed: Whether the user's weights of rows were others than 1.
        by_class: Whether classes had weights beside them.
    """

    count: int
    digests: np.ndarray
    data: Callable[[], Any] = lambda: None
    weighed: bool = False
    by_class: bool = False

    def find(self, data: MapDataset, rows: np.ndarray, digests: np.ndarray) -> float:
        """Returns the share of rows that trained the model; 0 if nothing is evident."""
        own = self.data()
        if own is not None and own.sources[0] is data.sources[0]:
            return float(np.isin(rows, _weighed(own)).mean())
        if len(rows) == self.count and np.array_equal(np.sort(digests), np.sort(self.digests)):
            return 1.0
        return judge_found(digests, self.digests, self.count)


def judge_found(asked: np.ndarray, known: np.ndarray, count: int) -> float:
    """Returns the share of rows that are training rows; 0 unless there are more than by chance.

    The share of training rows that equal another one is the chance that a new row equals one.

    Args:
        asked: Digests of rows.
        known: Digests of training rows.
        count: Number of training rows, of which `known` are some.
    """
    if not len(asked) or not len(known):
        return 0.0
    _, place, times = np.unique(known, return_inverse=True, return_counts=True)
    chance = float((times[place.reshape(-1)] > 1).mean())
    hits, expected = int(np.isin(asked, known).sum()), chance * len(asked)
    if hits <= expected + SURE * math.sqrt(expected * (1 - chance)) + 1:
        return 0.0
    share = (hits / len(asked) - chance) / ((1 - chance) * len(known) / count)
    return min(share, 1.0) if share >= LEAST else 0.0


_ROWS: weakref.WeakKeyDictionary[Any, tuple[TrainingRows, ...]] = weakref.WeakKeyDictionary()


def tie_training_rows(model: Model, data: Dataset) -> None:
    """Ties to a model the rows of a training; rows in sequence are not remembered."""
    if not isinstance(data, MapDataset) or len(data.sources) < 2:
        return
    rows = _weighed(data)
    if not len(rows):
        return
    some = sample_rows(data.sources[0], rows)
    sources = data.sources[:2]
    digests = digest_rows(sources, some) if can_digest(sources) else np.zeros(0, np.uint32)
    weighed = _has_own_weights(data, rows)
    by_class = data.class_weights is not None
    made = TrainingRows(len(rows), digests, weakref.ref(data), weighed, by_class)
    earlier = [training for training in _ROWS.get(model, ()) if not _same(training, made)]
    _ROWS[model] = (*earlier, made)[-MOST_TRAININGS:]


def _weighed(data: MapDataset) -> np.ndarray:
    """Returns the numbers of the training rows whose weight is not 0."""
    rows = data.train_rows
    if isinstance(data, ShardedDataset):  # of its rows this worker has read its own
        rows = rows[np.isin(rows, data.rows("all"))]
    if len(data.sources) < 3:
        return rows
    weights = data.sources[2].gather(rows).reshape(len(rows), -1)
    return rows[(weights != 0).any(axis=1)]


def _has_own_weights(data: MapDataset, rows: np.ndarray) -> bool:
    """Whether the user gave weights other than 1; those of classes are for training alone."""
    own = own_weights(data, rows)
    return own is not None and bool((own != 1).any())


def _same(rows: TrainingRows, other: TrainingRows) -> bool:
    return rows.count == other.count and np.array_equal(rows.digests, other.digests)


def copy_training_rows(model: Model, copy: Model) -> None:
    """Ties to a copy what trained the model."""
    if model in _ROWS:
        _ROWS[copy] = _ROWS[model]


def find_trained_share(model: Model, data: Dataset, rows: np.ndarray) -> float:
    """Returns the share of a dataset's rows that trained a model, as far as it is known.

    Args:
        model: The model.
        data: The dataset, encoded like the one that trained the model.
        rows: Row numbers.

    Returns:
        From 0 (none, or unknown) to 1.
    """
    return _find_share(_ROWS.get(model, ()), data, rows)


def trained_by_class(model: Model) -> bool:
    """Whether classes had weights in the model's last training, as far as it is known."""
    return any(training.by_class for training in _ROWS.get(model, ())[-1:])


def find_unweighed_share(model: Model, data: Dataset, part: str) -> float:
    """Returns the share of a dataset's rows that trained a model by weights that they now lack.

    Args:
        model: The model.
        data: The dataset, encoded like the one that trained the model.
        part: "all", "train" or "validation".

    Returns:
        From 0 (none, or unknown) to 1.
    """
    known = tuple(training for training in _ROWS.get(model, ()) if training.weighed)
    if not known or not isinstance(data, MapDataset) or len(data.sources) > 2:
        return 0.0
    return _find_share(known, data, data.rows(part))


def _find_share(known: tuple[TrainingRows, ...], data: Dataset, rows: np.ndarray) -> float:
    if not known or not len(rows) or not isinstance(data, MapDataset):
        return 0.0
    sources = data.sources[:2]
    some = sample_rows(sources[0], rows, MOST_ASKED)
    digests = digest_rows(sources, some) if can_digest(sources) else np.zeros(0, np.uint32)
    return max(training.find(data, rows, digests) for training in known)


# In files ----------------------------------------------------------------------------------------


def to_portable(model: Model) -> list[dict[str, Any]]:
    """Returns the rows that trained a model as JSON values."""
    return [
        {
            "count": training.count,
            "digests": training.digests.astype("<u4").tobytes().hex(),
            "weighed": training.weighed,
            "by_class": training.by_class,
        }
        for training in _ROWS.get(model, ())
    ]


def tie_stored(model: Model, plain: Any) -> None:
    """Ties the rows of a file of unknown origin to a model; None is none.

    Raises:
        TypeError, ValueError, KeyError, OverflowError: if they are damaged.
    """
    made = []
    for training in (plain or [])[:MOST_TRAININGS]:
        count, digests = int(training["count"]), bytes.fromhex(training["digests"])
        if len(digests) // 4 > count or count < 1:
            raise ValueError("more digests than rows")
        known = np.frombuffer(digests, "<u4").astype(np.uint32)
        weighed = bool(training.get("weighed", False))
        by_class = bool(training.get("by_class", False))
        made.append(TrainingRows(count, known, weighed=weighed, by_class=by_class))
    if made:
        _ROWS[model] = tuple(made)
