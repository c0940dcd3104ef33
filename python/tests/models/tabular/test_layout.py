import pytest

from gpukeras import DataError
from gpukeras.data.recipe.columns import CategoryRule, DateRule, NumberRule
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    Group,
    ImageEncoding,
    Recipe,
    SeriesEncoding,
    TableEncoding,
    TextEncoding,
)
from gpukeras.data.recipe.windows import WindowRule
from gpukeras.models.tabular.layout import Factor, embedding_size, plan_layout

LEVELS = ("a", "b", "c")
RULES = (
    NumberRule("size", indicator=True),
    CategoryRule("colour", LEVELS, indicator=True),
    CategoryRule("shop", LEVELS, onehot=False),
    CategoryRule("street", bins=4),
    DateRule("day"),
)


def test_places_are_those_of_the_recipe():
    table = TableEncoding(RULES)
    layout = plan_layout(Recipe(table))
    assert layout.factors == (
        Factor("colour", 2, 3, 3, onehot=True),
        Factor("shop", 6, 1, 3, onehot=False),
        Factor("street", 7, 4, 4, onehot=True),
    )
    names = [table.feature_names[place] for place in layout.numbers]
    days = [name for name in table.feature_names if name.startswith("day")]
    assert names == ["size", "size=NA", "colour=NA", *days]


def test_a_matrix_has_numbers_only():
    layout = plan_layout(Recipe(ArrayEncoding((3,))))
    assert (layout.numbers, layout.factors) == ((0, 1, 2), ())


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(ArrayEncoding((3, 2))),
        Recipe(ImageEncoding((8, 8, 3))),
        Recipe(TextEncoding((1,))),
        Recipe(SeriesEncoding(RULES[:1], windows=WindowRule(window=4, time="t"))),
        Recipe(TableEncoding(RULES[:1], groups=(Group("one", ("size",)),))),
    ],
)
def test_other_rows_are_no_table(recipe):
    with pytest.raises(DataError, match="rows of another kind"):
        plan_layout(recipe)


@pytest.mark.parametrize(
    ("levels", "size"), [(2, 2), (3, 3), (10, 6), (100, 21), (1000, 77), (10**6, 600)]
)
def test_the_size_of_embeddings_is_fastais_rule(levels, size):
    """`emb_sz_rule(n)` of fastai 2.8 is `min(600, round(1.6 * n**0.56))`."""
    assert embedding_size(levels, "auto") == size
    assert embedding_size(levels, 5) == 5
