import re
from dataclasses import replace

import numpy as np
import pytest
from familied import LEVELS, dataset, model_of
from rules import label_rule

from gpukeras.core.errors import DataError
from gpukeras.data.recipe.multi_output import widen_labels
from gpukeras.data.recipe.targets import (
    MatrixLabel,
    NumberLabel,
    Output,
    OutputsLabel,
    measure_range,
)
from gpukeras.models.families.labels import check_label, explain_choice, read_ranges
from gpukeras.models.families.spec import parse_family
from gpukeras.training import fit

CASES = [
    ("poisson", ("number", [1.0, -2.0]), "counts of at least 0 .*poisson.*, not negative numbers"),
    ("negative_binomial", ("number", [1.5, 2.0]), "whole numbers .*, not fractions"),
    ("zero_inflated_poisson", ("number", [0.5, 2.0]), "whole numbers"),
    ("gamma", ("number", [0.0, 2.0]), "numbers above 0 .*, not 0"),
    ("gamma", ("binary", []), "numbers above 0"),
    ("beta", ("number", [0.5, 1.0]), "numbers between 0 and 1, both excluded .*, not 1"),
    ("beta", ("number", [0.0, 0.5]), "both excluded .*, not 0"),
    ("beta", ("number", [0.5, 7.25]), "both excluded .*, not numbers above 1"),
    ("poisson", ("matrix", [[1.0, 2.0]]), "one number a row .*, not 2 columns"),
    ("quantile", ("class", []), "one number a row .*, not a factor of 3 levels"),
    ("ordinal", ("number", [1.0, 3.0]), "a factor .*, not numbers"),
    ("multinomial", ("binary", []), "a factor .*, not 0 and 1"),
    ("multi_label", ("matrix", [[0.0, 2.0]]), "0 and 1 .*, not other whole numbers"),
    ("multi_label", ("matrix", [[0.0, 0.5]]), "0 and 1 .*, not fractions"),
    ("multi_label", ("binary", []), "a column of 0 and 1 for each label"),
    ("binomial", ("matrix", [[3.0, -1.0]]), "failures of at least 0 .*, not negative numbers"),
    ("binomial", ("matrix", [[0.5, 1.0]]), "whole successes .*, not fractions"),
    ("binomial", ("matrix", [[1.0, 1.0, 1.0]]), "the columns successes and failures .*, not 3"),
    ("binomial", ("number", [0.0, 2.0]), "0 and 1, two levels, or the columns"),
    ("cox", ("matrix", [[0.0, 1.0]]), "times above 0 .*, not 0"),
    ("cox", ("matrix", [[1.0, 2.0], [1.0, 1.0]]), "a status of 0 or 1 .*, not other whole"),
    ("discrete_time", ("matrix", [[1.0, 0.5]]), "a status of 0 or 1 .*, not fractions"),
    ("cox", ("matrix", [[1.0, 0.0]]), "at least one event, a status of 1, .*, not none"),
    ("cox", ("number", [1.0, 2.0]), "the columns time and status .*, not numbers"),
    ("gaussian", ("class", []), ".*, not a factor of 3"),
]


def a_rule(kind, values):
    if kind == "class":
        return label_rule("class", units=3, levels=tuple(LEVELS))
    if kind == "binary":
        return label_rule("binary")
    values = np.asarray(values, "float32")
    shape = values.shape[1:]
    if kind == "matrix":
        return measure_range(MatrixLabel(shape), values)
    return measure_range(NumberLabel(float(values.mean()), shape=shape), values)


@pytest.mark.parametrize(("family", "label", "message"), CASES)
def test_labels_that_a_family_does_not_take_are_named(family, label, message):
    with pytest.raises(DataError, match=f"`price` must hold .*{message}") as told:
        check_label(parse_family(family), a_rule(*label), "price")
    assert told.value.details == {"arg": "price"}


