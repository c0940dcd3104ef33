import json
import math
from dataclasses import dataclass, is_dataclass, replace
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpukeras import DataError
from gpukeras.data.preprocessing import compatibility, encoding, serialization
from gpukeras.data.preprocessing import recipe as preprocessing_recipe
from gpukeras.data.preprocessing.columns import ColumnRule
from gpukeras.data.preprocessing.recipe import Recipe
from gpukeras.data.preprocessing.targets import LabelRule, Output
from gpukeras.data.preprocessing.windows import GAPS, WindowRule

WORDS = st.text(max_size=6)
PLAIN = {
    str: WORDS,
    bool: st.booleans(),
    int: st.integers(0, 40),
    float: st.floats(allow_nan=False, allow_infinity=False),
}
NAMES = st.lists(st.text(min_size=1, max_size=6), max_size=2, unique=True).map(tuple)
WINDOWS = st.builds(
    WindowRule,
    window=st.integers(1, 40),
    horizon=st.integers(0, 40),
    stride=st.integers(1, 40),
    time=st.text(min_size=1, max_size=6),
    group=NAMES,
    targets=NAMES,
    known=NAMES,
    gaps=st.sampled_from(GAPS),
    step=st.none() | st.floats(1e-3, 1e3),
)


def values_of(hint, least=0):
    """Anything that a field of this type can hold; in one that may be None, no empty tuple."""
    if hint is WindowRule:
        return WINDOWS
    if is_dataclass(hint):
        return st.builds(hint, **fields_of(hint))
    inner = get_args(hint)
    if get_origin(hint) is not tuple:
        return (
            st.one_of(*(values_of(one, 1) for one in inner))
            if inner
            else PLAIN.get(hint, st.none())
        )
    if inner[1] is not Ellipsis:
        return st.tuples(*map(values_of, inner))
    return st.lists(values_of(inner[0]), min_size=least, max_size=3).map(tuple)


def fields_of(kind):
    """What a record is built from; its parts, which hold others of its kind, are drawn apart."""
    return {
        name: st.just(()) if name in ("groups", "inputs", "outputs") else values_of(hint)
        for name, hint in get_type_hints(kind).items()
    }


@st.composite
def whole_recipes(draw):
    """Recipes of each kind whose shape fits what they learned; new fields are drawn unasked."""
    recipe = draw(simple_recipes())
    rules = draw(st.lists(values_of(LabelRule), max_size=3))
    if rules:
        outputs = tuple(Output(f"out{place}", rule) for place, rule in enumerate(rules))
        units = sum(rule.columns for rule in rules)
        recipe = replace(recipe, label=LabelRule("outputs", units=units, outputs=outputs))
    if recipe.kind == "columns" and recipe.columns and draw(st.booleans()):
        names = tuple(rule.name for rule in recipe.columns)
        cut = draw(st.integers(0, len(names)))
        groups = (
            preprocessing_recipe.Group("one", names[:cut]),
            preprocessing_recipe.Group("two", names[cut:]),
        )
        return replace(recipe, groups=groups)
    inputs = draw(st.lists(simple_recipes(), max_size=2))
    if not inputs:
        return recipe
    width = sum(math.prod(each.shape) for each in inputs)
    named = tuple(
        preprocessing_recipe.Input(f"in{place}", each) for place, each in enumerate(inputs)
    )
    return Recipe("inputs", (width,), label=recipe.label, inputs=named)


@st.composite
def simple_recipes(draw):
    """Recipes of a single input and a single output."""
    recipe = draw(values_of(Recipe))
    kind = draw(st.sampled_from(["array", "columns", "images"]))
    width = len(recipe.feature_names) if kind == "columns" else draw(st.integers(1, 3))
    if kind == "columns":
        return replace(recipe, kind=kind, shape=(width,))
    learned = st.none() | st.tuples(*[PLAIN[float]] * width)
    shape = (*recipe.shape, width + len(recipe.marked))
    parts = {name: draw(learned) for name in ("center", "scale", "fill")}
    return replace(recipe, kind=kind, shape=shape, **parts)


def same_bits(one, other):
    """Equal in every field, those that do not count for equality too, and in every bit."""
    return repr(one) == repr(other) and one == other and one.names == other.names


def through_r(value, drop):
    """What reticulate makes of plain values on the way to R and back."""
    if isinstance(value, dict):
        back = {name: through_r(item, drop) for name, item in value.items()}
        return {name: item for name, item in back.items() if item is not None or not drop}
    if isinstance(value, list):
        back = [through_r(item, drop) for item in value]
        return None if not back else back[0] if len(back) == 1 else back
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def assert_it_comes_back(recipe, drop):
    plain = serialization.to_portable(recipe)
    assert same_bits(serialization.from_portable(plain), recipe)
    written = json.loads(json.dumps(plain, allow_nan=False))
    assert same_bits(serialization.from_portable(written), recipe)
    assert same_bits(serialization.from_portable(through_r(plain, drop)), recipe)


@settings(deadline=None, max_examples=40)
@given(whole_recipes(), st.booleans())
def test_a_recipe_comes_back_through_r_and_json(recipe, drop):
    assert_it_comes_back(recipe, drop)


@pytest.mark.nightly
@settings(deadline=None, max_examples=1000)
@given(whole_recipes(), st.booleans())
def test_every_recipe_comes_back_through_r_and_json(recipe, drop):
    assert_it_comes_back(recipe, drop)


