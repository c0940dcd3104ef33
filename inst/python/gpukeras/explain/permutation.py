"""Permutation importance: how much a model's loss rises when a column is shuffled.

Breiman (2001), Random forests, Machine Learning 45, shuffles a column once; Fisher, Rudin and
Dominici (2019), All models are wrong, but many are useful, JMLR 20, define the difference of the
losses as model reliance. Several permutations show how much the difference varies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpukeras.backend import keras_private
from gpukeras.core.errors import ModelError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_choice, check_count, check_text
from gpukeras.core.progress import CallProgress, OnEvent
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.explain.columns import choose_groups, find_features
from gpukeras.explain.scoring import open_scorer
from gpukeras.explain.varied import Explained, Variation, open_explained
from gpukeras.models import model_checks
from gpukeras.models.metric_modes import NAME_HINT, choose_mode
from gpukeras.models.training_rows import find_unweighed_share
from gpukeras.training.keras_functions import build_on

AS_IS = Variation(np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass(frozen=True)
class Importance:
    """The importance of columns.

    Args:
        metric: "loss", or the name of the metric.
        mode: "min" if lower is better, "max" if higher is.
        baseline: The metric on the rows as they are.
        rows: Number of rows.
        columns: Names of the columns or groups.
        scores: For each of them, the metric after each permutation.
        unweighed: Share of the rows that trained the model by weights that they now lack.
    """

    metric: str
    mode: str
    baseline: float
    rows: int
    columns: tuple[str, ...]
    scores: tuple[tuple[float, ...], ...]
    unweighed: float


def measure_importance(
    model: Model,
    data: Dataset,
    *,
    columns: Sequence[str] | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
    metric: str = "loss",
    repeats: float = 10,
    part: str = "all",
    seed: float = 1,
    on_event: OnEvent | None = None,
) -> Importance:
    """Measures how a metric changes when columns are permuted, by predictions in large batches.

    All columns get the same permutations, so that differences between them are not due to chance.

    Args:
        model: A compiled Keras model.
        data: A dataset with labels.
        columns: Names of columns that are permuted one by one; None is all that are in no group.
        groups: Columns that are permuted together, by the group's name.
        metric: "loss", or the name of a metric that the model was compiled with.
        repeats: Permutations of each column.
        part: "all", "train" or "validation".
        seed: Seed of the permutations.
        on_event: Called with the permutations that are done, see `CallProgress`.

    Raises:
        SpecError: for an unknown column or metric, one of which nobody knows which values are
            better, or a bad option.
        DataError: for rows that come in sequence, have no labels or no columns.
        ModelError: if the model is not compiled, does not fit the rows, or has a score of them that
            is not finite.
    """
    check_choice("part", part, ("all", "train", "validation"))
    metric = check_text("metric", metric, "the name of a metric")
    count, seed = check_count("repeats", repeats), check_count("seed", seed, 0)
    model_checks.check_model(model)
    model_checks.check_rows(model, data, step="test", fits=True)
    build_on(model, data)
    chosen = choose_groups(find_features(data.recipe), columns, groups)
    explained = open_explained(model, data, part)
    orders = draw_orders(len(explained.rows), count, seed)
    with open_scorer(model, data, part, metric) as scorer:
        variations = _permute(explained, list(chosen.values()), orders)
        progress = CallProgress(on_event, 1 + len(chosen) * count)
        varied = explained.predict(variations)
        losses = [_check_finite(metric, scorer.score(next(varied)), "of the rows as they are")]
        directions = keras_private.metric_directions(model)
        mode = choose_mode(metric, directions, arg="metric", hint=NAME_HINT)
        progress.reach(1)
        for name, outputs in zip(np.repeat(list(chosen), count), varied, strict=True):
            losses.append(_check_finite(metric, scorer.score(outputs), f"with {name} permuted"))
            progress.reach(len(losses))
    baseline, *scores = losses
    by_column = np.reshape(scores, (len(chosen), count)).tolist()
    return Importance(
        metric=metric,
        mode=mode,
        baseline=baseline,
        rows=len(explained.rows),
        columns=tuple(chosen),
        scores=tuple(map(tuple, by_column)),
        unweighed=find_unweighed_share(model, data, part),
    )


def _check_finite(metric: str, score: float, which: str) -> float:
    if not math.isfinite(score):
        raise ModelError(
            f"The {metric} of `model` {which} is not finite, so no rise of it is known.",
            hint="Look at the model's predictions by gpu_predict().",
            arg="model",
        )
    return score


def draw_orders(rows: int, repeats: int, seed: int) -> list[np.ndarray]:
    """Returns the order of the rows (int32) in each permutation; the same for all columns."""
    draw = [np.random.default_rng([seed, repeat]) for repeat in range(repeats)]
    return [generator.permutation(rows).astype(np.int32) for generator in draw]


def _permute(
    explained: Explained, groups: Sequence[np.ndarray], orders: Sequence[np.ndarray]
) -> Iterator[Variation]:
    """Yields the rows as they are, then each group of columns in each order."""
    yield AS_IS
    for places in groups:
        values = explained.column(places)
        yield from (Variation(places, values[order]) for order in orders)
