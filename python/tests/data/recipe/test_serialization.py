import json
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import get_args, get_origin, get_type_hints

import numpy as np
import pytest
from frames import learn_array
from hypothesis import given
from hypothesis import strategies as st
from rules import label_rule

from gpukeras import DataError
from gpukeras.data.recipe import encoding, serialization
from gpukeras.data.recipe.columns import ColumnRule, NumberRule
from gpukeras.data.recipe.recipe import (
    ArrayEncoding,
    Encoding,
    Group,
    ImageEncoding,
    Input,
    InputsEncoding,
    Recipe,
    SeriesEncoding,
    TableEncoding,
    TextEncoding,
)
from gpukeras.data.recipe.targets import LabelRule, MatrixLabel, Output, OutputsLabel
from gpukeras.data.recipe.windows import GAPS, WindowRule

KINDS = get_args(Encoding)
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
    if hint == "a shape":
        return st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)
    if hint == Encoding:
        return encodings()
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
    hints = get_type_hints(kind)
    if kind is MatrixLabel:
        hints["shape"] = "a shape"
    return {
        field.name: st.just(())
        if field.name in ("groups", "inputs", "outputs")
        else values_of(hints[field.name])
        for field in fields(kind)
        if field.init
    }


@st.composite
def recipes(draw):
    """Recipes of each kind of rows and labels; new fields are drawn unasked."""
    recipe = draw(st.builds(Recipe, **fields_of(Recipe)))
    rules = draw(st.lists(values_of(LabelRule), max_size=3))
    if not rules:
        return recipe
    outputs = tuple(Output(f"out{place}", rule) for place, rule in enumerate(rules))
    return replace(recipe, label=OutputsLabel(outputs))


@st.composite
def encodings(draw, kinds=KINDS):
    """Encodings of each kind, whose fields fit one another."""
    kind = draw(st.sampled_from(kinds))
    made = {name: draw(values) for name, values in draw(fitting(kind)).items()}
    return kind(**made)


@st.composite
def fitting(draw, kind):
    """The fields of an encoding: any value, but for those that others bind."""
    parts = {} if kind is InputsEncoding else fields_of(kind)
    width = draw(st.integers(1, 3))
    learned = st.none() | st.tuples(*[PLAIN[float]] * width)
    if kind in (ArrayEncoding, TextEncoding, ImageEncoding):
        outer = draw(st.lists(st.integers(1, 9), min_size=2, max_size=2))
        parts["row_shape"] = st.just((*outer, width))
    if kind in (ArrayEncoding, ImageEncoding):
        parts["scale"] = learned
    if kind is ArrayEncoding:
        marked = st.lists(st.integers(0, width - 1), max_size=3, unique=True).map(tuple)
        parts |= {"center": learned, "fill": learned, "marked": marked}
    if kind in (TableEncoding, SeriesEncoding):
        columns = draw(values_of(tuple[ColumnRule, ...], 1))
        names = tuple(rule.name for rule in columns)
        cut = draw(st.integers(0, len(names)))
        parts["columns"] = st.just(columns)
    if kind is TableEncoding:
        grouped = (Group("one", names[:cut]), Group("two", names[cut:]))
        parts["groups"] = st.sampled_from([(), grouped])
    if kind is SeriesEncoding:
        parts["windows"] = WINDOWS.map(lambda rule: replace(rule, known=names[:cut]))
    if kind is InputsEncoding:
        single = [one for one in KINDS if one is not InputsEncoding]
        inputs = draw(st.lists(encodings(single), min_size=1, max_size=2))
        named = tuple(Input(f"in{place}", one) for place, one in enumerate(inputs))
        parts = {"inputs": st.just(named), "listed": st.booleans()}
    return parts


def same_bits(one, other):
    """Equal in every field, those that do not count for equality too, and in every bit."""
    return repr(one) == repr(other) and one == other


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