def test_levels_and_dispersions_have_their_bounds():
    two = label_rule("class", units=2, levels=("a", "b"))
    with pytest.raises(DataError, match='at least 3 levels for the family "ordinal", not 2'):
        check_label(parse_family("ordinal"), two, "y")
    matrix = a_rule("matrix", [[1.0, 2.0]])
    with pytest.raises(DataError, match="one number a row to learn a dispersion"):
        check_label(parse_family({"name": "gaussian", "dispersion": "rows"}), matrix, "y")
    below = a_rule("number", [-5.0, 1.0])
    with pytest.raises(DataError, match=r"above 0 on average \(log\)"):
        check_label(parse_family({"name": "gaussian", "link": "log"}), below, "y")
    several = OutputsLabel((Output("a", label_rule("number")),))
    with pytest.raises(DataError, match="labels of a single output"):
        check_label(parse_family("poisson"), several, "y")


def test_survival_times_and_text_have_families_of_their_own():
    times = replace(a_rule("matrix", [[1.0, 1.0], [2.0, 0.0]]), survival=True)
    for name in ("cox", "discrete_time"):
        check_label(parse_family(name), times, "y")
    for name in ("gaussian", "binomial", "multi_label", "poisson"):
        with pytest.raises(DataError, match=f'survival times, which the family "{name}" does not'):
            check_label(parse_family(name), times, "y")
    text = label_rule("class", units=3, levels=("a", "b", "c"), text=True)
    check_label(parse_family("multinomial"), text, "y")
    with pytest.raises(DataError, match='an ordered factor for the family "ordinal", not text'):
        check_label(parse_family("ordinal"), text, "y")


ORDERED = label_rule("class", units=3, levels=("low", "mid", "high"), ordered=True)


@pytest.mark.parametrize(
    ("label", "family", "note"),
    [
        (ORDERED, None, 'learned as classes, without their order, which the family "ordinal"'),
        (ORDERED, "ordinal", ""),
        (ORDERED, "multinomial", ""),
        (replace(ORDERED, ordered=False), None, ""),
        (replace(ORDERED, ordered=False), "ordinal", "in the order low < mid < high. Make it"),
        (replace(ORDERED, levels=("no", "yes")), None, ""),
        (a_rule("number", [1.0, 3.0]), None, ""),
        (a_rule("matrix", [[1.0, 0.5], [2.0, 0.0]]), None, ""),
        (a_rule("matrix", [[3.0, 2.0], [2.0, 0.0]]), None, 'counts. .* "binomial"'),
        (a_rule("matrix", [[3.0, 2.0], [2.0, 0.0]]), "binomial", ""),
        (a_rule("matrix", [[3.5, 1.0], [2.0, 0.0]]), None, 'times and status, .* "cox" or'),
        (a_rule("matrix", [[3.0, -2.0], [2.0, 0.0]]), None, ""),
        (a_rule("matrix", [[0.0, 1.0], [1.0, 1.0]]), None, 'each is a label, .* "multi_label"'),
        (a_rule("matrix", [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), None, "make a factor of them"),
        (a_rule("matrix", [[3.0, 1.0, 4.0], [1.0, 0.0, 0.0]]), None, ""),
    ],
)
def test_a_choice_between_meanings_of_labels_is_told(label, family, note):
    found = explain_choice(label, family, "y")
    assert bool(found) == bool(note)
    assert re.search(note, found)


def test_ranges_are_known_by_column_and_grow_with_later_rows():
    label = a_rule("matrix", [[1.0, 0.5], [2.0, 0.0]])
    later = widen_labels(label, np.array([[7.0, -1.0]], "float32"))
    first, second = read_ranges(later)
    assert (first.minimum, first.maximum, first.whole) == (1.0, 7.0, True)
    assert (second.minimum, second.maximum, second.whole) == (-1.0, 0.5, False)
    assert read_ranges(label_rule("binary"))[0].whole


@pytest.mark.tf
def test_labels_are_checked_before_another_training_too():
    model = model_of("poisson", dataset("poisson"))
    below = {"kind": "numeric", "values": np.linspace(-1.5, 4, 120)}
    with pytest.raises(DataError, match="counts of at least 0"):
        fit.fit(model, dataset(below), {"epochs": 1})
