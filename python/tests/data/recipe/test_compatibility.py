"""Whether recipes encode alike, and whether one encodes at all."""

import re
from dataclasses import replace

import pytest
from rules import label_rule

from gpukeras import DataError
from gpukeras.data.recipe.columns import NumberRule
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    BatchesEncoding,
    Input,
    InputsEncoding,
    Recipe,
    TableEncoding,
    TextEncoding,
)
from gpukeras.data.recipe.serialization import check_labels, check_order, same_encoding

PLAIN = Recipe(ArrayEncoding((4,)))
SCALED = Recipe(ArrayEncoding((4,), center=(0.0,) * 4, scale=(1.0,) * 4))
COLUMNS = Recipe(TableEncoding((NumberRule("u"),)))
TEXTS = Recipe(TextEncoding((1,)))
BATCHES = Recipe(BatchesEncoding())


def inputs(**recipes):
    return InputsEncoding(tuple(Input(name, one.features) for name, one in recipes.items()))


@pytest.mark.parametrize(
    ("recipe", "keeps"),
    [
        (PLAIN, True),
        (TEXTS, True),
        (BATCHES, True),
        (SCALED, False),
        (COLUMNS, False),
        (Recipe(inputs(a=PLAIN, b=TEXTS)), True),
        (Recipe(inputs(a=PLAIN, b=SCALED)), False),
    ],
)
def test_a_recipe_that_learned_nothing_keeps_values(recipe, keeps):
    assert recipe.keeps_values == keeps
    assert same_encoding(recipe, BATCHES) == keeps
    assert same_encoding(BATCHES, recipe) == keeps


def test_inputs_are_told_by_name_and_not_by_their_order():
    named = Recipe(ArrayEncoding((2,), names=("u", "v")))
    given, turned = inputs(a=SCALED, b=named), inputs(b=named, a=SCALED)
    assert same_encoding(Recipe(given), Recipe(turned))
    check_order(given, turned, "data")
    assert not same_encoding(Recipe(given), Recipe(inputs(a=named, b=SCALED)))


def test_rows_of_another_length_are_the_models_business_where_values_are_kept():
    assert same_encoding(PLAIN, Recipe(ArrayEncoding((7,))))
    assert not same_encoding(PLAIN, TEXTS)
    assert not same_encoding(
        SCALED, Recipe(ArrayEncoding((7,), center=(0.0,) * 7, scale=(1.0,) * 7))
    )


def labelled(kind, **more):
    return Recipe(ArrayEncoding((4,)), label=label_rule(kind, **more))


NUMBERS = labelled("number", center=2.0, scale=3.0)
CLASSES = labelled("class", units=2, levels=("a", "b"))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (NUMBERS, labelled("binary"), True),  # of 0 and 1 a part may hold nothing but 1
        (NUMBERS, labelled("matrix", shape=(1,)), True),
        (NUMBERS, PLAIN, True),  # rows without labels
        (PLAIN, CLASSES, True),
        (CLASSES, labelled("class", units=2, levels=("b", "a")), False),
        (CLASSES, NUMBERS, False),
        (CLASSES, replace(CLASSES, mixed=True), False),
    ],
)
def test_labels_are_encoded_alike_unless_they_are_classes(one, other, alike):
    assert same_encoding(one, other) == alike
    assert same_encoding(other, one) == alike


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (NUMBERS, CLASSES, "The labels of `data` are classes, but those of training are numbers."),
        (CLASSES, NUMBERS, "The labels of `data` are numbers, but those of training are classes."),
        (
            CLASSES,
            labelled("class", units=2, levels=("b", "a")),
            "The labels of `data` have other levels than those of training.",
        ),
    ],
)
def test_labels_alone_that_differ_are_named(one, other, said):
    with pytest.raises(DataError, match=re.escape(said)):
        check_labels(one, other, "data", "those of training")


@pytest.mark.parametrize(
    "other",
    [CLASSES, PLAIN, replace(CLASSES, mixed=True), replace(NUMBERS, features=SCALED.features)],
)
def test_nothing_is_said_of_labels_where_they_are_not_the_difference(other):
    check_labels(CLASSES, other, "data", "those of training")
