"""Finds the numbers and the factors of a table in the row of numbers that a model takes."""

from __future__ import annotations

from dataclasses import dataclass

from gpukeras.core.errors import DataError
from gpukeras.data.recipe.columns import ColumnRule
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe, TableEncoding

LARGEST = 600  # numbers per level


@dataclass(frozen=True)
class Factor:
    """A factor's place in the row.

    Args:
        name: The column's name.
        start: Its first place in the row.
        width: Its places: one per level, or 1 for a code.
        levels: Its levels, or bins of its hash.
        onehot: Whether it has one place per level.
    """

    name: str
    start: int
    width: int
    levels: int
    onehot: bool


@dataclass(frozen=True)
class TableLayout:
    """What the places of a row are.

    Args:
        numbers: Places of numbers: of columns of numbers, dates, texts and missing values' marks.
        factors: The factors, in the order of the row.
    """

    numbers: tuple[int, ...]
    factors: tuple[Factor, ...]


def plan_layout(recipe: Recipe) -> TableLayout:
    """Returns the layout of a recipe's rows: a matrix has numbers only.

    Raises:
        DataError: if the recipe is not that of a table with a single input.
    """
    features = recipe.features
    matrix = isinstance(features, ArrayEncoding) and len(features.shape) == 1
    if not matrix and not (isinstance(features, TableEncoding) and not features.groups):
        raise DataError(
            "gpu_tabular() makes models for one table: a data frame, a file of columns or a "
            f"matrix, but `data` has rows of another kind ({features.kind}, {features.shape}).",
            hint="Use gpu_mlp() for several inputs, or a model of keras3 for images and texts.",
            arg="data",
        )
    numbers: list[int] = []
    factors: list[Factor] = []
    start = 0
    for rule in features.columns:
        width = len(rule.features)
        own = _factor_width(rule)
        if own:
            factors.append(_factor(rule, start, own))
        numbers += range(start + own, start + width)
        start += width
    return TableLayout(tuple(range(*features.shape)) if matrix else tuple(numbers), (*factors,))


def _factor_width(rule: ColumnRule) -> int:
    """Returns the places of a category without its mark of missing values; 0 for other columns."""
    return len(rule.features) - rule.indicator if rule.kind == "category" else 0


def _factor(rule: ColumnRule, start: int, width: int) -> Factor:
    onehot = rule.onehot or bool(rule.bins)
    return Factor(rule.name, start, width, rule.bins or len(rule.levels), onehot)


def embedding_size(levels: int, asked: str | int) -> int:
    """Returns the numbers per level: as asked, or fastai's rule.

    The rule is min(600, round(1.6 n^0.56)) for n levels: `emb_sz_rule()` of fastai's module
    tabular.model. It gives 2 for 2 levels, 6 for 10, 21 for 100 and 77 for 1000.
    """
    return asked if isinstance(asked, int) else min(LARGEST, round(1.6 * levels**0.56))
