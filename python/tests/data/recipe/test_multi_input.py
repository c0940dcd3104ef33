"""Several inputs and outputs: packed in one row each, grouped, kept in recipes."""

import numpy as np
import pytest
from grouped import (
    FRAME,
    GROUPS,
    IMAGE,
    LABELS,
    OPTIONS,
    PRICE,
    ROWS,
    SHAPES,
    TABLE,
    X,
    array,
    build,
    frame,
    inputs,
    outputs,
)

from gpukeras import DataError, SpecError
from gpukeras.data import builder
from gpukeras.data.dataset import map_dataset
from gpukeras.data.recipe import serialization
from gpukeras.data.recipe.encoding import group_columns
from gpukeras.data.recipe.recipe import ArrayEncoding

# Packing -----------------------------------------------------------------------------------------


def test_inputs_lie_side_by_side_in_one_row():
    data = build()
    assert data.recipe.features.kind == "inputs"
    assert data.recipe.shape == (35,)
    rows = data.arrays[0]
    np.testing.assert_array_equal(rows[:, :32], IMAGE.reshape(ROWS, -1).astype(np.float32))
    np.testing.assert_array_equal(rows[:, 32:], TABLE.astype(np.float32))
    assert [(part.name, part.shape) for part in data.recipe.parts] == [*SHAPES.items()]


def test_each_input_learns_by_itself():
    frame = {"kind": "columns", "columns": FRAME}
    features = inputs(image=array(IMAGE), frame=frame)
    features["inputs"][1]["scale"] = True
    data = build(features, encode={"cut": "codes"}, na="impute")
    image, table = (part.encoding for part in data.recipe.features.inputs)
    assert image.center is None
    assert [rule.name for rule in table.columns] == ["carat", "cut", "depth"]
    assert data.recipe.features.known == {"frame$carat", "frame$cut", "frame$depth"}
    assert data.arrays[0].shape == (ROWS, 32 + 3)
    assert abs(float(data.arrays[0][:, 32].mean())) < 1e-6
    with pytest.raises(SpecError, match="`encode` names `cup`"):
        build(features, encode={"cup": "codes"})


def test_rows_that_lack_a_value_in_any_input_or_output_are_dropped():
    table = TABLE.copy()
    table[3, 1] = np.nan
    price = PRICE.copy()
    price[5] = np.nan
    labels = outputs(price={"kind": "numeric", "values": price, "levels": []})
    data = build(inputs(image=array(IMAGE), table=array(table)), labels, na="drop")
    assert data.dropped == 2
    assert len(data) == ROWS - 2
    with pytest.raises(DataError, match=r"Column `2` of `x\$table` has 1 missing value"):
        build(inputs(image=array(IMAGE), table=array(table)))
    none = inputs(image=array(IMAGE), table=array(np.full((ROWS, 1), np.nan)))
    with pytest.raises(DataError, match="leaves no row") as error:
        build(none, na="drop")
    assert error.value.hint == "`x$table` lacks the most: 48."


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (inputs(a=array(IMAGE), b=array(TABLE[:5])), r"`x\$b` has 5 rows where `x\$a` has 48"),
        (inputs(**{"": array(IMAGE)}), "needs a name of its own: one has none"),
        ({"kind": "inputs", "inputs": []}, "it is empty"),
        (inputs(a={"kind": "images", "paths": ["x.png"]}), "cannot be one of several inputs"),
    ],
)
def test_inputs_that_do_not_go_together_are_refused(features, message):
    with pytest.raises(DataError, match=message):
        build(features, None)


def test_what_needs_one_input_is_refused():
    with pytest.raises(SpecError, match="`map` takes the features of a single input"):
        builder.assemble(X, OPTIONS, LABELS, map=lambda rows: rows)
    with pytest.raises(SpecError, match="`class_weight` cannot tell whose classes"):
        map_dataset.build_dataset(X, OPTIONS, LABELS, class_weight="balanced")
    with pytest.raises(SpecError, match="`mixup` mixes the labels of a single output"):
        builder.assemble(array(IMAGE), OPTIONS, LABELS, augment={"mixup": 0.2})
    with pytest.raises(SpecError, match="`augment` needs image files or an array of 4"):
        builder.assemble(X, OPTIONS, LABELS, augment={"flip": "both"})
    with pytest.raises(SpecError, match="`text` names columns"):
        builder.assemble(X, OPTIONS, LABELS, text={"columns": ["a"]})


# Groups ------------------------------------------------------------------------------------------


def test_columns_are_put_in_the_order_of_their_groups():
    data = build(frame(), scale=True)
    assert [rule.name for rule in data.recipe.features.columns] == ["carat", "depth", "cut"]
    assert [(part.name, part.shape) for part in data.recipe.parts] == [
        ("numbers", (2,)),
        ("kind", (3,)),
    ]
    again = map_dataset.build_dataset(frame(), OPTIONS, LABELS, recipe=data.recipe)
    np.testing.assert_array_equal(again.arrays[0], data.arrays[0])
    with pytest.raises(SpecError, match="`inputs` is not what the `recipe` has"):
        map_dataset.build_dataset(frame(groups=GROUPS[::-1]), OPTIONS, LABELS, recipe=data.recipe)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (GROUPS[:1], "The feature `cut` of `x` is in no group"),
        ([*GROUPS, {"name": "more", "columns": "cut"}], "names the column `cut` more than once"),
        ([*GROUPS, {"name": "more", "columns": ["cup"]}], "names the column `cup`, which is no"),
        ([*GROUPS, {"name": "more", "columns": []}], "has no columns for `more`"),
    ],
)
def test_each_column_is_in_one_group(groups, message):
    with pytest.raises(SpecError, match=message):
        build(frame(groups=groups))


def test_groups_need_columns():
    with pytest.raises(SpecError, match="`inputs` groups columns"):
        group_columns(ArrayEncoding((3,)), GROUPS, "x")


# Recipes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["inputs", "label"])
def test_a_recipe_that_lost_a_part_is_refused(part):
    plain = serialization.to_portable(build().recipe)
    if part == "inputs":
        plain["recipe"]["features"]["inputs"].pop()
    else:
        plain["recipe"]["label"]["outputs"].pop()
    with pytest.raises(DataError, match="is damaged"):
        serialization.from_portable(plain)