def test_a_learned_recipe_is_plain_and_encodes_the_same():
    x = np.array([[1.0, np.nan], [3.0, 4.0], [5.0, 6.0]])
    recipe = encoding.learn_array(x, np.ones(3, bool), True, ["a", "b"], na="impute")
    plain = serialization.to_portable(recipe)
    assert {type(item) for item in plain["recipe"]["center"]} == {float}
    again = serialization.from_portable(plain)
    features = {"kind": "array", "values": x}
    np.testing.assert_array_equal(
        encoding.transform(again, features),
        encoding.transform(recipe, features),
    )
    assert again.indicators == ("b",)


def test_vectors_of_numpy_do_for_lists():
    recipe = Recipe("array", (2,), center=(0.5, -0.0), scale=(1.0, 0.1), marked=())
    plain = serialization.to_portable(recipe)
    plain["recipe"]["center"] = np.array([0.5, -0.0])
    assert same_bits(serialization.from_portable(plain), recipe)


def test_what_an_older_version_did_not_know_has_its_default():
    rule = ColumnRule("size", "number", scale=2.0)
    plain = serialization.to_portable(Recipe("columns", (1,), (rule,)))
    for name in ("bins", "text", "fill", "zone"):
        del plain["recipe"]["columns"][0][name]
    assert serialization.from_portable(plain).columns == (rule,)


@dataclass(frozen=True)
class _Later(Recipe):
    ends: tuple[float, ...] = (0.0, 1.0)
    sides: tuple[int, ...] | None = (3, 4)


def test_a_later_field_with_a_default_needs_nothing(monkeypatch):
    monkeypatch.setattr(serialization, "Recipe", _Later)
    earlier = serialization.to_portable(Recipe("images", (8, 8, 3), center=(0.5,)))
    assert serialization.from_portable(earlier) == _Later("images", (8, 8, 3), center=(0.5,))
    later = _Later("images", (8, 8, 3), ends=(), sides=None)
    assert (
        serialization.from_portable(through_r(serialization.to_portable(later), drop=False))
        == later
    )


ARRAY = Recipe("array", (2,), center=(1.0, 2.0), label=LabelRule("number"))
COLUMNS = Recipe("columns", (1,), (ColumnRule("size", "number"),))


def changed(recipe, name, value):
    plain = serialization.to_portable(recipe)
    return {**plain, "recipe": {**plain["recipe"], name: value}}


@pytest.mark.parametrize(
    "plain",
    [None, [], "recipe", {}, {"format": "other"}, {"recipe": {"kind": "array", "shape": [1]}}],
)
def test_what_is_no_recipe_is_refused(plain):
    with pytest.raises(DataError, match="not a recipe that gpukeras saved") as caught:
        serialization.from_portable(plain)
    assert caught.value.details["arg"] == "recipe"


@pytest.mark.parametrize(
    ("plain", "where"),
    [
        ({"format": serialization.FORMAT}, "version"),
        ({"format": serialization.FORMAT, "version": "1"}, "version"),
        ({"format": serialization.FORMAT, "version": 1}, "recipe"),
        ({"format": serialization.FORMAT, "version": 1, "recipe": {}}, "recipe$kind"),
        (changed(ARRAY, "kind", 1.0), "recipe$kind"),
        (changed(ARRAY, "shape", [2.5]), "recipe$shape"),
        (changed(ARRAY, "shape", None), "recipe$shape"),
        (changed(ARRAY, "shape", True), "recipe$shape"),
        (changed(ARRAY, "center", [1.0]), "recipe$center"),
        (changed(ARRAY, "scale", [1.0, float("nan")]), "recipe$scale"),
        (changed(ARRAY, "fill", ["a", "b"]), "recipe$fill"),
        (changed(ARRAY, "label", "number"), "recipe$label"),
        (changed(ARRAY, "label", {"kind": "number", "logical": 1}), "recipe$label$logical"),
        (changed(COLUMNS, "columns", ["size"]), "recipe$columns"),
        (changed(COLUMNS, "columns", []), "recipe$shape"),
        (changed(COLUMNS, "columns", [{"name": "size"}]), "recipe$columns$kind"),
    ],
)
def test_a_damaged_recipe_is_refused_by_field(plain, where):
    with pytest.raises(DataError, match="damaged") as caught:
        serialization.from_portable(plain)
    assert caught.value.details["field"] == where


@pytest.mark.parametrize(
    ("plain", "how"),
    [
        (
            {**serialization.to_portable(ARRAY), "version": serialization.VERSION + 1.0},
            f"version {serialization.VERSION + 1}, this one reads up to {serialization.VERSION}",
        ),
        (changed(ARRAY, "later", 1.0), "has the field `later`, which is unknown here"),
        (changed(ARRAY, "label", {"kind": "number", "later": 1.0}), "has the field `later`"),
    ],
)
def test_a_recipe_of_a_newer_version_is_refused(plain, how):
    with pytest.raises(DataError, match=f"saved by a newer gpukeras: it (has )?{how}") as caught:
        serialization.from_portable(plain)
    assert caught.value.hint == "Update gpukeras."


def test_replacing_keeps_a_recipe_portable():
    recipe = replace(COLUMNS, formula="y ~ größe", label=LabelRule("class", 2, ("ä", "日本")))
    again = serialization.from_portable(json.loads(json.dumps(serialization.to_portable(recipe))))
    assert again == recipe
    assert compatibility.same_encoding(again, recipe)