@pytest.mark.costly
@given(recipes(), st.booleans())
def test_a_recipe_comes_back_through_r_and_json(recipe, drop):
    plain = serialization.to_portable(recipe)
    assert same_bits(serialization.from_portable(plain), recipe)
    written = json.loads(json.dumps(plain, allow_nan=False))
    assert same_bits(serialization.from_portable(written), recipe)
    assert same_bits(serialization.from_portable(through_r(plain, drop)), recipe)


def test_a_learned_recipe_is_plain_and_encodes_the_same():
    x = np.array([[1.0, np.nan], [3.0, 4.0], [5.0, 6.0]])
    recipe = Recipe(learn_array(x, np.ones(3, bool), True, ["a", "b"], impute=True), na="impute")
    plain = serialization.to_portable(recipe)
    assert {type(item) for item in plain["recipe"]["features"]["center"]} == {float}
    again = serialization.from_portable(plain)
    features = {"kind": "array", "values": x}
    np.testing.assert_array_equal(
        encoding.transform(again.features, features),
        encoding.transform(recipe.features, features),
    )
    assert again.features.indicators == ("b",)


def test_vectors_of_numpy_do_for_lists():
    recipe = Recipe(ArrayEncoding((2,), center=(0.5, -0.0), scale=(1.0, 0.1), marked=()))
    plain = serialization.to_portable(recipe)
    plain["recipe"]["features"]["center"] = np.array([0.5, -0.0])
    assert same_bits(serialization.from_portable(plain), recipe)


def test_what_an_older_version_did_not_know_has_its_default():
    rule = NumberRule("size", scale=2.0)
    plain = serialization.to_portable(Recipe(TableEncoding((rule,))))
    for name in ("offset", "strata", "fill", "logical"):
        del plain["recipe"]["features"]["columns"][0][name]
    assert serialization.from_portable(plain).features.columns == (rule,)


@dataclass(frozen=True)
class _Later(Recipe):
    ends: tuple[float, ...] = (0.0, 1.0)
    sides: tuple[int, ...] | None = (3, 4)


def test_a_later_field_with_a_default_needs_nothing(monkeypatch):
    monkeypatch.setattr(serialization, "Recipe", _Later)
    images = ImageEncoding((8, 8, 3))
    earlier = serialization.to_portable(Recipe(images, na="drop"))
    assert serialization.from_portable(earlier) == _Later(images, na="drop")
    later = _Later(images, ends=(), sides=None)
    assert (
        serialization.from_portable(through_r(serialization.to_portable(later), drop=False))
        == later
    )


ARRAY = Recipe(ArrayEncoding((2,), center=(1.0, 2.0)), label=label_rule("number"))
TABLE = Recipe(TableEncoding((NumberRule("size"),)))
SERIES = Recipe(SeriesEncoding(TABLE.features.columns, windows=WindowRule(window=3, time="t")))
GROUPED = Recipe(replace(TABLE.features, groups=(Group("one", ("size",)),)))
INPUTS = Recipe(InputsEncoding((Input("a", ARRAY.features), Input("b", TABLE.features))))


def changed(recipe, name, value):
    plain = serialization.to_portable(recipe)
    return {**plain, "recipe": {**plain["recipe"], name: value}}


def encoded(recipe, name, value):
    """A recipe with another value in its encoding; `value` may be a function of the old one."""
    plain = serialization.to_portable(recipe)["recipe"]["features"]
    value = value(plain[name]) if callable(value) else value
    return changed(recipe, "features", {**plain, name: value})


