"""Coefficients with the names and the meaning that R's own models give them."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gpukeras.data.recipe import targets
from gpukeras.data.recipe.columns import CategoryRule, NumberRule
from gpukeras.data.recipe.recipe import ArrayEncoding, Recipe, TableEncoding
from gpukeras.models.families import coefficients
from gpukeras.models.families.contrasts import contrast_terms, read_formula
from gpukeras.models.families.spec import Family

POISSON = Family("poisson", "log")


def compare(estimates, names, recipe, family=POISSON, predictors=("",), formula=()):
    """Names and estimates of the contrasts of coefficients, one predictor after the other."""
    places = [(predictor, name) for predictor in predictors for name in names]
    terms = tuple(
        coefficients.Term(name, float(value), predictor)
        for (predictor, name), value in zip(places, estimates, strict=True)
    )
    found = contrast_terms(terms, recipe, family, formula)
    return [(one.term, one.estimate) for one in found]


def test_contrasts_tell_columns_of_one_name_apart():
    number, levels = NumberRule("f1"), CategoryRule("f", levels=("1", "2"))
    recipe = Recipe(TableEncoding((number, levels)))
    found = compare([1, 2, 3, 7], ["(Intercept)", "f1", "f=1", "f=2"], recipe)
    assert found == [("(Intercept)", 4), ("f1", 2), ("f2", 4)]
    for levels in (("a", "NA"), ("NA", "a")):
        rule = CategoryRule("f", levels=levels, indicator=True)  # a mark of missing values
        names = ["(Intercept)", *rule.features]
        found = compare([1, 5, 2, 7], names, Recipe(TableEncoding((rule,))))
        assert [value for _, value in found] == [6, -3, 7]
    classes = Family("multinomial", "logit", columns=2)
    matrix = Recipe(ArrayEncoding((2,), names=("u", "u")))
    found = compare([1, 2, 3, 5, 7, 11], ["(Intercept)", "u", "u"], matrix, classes, "ab")
    assert [value for _, value in found] == [4, 5, 8]


def test_levels_without_a_training_row_have_no_contrast():
    rule = CategoryRule("f", levels=("a", "b", "c", "d"), absent=("a", "c"))
    number = NumberRule("flag", logical=True)
    recipe = Recipe(TableEncoding((rule, number)))
    known = [column.name for column in coefficients.list_encoded(recipe) if column.seen]
    assert known == ["f=b", "f=d", "flag"]
    found = compare([1, 2, 5, 3], ["(Intercept)", *known], recipe)
    assert found == [("(Intercept)", 3), ("fd", 3), ("flagTRUE", 3)]


CLASSES = Family("multinomial", "logit", columns=3, names=("a", "b", "c"))


def test_classes_without_a_training_row_are_neither_compared_nor_a_base():
    labels = {"kind": "factor", "values": np.array([2, 3, 2]), "levels": ["a", "b", "c"]}
    label = targets.learn_label(labels, np.array([True, True, False]))
    assert label.absent == ("a",)
    recipe = Recipe(TableEncoding((NumberRule("u"),)), label)
    found = compare([9, 9, 1, 2, 5, 3], ["(Intercept)", "u"], recipe, CLASSES, "abc")
    assert found == [("(Intercept)", 4), ("u", 1)]
    assert coefficients.count_parameters(CLASSES, rank=2, absent=1) == 2


G = {"name": "g", "levels": ["a", "b", "c"]}
L = {"name": "l", "levels": ["FALSE", "TRUE"]}
X = {"name": "x"}
LEVELS = CategoryRule("g", levels=("a", "b", "c"))
LOGICAL = NumberRule("l", logical=True)
PAIRS = CategoryRule("g:l", levels=tuple(f"{g}:{b}" for g in "abc" for b in ("FALSE", "TRUE")))
NUMBERS = tuple(NumberRule(f"x:g={level}") for level in "abc")
CROSSED = ["gb:lTRUE", "gc:lTRUE"]
WITH_X = (NumberRule("x"), LEVELS, *NUMBERS)


@pytest.mark.parametrize(
    ("rules", "formula", "names"),
    [
        (WITH_X, [[X], [G], [X, G]], ["x", "gb", "gc", "x:gb", "x:gc"]),
        ((LEVELS, *NUMBERS), [[G], [X, G]], ["gb", "gc", "x:ga", "x:gb", "x:gc"]),
        (
            (LEVELS, LOGICAL, PAIRS),
            [[G], [L], [G, L]],
            ["gb", "gc", "lTRUE", "gb:lTRUE", "gc:lTRUE"],
        ),
        ((LEVELS, PAIRS), [[G], [G, L]], ["gb", "gc", "ga:lTRUE", "gb:lTRUE", "gc:lTRUE"]),
        ((PAIRS,), [[G, L]], ["ga:lFALSE", "ga:lTRUE", "gb:lFALSE", "gb:lTRUE", "gc:lFALSE"]),
    ],
)
def test_interactions_have_rs_columns_and_predict_the_same(rules, formula, names):
    recipe = Recipe(TableEncoding(rules))
    columns = [name for rule in rules for name in rule.features]
    values = np.random.default_rng(0).normal(size=len(columns) + 1)
    plain = dict(zip(["(Intercept)", *columns], values, strict=True))
    found = dict(compare(values, list(plain), recipe, formula=read_formula(formula)))
    assert list(found) == ["(Intercept)", *names]
    for g, flag, x in itertools.product("abc", ("FALSE", "TRUE"), (0.5, 2.0)):
        row = {f"g={g}": 1, f"g{g}": 1, "x": x, f"x:g={g}": x, f"x:g{g}": x, "(Intercept)": 1}
        row |= {"l": flag == "TRUE", f"l{flag}": 1, f"g:l={g}:{flag}": 1, f"g{g}:l{flag}": 1}
        sums = [sum(b * row.get(name, 0) for name, b in each.items()) for each in (plain, found)]
        assert sums[1] == pytest.approx(sums[0])


def test_interactions_with_a_combination_that_no_row_has_stay_as_they_are():
    pairs = CategoryRule("g:l", levels=PAIRS.levels, absent=("b:TRUE",))
    recipe = Recipe(TableEncoding((LEVELS, LOGICAL, pairs)))
    known = [column.name for column in coefficients.list_encoded(recipe) if column.seen]
    formula = read_formula([[G], [L], [G, L]])
    found = compare(range(len(known)), known, recipe, formula=formula)
    assert {name for name, _ in found} >= {"gb", "lTRUE", "g:l=a:FALSE", "g:l=b:FALSE"}


def test_levels_without_a_row_have_no_column_in_interactions():
    absent = CategoryRule("g", levels=("a", "b", "c"), absent=("a",))
    recipe = Recipe(TableEncoding((NumberRule("x"), absent, *NUMBERS)))
    known = [column.name for column in coefficients.list_encoded(recipe) if column.seen]
    found = compare(range(len(known)), known, recipe, formula=read_formula([[X], [G], [X, G]]))
    assert [name for name, _ in found] == ["x", "gc", "x:gc"]


def test_interactions_that_are_0_throughout_have_no_column():
    numbers = (replace(NUMBERS[0], constant=0.0), *NUMBERS[1:])  # no row has the level "a"
    values = {"(Intercept)": 1, "x": 2, "x:g=a": 3, "x:g=b": 5, "x:g=c": 7}
    recipe = Recipe(TableEncoding((NumberRule("x"), *numbers)))
    found = compare(values.values(), list(values), recipe, formula=read_formula([[X], [X, G]]))
    assert found == [("(Intercept)", 1), ("x", 7), ("x:gc", 2)]
    recipe = Recipe(TableEncoding((NumberRule("x"), LEVELS, *numbers)))  # x is 0 where g is "a"
    formula = read_formula([[X], [G], [X, G]])
    names = [name for name, _ in compare(values.values(), list(values), recipe, formula=formula)]
    assert names == list(values)
