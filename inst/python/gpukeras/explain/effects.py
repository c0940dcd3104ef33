"""Effects of single columns on predictions: partial dependence and accumulated local effects.

Partial dependence (Friedman 2001, Greedy function approximation: a gradient boosting machine,
Annals of Statistics 29) is the mean prediction if all rows had the same value of a column. It asks
the model about rows that may not exist where columns are correlated. Accumulated local effects
(Apley and Zhu 2020, Visualizing the effects of predictor variables in black box supervised
learning models, JRSS B 82) move each row only to the ends of the interval that its value is in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpukeras.core.errors import DataError, ModelError, SpecError
from gpukeras.core.keras_types import Model
from gpukeras.core.options import check_choice, check_count, check_names
from gpukeras.core.progress import CallProgress, OnEvent
from gpukeras.data.dataset.map_dataset import Dataset
from gpukeras.data.recipe.decoding import name_columns
from gpukeras.data.recipe.recipe import Recipe
from gpukeras.explain.columns import Feature, find_features, no_columns, pick_feature
from gpukeras.explain.varied import Explained, Variation, open_explained, open_new_rows
from gpukeras.models.calibration import adjust
from gpukeras.models.families.build import find_extras
from gpukeras.models.families.keras_classes import family_of
from gpukeras.models.families.registry import likelihood

KINDS = ("partial_dependence", "ale")


@dataclass(frozen=True)
class Effect:
    """The effect of one column.

    Args:
        column: Its name.
        values: The numbers at which the effect is known (float64); none for a factor.
        levels: The levels of a factor.
        counts: Rows at each level, or in the interval that ends at each number (0 for the first,
            and for the numbers of partial dependence, which are no rows').
        outputs: Names of the model's outputs.
        effects: The effect (float64) at each value or level (rows) on each output (columns).
        individual: The same for single rows: (rows, values, outputs), or None.
    """

    column: str
    values: np.ndarray
    levels: tuple[str, ...]
    counts: np.ndarray
    outputs: tuple[str, ...]
    effects: np.ndarray
    individual: np.ndarray | None = None


@dataclass(frozen=True)
class Effects:
    """The effects of columns.

    Args:
        kind: "partial_dependence" or "ale".
        rows: Number of rows with a weight above 0.
        columns: The effect of each column.
        individual: Numbers from 1 of the rows whose own curves are given, as the user counts them.
        weighted: Whether rows counted by weights.
    """

    kind: str
    rows: int
    columns: tuple[Effect, ...]
    individual: tuple[int, ...] = ()
    weighted: bool = False


def measure_effects(
    model: Model,
    data: Dataset | None = None,
    *,
    features: Mapping[str, Any] | None = None,
    columns: Sequence[str] | str | None = None,
    kind: str = "partial_dependence",
    grid: float = 20,
    individual: float = 0,
    part: str = "all",
    seed: float = 1,
    weights: Any = None,
    on_event: OnEvent | None = None,
) -> Effects:
    """Measures how predictions change with single columns, by predictions in large batches.

    Means over rows are weighted, as survey practice wants estimates of the population.

    Args:
        model: A Keras model; need not be compiled.
        data: A dataset, whose rows count by its weights; labels are not used.
        features: Alternatively new rows, encoded by the recipe tied to the model if there is one.
        columns: Names of columns; None is all of which a curve can be drawn.
        kind: "partial_dependence" or "ale" (of numbers only).
        grid: Numbers at which partial dependence is known, evenly spaced from the smallest to the
            largest value; intervals of "ale", with about the same number of rows.
        individual: How many rows get a curve of their own (partial dependence only): individual
            conditional expectation (Goldstein et al. 2015).
        part: "all", "train" or "validation" (of a dataset).
        seed: Seed of the draw of these rows.
        weights: Weights of the new rows; None counts each as one.
        on_event: Called with the columns that are done, see `CallProgress`.

    Raises:
        SpecError: for an unknown column, one without a curve, or a bad option.
        DataError: for rows that come in sequence or have no columns, or bad weights.
        ModelError: if the model does not fit the rows, or has several outputs.
    """
    check_choice("kind", kind, KINDS)
    check_choice("part", part, ("all", "train", "validation"))
    size, curves = check_count("grid", grid, 2), check_count("individual", individual, 0)
    drawn_by = np.random.default_rng(check_count("seed", seed, 0))
    if kind == "ale" and curves:
        raise SpecError(
            '`individual` needs `kind = "partial_dependence"`: accumulated local effects are '
            "differences within intervals, not curves of rows.",
            arg="individual",
        )
    if data is None:
        explained = open_new_rows(model, features or {}, weights)
    else:
        explained = open_explained(model, data, part)
    named = choose_features(find_features(explained.recipe), columns, kind)
    counted = np.flatnonzero(explained.row_weights > 0)
    if not len(counted):
        raise DataError("`data` has no rows with a weight above 0.", arg="data")
    count = len(counted)
    chosen = np.sort(counted[drawn_by.choice(count, min(curves, count), replace=False)])
    progress = CallProgress(on_event, len(named))
    curves_by_column = list[Effect]()
    for feature in named:
        if kind == "ale":
            curves_by_column.append(_accumulate(explained, feature, size))
        else:
            curves_by_column.append(_average(explained, feature, size, chosen))
        progress.reach(len(curves_by_column))
    numbers = tuple(map(int, explained.numbers[chosen]))
    return Effects(kind, count, tuple(curves_by_column), numbers, explained.weights is not None)


def choose_features(
    features: dict[str, Feature], columns: Sequence[str] | str | None, kind: str
) -> list[Feature]:
    """Returns the columns of which a curve can be drawn, or those that were asked for.

    Raises:
        SpecError: for a column that is unknown or has no curve; names it.
    """

    def fits(feature: Feature) -> bool:
        return feature.numeric or (kind != "ale" and bool(feature.levels))

    if columns is None:
        return [feature for feature in features.values() if fits(feature)]
    names = check_names("columns", columns, "columns")
    if not names:
        raise no_columns()
    chosen = [pick_feature(features, name, "columns") for name in names]
    for feature in chosen:
        if not fits(feature):
            raise SpecError(
                f"Column `{feature.name}` has no curve: `ale` needs numbers, and partial "
                "dependence numbers or the levels of a factor.",
                hint='Levels have no order: use `kind = "partial_dependence"`.'
                if feature.levels
                else "gpu_importance() takes columns of any kind.",
                arg="columns",
                column=feature.name,
            )
    return chosen


# Partial dependence ------------------------------------------------------------------------------


def _average(explained: Explained, feature: Feature, size: int, chosen: np.ndarray) -> Effect:
    """Returns the partial dependence of a column, with the curves of some rows."""
    encoded = explained.column(feature.places)[explained.row_weights > 0]
    values = np.zeros(0) if feature.levels else make_grid(feature.decode(encoded[:, 0]), size)
    replaced = feature.encode(None if feature.levels else values)
    means, curves = [], []
    names: tuple[str, ...] = ()
    for output in explained.predict(Variation(feature.places, row) for row in replaced):
        flat = _read_effect(explained, output)
        names = names or name_output(explained.model, explained.recipe, flat)
        means.append(np.average(flat.astype(np.float64), axis=0, weights=explained.row_weights))
        curves.append(flat[chosen].astype(np.float64))
    return Effect(
        column=feature.name,
        values=values,
        levels=feature.levels,
        counts=_count_levels(feature, encoded, len(replaced)),
        outputs=names,
        effects=np.array(means),
        individual=np.stack(curves, axis=1) if len(chosen) else None,
    )


def make_grid(values: np.ndarray, size: int) -> np.ndarray:
    """Returns at most `size` numbers: the values themselves if they are few, else evenly spaced.

    Args:
        values: The column (float64), such as 0 and 1 of a logical.
        size: The largest number of them.
    """
    different = np.unique(values)
    if len(different) <= size:
        return different
    return np.linspace(different[0], different[-1], size)


def _count_levels(feature: Feature, encoded: np.ndarray, size: int) -> np.ndarray:
    if not feature.levels:
        return np.zeros(size, np.int64)
    rows = feature.encode(None)
    return np.array([int((encoded == row).all(axis=1).sum()) for row in rows], np.int64)


# Accumulated local effects -----------------------------------------------------------------------


def _accumulate(explained: Explained, feature: Feature, size: int) -> Effect:
    """Returns the accumulated local effects of a column of numbers."""
    encoded, weights = explained.column(feature.places), explained.row_weights
    edges, _ = find_intervals(encoded[weights > 0, 0], size)
    places = find_places(edges, encoded[:, 0])
    lower, upper = (np.array(encoded) for _ in range(2))
    lower[:, 0], upper[:, 0] = edges[places], edges[np.minimum(places + 1, len(edges) - 1)]
    both = [Variation(feature.places, lower), Variation(feature.places, upper)]
    low, high = (_read_effect(explained, output) for output in explained.predict(both))
    differences = high.astype(np.float64) - low
    intervals = max(1, len(edges) - 1)
    counts = np.bincount(places[weights > 0], minlength=intervals)
    totals = np.bincount(places, weights, minlength=intervals)
    return Effect(
        column=feature.name,
        values=feature.decode(edges),
        levels=(),
        counts=np.concatenate([[0], counts])[: len(edges)],
        outputs=name_output(explained.model, explained.recipe, low),
        effects=accumulate(differences * weights[:, None], places, totals)[: len(edges)],
    )


def find_intervals(values: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the edges of intervals with about the same number of rows, and each row's interval.

    The edges are the smallest value and quantiles that are values themselves (type 1 of Hyndman and
    Fan 1996), as in the package ALEPlot; equal ones count once. An interval holds its upper edge,
    the first one its lower edge too.

    Args:
        values: The column.
        size: The largest number of intervals.
    """
    quantiles = np.quantile(values, np.arange(1, size + 1) / size, method="inverted_cdf")
    edges = np.unique(np.concatenate([[values.min()], quantiles]).astype(values.dtype))
    return edges, find_places(edges, values)


def find_places(edges: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns the interval of each value; one outside of all is in the nearest."""
    last = max(0, len(edges) - 2)
    places: np.ndarray = np.clip(np.searchsorted(edges, values, side="left") - 1, 0, last)
    return places


def accumulate(differences: np.ndarray, places: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Returns the effect at each edge: the sum of the intervals' mean differences, centred.

    The mean over the rows is 0, where a row has the mean of the effects at the ends of its interval
    (equation 16 of Apley and Zhu 2020, as the package ALEPlot computes it).

    Args:
        differences: For each row the predictions at the upper less those at the lower edge, times
            its weight (rows, outputs), float64.
        places: Each row's interval.
        totals: The sum of the weights of each interval's rows; above 0.
    """
    sums = np.zeros((len(totals), differences.shape[1]))
    np.add.at(sums, places, differences)
    effects = np.cumsum(sums / totals[:, None], axis=0)
    effects = np.concatenate([np.zeros((1, differences.shape[1])), effects])
    middles = (effects[1:] + effects[:-1]) / 2
    centred: np.ndarray = effects - (middles * totals[:, None]).sum(axis=0) / totals.sum()
    return centred


# Outputs -----------------------------------------------------------------------------------------


def _read_effect(explained: Explained, output: Any) -> np.ndarray:
    """Returns an output as predictions have it: calibrated, and without a stratum's number."""
    return drop_stratum(explained.recipe, read_output(adjust(explained.model, output)))


def read_output(output: Any) -> np.ndarray:
    """Returns a model's output as numbers of each row: (rows, numbers).

    Raises:
        ModelError: for a model with several outputs.
    """
    if not isinstance(output, np.ndarray):
        raise ModelError(
            "`model` has several outputs, and one is explained at a time.",
            hint="Give a model with one of them, such as keras_model(inputs, outputs[[1]]).",
            arg="model",
        )
    return output.reshape(len(output), -1)


def drop_stratum(recipe: Recipe, output: np.ndarray) -> np.ndarray:
    """Returns an output without the stratum's number, which "cox" passes on beside the risk."""
    passed_on = find_extras(recipe).strata > 0 and output.shape[1] > 1
    return output[:, :1] if passed_on else output


def name_output(model: Model, recipe: Recipe, output: np.ndarray) -> tuple[str, ...]:
    """Returns names for the numbers of an output: classes, labels, its family's, or 1, 2, ...

    Args:
        model: The model.
        recipe: The rows' encoding.
        output: The output (rows, numbers).
    """
    family = family_of(model)
    names = tuple(name_columns(recipe.label, output.shape))
    if len(names) != output.shape[1] and family is not None:
        names = tuple(likelihood(family).names(family))
    if len(names) == output.shape[1]:
        return names
    return tuple(str(place + 1) for place in range(output.shape[1]))