@pytest.mark.parametrize(
    "plain",
    [
        None,
        [],
        "recipe",
        {},
        {"format": "other"},
        {"recipe": {"features": {"kind": "array", "shape": [1]}}},
    ],
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
        ({"format": serialization.FORMAT, "version": 1, "recipe": {}}, "recipe$features"),
        (changed(ARRAY, "features", {}), "recipe$features$kind"),
        (encoded(ARRAY, "kind", 1.0), "recipe$features$kind"),
        (encoded(ARRAY, "shape", [2.5]), "recipe$features$shape"),
        (encoded(ARRAY, "shape", None), "recipe$features$shape"),
        (encoded(ARRAY, "shape", True), "recipe$features$shape"),
        (encoded(ARRAY, "row_shape", [2.5]), "recipe$features$row_shape"),
        (encoded(ARRAY, "row_shape", []), "recipe$features$row_shape"),
        (encoded(ARRAY, "row_shape", [3, 2]), "recipe$features$shape"),
        (encoded(ARRAY, "center", [1.0]), "recipe$features$center"),
        (encoded(ARRAY, "scale", [1.0]), "recipe$features$scale"),
        (encoded(ARRAY, "scale", [1.0, float("nan")]), "recipe$features$scale"),
        (encoded(ARRAY, "fill", ["a", "b"]), "recipe$features$fill"),
        (encoded(ARRAY, "fill", [1.0]), "recipe$features$fill"),
        (encoded(ARRAY, "marked", [2]), "recipe$features$marked"),
        (encoded(ARRAY, "marked", [1]), "recipe$features$shape"),
        (encoded(ARRAY, "crop", [1]), "recipe$features$crop"),
        (changed(ARRAY, "label", "number"), "recipe$label"),
        (changed(ARRAY, "label", {"kind": "binary", "logical": 1}), "recipe$label$logical"),
        (changed(ARRAY, "label", {"kind": "matrix", "shape": []}), "recipe$label$shape"),
        (changed(ARRAY, "label", {"kind": "matrix", "shape": [2, 0]}), "recipe$label$shape"),
        (changed(ARRAY, "label", {"levels": ["a", "b"]}), "recipe$label$kind"),
        (
            encoded(Recipe(ImageEncoding((8, 8, 3))), "row_shape", [8, 8]),
            "recipe$features$row_shape",
        ),
        (encoded(TABLE, "columns", ["size"]), "recipe$features$columns"),
        (encoded(TABLE, "columns", []), "recipe$features$columns"),
        (encoded(TABLE, "columns", [{"name": "size"}]), "recipe$features$columns$kind"),
        (encoded(TABLE, "columns", lambda columns: columns * 2), "recipe$features$shape"),
        (encoded(GROUPED, "columns", lambda columns: columns * 2), "recipe$features$groups"),
        (encoded(SERIES, "windows", None), "recipe$features$windows"),
        (encoded(SERIES, "windows", {"window": 4, "time": "t"}), "recipe$features$shape"),
        (encoded(SERIES, "windows", {"window": 0, "time": "t"}), "recipe$features$windows"),
        (
            encoded(SERIES, "windows", {"window": 3, "time": "t", "known": ["u"]}),
            "recipe$features$windows",
        ),
        (encoded(INPUTS, "inputs", lambda parts: parts[:1]), "recipe$features$shape"),
        (encoded(INPUTS, "inputs", lambda parts: parts[:1] * 2), "recipe$features$inputs"),
        (encoded(INPUTS, "inputs", []), "recipe$features$inputs"),
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
        (encoded(ARRAY, "later", 1.0), "has the field `later`, which is unknown here"),
        (encoded(ARRAY, "kind", "meshes"), "has rows of the kind `meshes`, which is unknown here"),
        (changed(ARRAY, "label", {"kind": "number", "later": 1.0}), "has the field `later`"),
        (changed(ARRAY, "label", {"kind": "tensor"}), "has labels of the kind `tensor`"),
        (
            encoded(TABLE, "columns", [{"kind": "video", "name": "size"}]),
            "has a column of the kind `video`",
        ),
    ],
)
def test_a_recipe_of_a_newer_version_is_refused(plain, how):
    with pytest.raises(DataError, match=f"saved by a newer gpukeras: it (has )?{how}") as caught:
        serialization.from_portable(plain)
    assert caught.value.hint == "Update gpukeras."


def test_replacing_keeps_a_recipe_portable():
    recipe = replace(TABLE, formula="y ~ größe", label=label_rule("class", 2, ("ä", "日本")))
    again = serialization.from_portable(json.loads(json.dumps(serialization.to_portable(recipe))))
    assert again == recipe
    assert serialization.same_encoding(again, recipe)
