"""Masks move with their images, and images beside other inputs are varied alone."""

from dataclasses import replace

import numpy as np
import pytest
import tabled
from nightly import few
from tabled import (
    OPTIONS,
    SIZE,
    build,
    counts,
    image_features,
    input_features,
    mask_labels,
    write_table,
)

from gpukeras import SpecError
from gpukeras.backend import runtime
from gpukeras.data import builder
from gpukeras.data.loader.loader import open_evaluation, open_loader
from gpukeras.data.loader.transforms import build_device_transform
from gpukeras.data.recipe.augmentation import AugmentSpec, choose_augmented
from gpukeras.data.recipe.recipe import ArrayEncoding, InputsEncoding, Recipe

pytestmark = pytest.mark.tf
MOVES = {
    "flip": {"flip": "both"},
    "crop": {"crop": (8, 10)},
    "crop and flip": {"crop": (8, 10), "flip": "horizontal"},
    "rotation": {"rotation": 0.1},
    "all": {"crop": (8, 10), "flip": "both", "rotation": 0.2, "zoom": 0.2, "translation": 0.1},
    "light": {"flip": "both", "brightness": 0.1, "contrast": 0.1},
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("table"), 8)


def epoch(data, number=0):
    """The features and labels of an epoch's blocks."""
    loader = open_loader(data, data.plan("CPU:0"))
    blocks = [block.arrays for block in loader.epoch(number)]
    as_array = lambda *parts: np.concatenate([np.asarray(part) for part in parts])  # noqa: E731
    return runtime.tree().map_structure(as_array, *blocks)


@pytest.mark.slow
@pytest.mark.parametrize("name", MOVES)
def test_a_mask_is_where_its_square_is(table, name):
    data = build(image_features(table), mask_labels(table), augment=MOVES[name])
    rows, masks = epoch(data)
    assert masks.dtype == np.float32
    assert masks.shape == rows.shape[:3] == (8, *data.recipe.label.shape)
    assert set(np.unique(masks)) <= {0.0, 1.0}
    middle = rows.mean(axis=-1)
    bright = middle > 150  # squares are 200, the rest at most 70; half-way where it is smoothed
    agree = (bright == (masks == 1)).mean()
    assert agree == 1.0 if name in ("flip", "crop", "crop and flip") else agree > 0.97
    again, _ = epoch(data, 1)
    assert not np.array_equal(rows, again)


def test_masks_are_cropped_at_the_centre_in_evaluation(table):
    spec = {"crop": (8, 10), "flip": "both"}
    data = build(image_features(table), mask_labels(table), augment=spec)
    assert data.recipe.label.shape == (8, 10)
    ((rows, masks),) = (block.arrays for block in open_evaluation(data, "CPU:0").epoch(0))
    plain = data.sources[1].gather(np.arange(8))
    np.testing.assert_array_equal(np.asarray(masks)[:8], plain[:, 2:10, 3:13])
    assert rows.shape[1:] == (8, 10, 3)
    again = build(image_features(table), mask_labels(table), data.recipe)
    assert again.recipe.label.shape == (8, 10)
    ((_, kept),) = (block.arrays for block in open_evaluation(again, "CPU:0").epoch(0))
    np.testing.assert_array_equal(np.asarray(kept), np.asarray(masks))


def test_nothing_to_do_is_none():
    array = Recipe(ArrayEncoding((12, 10, 3)))
    assert build_device_transform(array, None, True, 8) is None
    assert build_device_transform(array, AugmentSpec(), True, 8) is None
    assert build_device_transform(array, AugmentSpec(flip="both"), False, 8) is None


def test_masks_are_not_mixed(table):
    with pytest.raises(SpecError, match="not the pixels of masks"):
        build(image_features(table), mask_labels(table), augment={"mixup": 0.2})


@pytest.mark.parametrize("first", ["image", "columns"])
def test_images_beside_columns_are_varied_as_images_alone(table, first):
    features = input_features(table)
    if first == "columns":
        features["inputs"] = features["inputs"][::-1]
    spec = {"crop": (8, 10), "rotation": 0.1, "brightness": 0.2}
    alone = build(image_features(table), counts(table), augment=spec)
    both = build(features, counts(table), augment=spec)
    rows, labels = epoch(alone)
    parts, own = epoch(both)
    assert set(parts) == {"image", "columns"}
    np.testing.assert_allclose(parts["image"], rows, atol=1e-3)
    np.testing.assert_array_equal(own, labels)
    plain = build(features, counts(table))
    np.testing.assert_array_equal(epoch(plain)[0]["columns"], parts["columns"])
    assert both.recipe.features.staged_shape == plain.recipe.shape
    assert both.recipe.features.images.encoding.shape == (8, 10, 3)


def test_scaled_images_beside_columns_are_from_0_to_1(table):
    features = input_features(table)
    features["inputs"][0]["scale"] = True
    found = epoch(build(features, counts(table)))[0]
    assert found["image"].max() == pytest.approx(200 / 255)


def test_mixup_mixes_all_inputs_alike(table):
    data = build(input_features(table), counts(table), augment={"mixup": 0.4})
    (plain, numbers), (parts, labels) = (
        epoch(build(input_features(table), counts(table))),
        epoch(data),
    )
    scaled = (labels - numbers.mean()) / numbers.std()
    np.testing.assert_allclose(parts["columns"][:, 0], scaled, rtol=1e-4, atol=1e-5)
    assert not np.allclose(parts["image"], plain["image"])


@pytest.mark.parametrize("engine", few(["graph_loop", "compiled"], "graph_loop"))
def test_engines_train_on_the_same_rows(tmp_path, engine):
    found = tabled.train(tmp_path, ("keras", engine))
    assert found[engine] == pytest.approx(found["keras"], rel=1e-4)


def test_nothing_is_left_to_do_for_numbers(table):
    recipe = build(input_features(table), counts(table)).recipe
    numbers = replace(recipe, features=InputsEncoding(recipe.features.inputs[1:]))
    assert build_device_transform(numbers, None, True, 4) is None
    with pytest.raises(SpecError, match="`augment` needs image files or an array"):
        choose_augmented(numbers, AugmentSpec(flip="both"))
    assert recipe.features.images.encoding.shape == (*SIZE, 3)


def test_weights_of_pixels_are_not_moved(table):
    def weighed(weights, augment):
        given = image_features(table), OPTIONS, mask_labels(table)
        return builder.assemble(*given, weights=weights, augment=augment)

    with pytest.raises(SpecError, match="moves the pixels of masks, but not their `weights`"):
        weighed(np.ones((8, *SIZE)), {"flip": "both"})
    assert len(weighed(np.ones((8, *SIZE)), {"brightness": 0.1}).sources) == 3
    assert weighed(np.ones((8, 1, 1)), {"flip": "both"}).sources[2].shape == (8, 1, 1)
