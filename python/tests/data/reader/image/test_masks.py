"""Masks as labels: their classes, their sizes, and what they refuse."""

import numpy as np
import pytest
from pictures import write
from tabled import SIZE, build, counts, image_features, mask_labels, square, write_table

from gpukeras import DataError, SpecError
from gpukeras.data.reader.rows import MemoryRows
from gpukeras.data.reader.storage import DiskRows

pytestmark = pytest.mark.tf


def labelled(table, classes=None, size=SIZE, **how):
    return build(image_features(table, size), mask_labels(table, classes), **how)


@pytest.mark.parametrize(
    ("values", "classes", "pixels"),
    [
        ((0, 255), None, (0, 255)),
        ((255, 255), None, (0, 255)),
        ((0, 1, 2), None, (0, 1, 2)),
        ((0, 3), None, (0, 1, 2, 3)),
        ((0, 3, 255), None, tuple(range(256))),
        ((7, 5, 9), (5, 7, 9), (5, 7, 9)),
        ((0, 255), (255, 0), (255, 0)),
    ],
)
def test_classes_are_the_numbers_of_the_pixels(tmp_path, values, classes, pixels):
    table = write_table(tmp_path, values=values)
    data = labelled(table, classes)
    rule, source = data.recipe.label, data.sources[1]
    assert (rule.pixels, rule.shape) == (pixels, SIZE)
    assert (rule.kind, rule.maximum) == (
        "binary" if len(pixels) == 2 else "number",
        len(pixels) - 1,
    )
    found = source.gather(np.arange(8))
    assert found.dtype == np.uint8
    for row in range(8):
        inside = values[1 + row % (len(values) - 1)]
        expected = np.where(square(row), pixels.index(inside), pixels.index(values[0]))
        np.testing.assert_array_equal(found[row], expected)


@pytest.mark.parametrize(
    ("cache", "kind"), [("host", MemoryRows), ("disk", DiskRows), ("none", MemoryRows)]
)
def test_masks_are_kept_as_bytes(tmp_path, cache, kind):
    table = write_table(tmp_path)
    source = labelled(table, cache=cache).sources[1]
    assert type(source) is kind
    expected = [square(row) for row in range(8)]
    np.testing.assert_array_equal(source.gather(np.arange(8)), expected)


def test_a_recipe_reads_masks_as_in_training(tmp_path):
    recipe = labelled(write_table(tmp_path / "a")).recipe
    again = labelled(write_table(tmp_path / "b", values=(0, 0)), recipe=recipe)
    assert again.recipe.label == recipe.label
    other = write_table(tmp_path / "c", values=(0, 255, 9))
    message = r"the image mask_1.png in row 2 has the value 9, outside of the classes 0, 255\."
    with pytest.raises(DataError, match=message) as caught:
        labelled(other, recipe=recipe)
    details = {"arg": "mask", "column": "mask", "path": other["mask"][1], "row": 2}
    assert caught.value.details == details
    with pytest.raises(DataError, match="outside of the classes 0, 1"):
        labelled(other, (0, 1))
    with pytest.raises(SpecError, match="`classes` are not those that the `recipe` has"):
        labelled(other, (0, 1), recipe=recipe)


@pytest.mark.parametrize("classes", [(0,), (0, 0), (0, 256), (0, -1), (0, "a"), (0, 0.5)])
def test_bad_classes_are_refused(tmp_path, classes):
    with pytest.raises(SpecError) as caught:
        labelled(write_table(tmp_path, 2), classes)
    assert caught.value.details["arg"] == "classes"


def test_sizes_may_differ_from_row_to_row_but_not_from_an_image_to_its_mask(tmp_path):
    table = write_table(tmp_path / "a", 4)
    larger = write_table(tmp_path / "b", 4, size=(24, 32))
    mixed = {"path": table["path"][:2] + larger["path"][2:], "age": table["age"]}
    mixed["mask"] = table["mask"][:2] + larger["mask"][2:]
    data = labelled(mixed)
    assert data.sources[1].shape == (4, *SIZE)
    message = r"`mask`: the image mask_3.png in row 4 is 12 x 16 pixels, but its image 3.png is 24"
    with pytest.raises(DataError, match=message):
        labelled({**mixed, "mask": table["mask"][:2] + larger["mask"][2:3] + table["mask"][3:]})


def test_missing_and_broken_masks_are_named_or_dropped(tmp_path):
    table = write_table(tmp_path)
    table["mask"][2] = ""
    with pytest.raises(DataError, match="the column `mask` has no path in row 3"):
        labelled(table)
    with pytest.raises(DataError, match="`mask` is missing in 1 of 8 rows: labels are never"):
        labelled(table, na="impute")
    table["path"][5] = ""
    data = labelled(table, na="drop")
    assert (data.dropped, data.sources[1].shape[0]) == (2, 6)
    write(tmp_path / "mask_7.png", b"none")
    with pytest.raises(DataError, match=r"mask_7.png in row 8 is no JPEG, PNG") as caught:
        labelled(table, na="drop")
    assert caught.value.details["row"] == 8


def test_other_rows_and_labels_have_no_masks(tmp_path):
    table = write_table(tmp_path, 4)
    array = {"kind": "array", "values": np.zeros((4, 2)), "names": []}
    with pytest.raises(DataError, match="`mask` has 4 mask images, but `x` has no images"):
        build(array, mask_labels(table))
    recipe = build(image_features(table), counts(table)).recipe
    with pytest.raises(DataError, match="has mask images where training had numbers"):
        build(image_features(table), mask_labels(table), recipe)
    with pytest.raises(SpecError, match="`class_weight` weighs rows"):
        masks_weighed(table)


def masks_weighed(table):
    from gpukeras.data import builder

    return builder.assemble(
        image_features(table), {"seed": 1}, mask_labels(table), class_weight="balanced"
    )
