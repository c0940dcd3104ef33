from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rules import label_rule

from gpukeras import SpecError
from gpukeras.backend import runtime
from gpukeras.data.loader.transforms import build_device_transform
from gpukeras.data.recipe import augmentation
from gpukeras.data.recipe.augmentation import AugmentSpec, choose_augmented
from gpukeras.data.recipe.columns import NumberRule
from gpukeras.data.recipe.recipe import ArrayEncoding, ImageEncoding, Recipe, TableEncoding

CLASSES = label_rule("class", units=3, levels=("a", "b", "c"))
IMAGES = Recipe(ImageEncoding((12, 10, 3)), label=CLASSES)
ARRAY = Recipe(ArrayEncoding((12, 10, 3)), label=CLASSES)
TABLE = Recipe(
    TableEncoding(tuple(NumberRule(name) for name in "abcd")), label=label_rule("number")
)
SCALED = Recipe(ImageEncoding((12, 10, 3), (255.0,) * 3), label=CLASSES)


def make_rows(rows=24, shape=(12, 10, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, *shape)).astype(np.uint8)


def tensors(*arrays):
    return tuple(runtime.tensorflow().constant(array) for array in arrays)


def finished(recipe, options, arrays, key=(1, 0), batch_size=8, training=True):
    spec = AugmentSpec.from_dict(options)
    apply = build_device_transform(choose_augmented(recipe, spec), spec, training, batch_size)
    return tuple(array.numpy() for array in apply(tensors(*arrays), key))


def finished_rows(recipe, options, rows, **how):
    return finished(recipe, options, (rows,), **how)[0]


@pytest.mark.parametrize(
    "options",
    [
        {"flip": "sideways"},
        {"rotation": 1.5},
        {"zoom": 1.0},
        {"translation": -0.1},
        {"translation": 1.5},
        {"brightness": "much"},
        {"brightness": 1.5},
        {"contrast": 1.5},
        {"mixup": -1},
        {"mixup": augmentation.MAX_ALPHA + 0.5},
        {"crop": 5},
        {"crop": (0, 5)},
        {"value_range": (1, 0)},
        {"value_range": 255},
        {"seed": -1},
        {"hue": 0.1},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(SpecError) as caught:
        AugmentSpec.from_dict(options)
    assert caught.value.details == {"arg": next(iter(options))}


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        (IMAGES, {"crop": 5}, "`crop` must be two numbers, not 1"),
        (ARRAY, {"value_range": 255}, "`value_range` must be two numbers, not 1"),
        (ARRAY, {"brightness": 0.1}, "`brightness` of an array needs `value_range`"),
        (ARRAY, {"contrast": 0.1}, "`contrast` of an array needs `value_range`"),
        (IMAGES, {"crop": (13, 5)}, "`crop` is 13 x 5, more than the images' 12 x 10"),
        (replace(IMAGES, label=None), {"mixup": 0.2}, "`mixup` needs labels"),
        (Recipe(ArrayEncoding((5,))), {"flip": "both"}, "needs image files or an array of 4"),
        (TABLE, {"crop": (2, 2)}, "needs image files or an array of 4"),
        (Recipe(ArrayEncoding((12, 10, 3), marked=(0,))), {"zoom": 0.1}, "indicators of missing"),
    ],
)
def test_what_cannot_be_augmented_is_refused(recipe, options, message):
    with pytest.raises(SpecError, match=message):
        choose_augmented(recipe, AugmentSpec(**options))


def test_the_recipe_says_what_the_model_takes():
    assert choose_augmented(IMAGES, None) == IMAGES
    assert choose_augmented(IMAGES, AugmentSpec(flip="both")) == IMAGES
    cropped = choose_augmented(IMAGES, AugmentSpec(crop=(6, 5)))
    found = cropped.features
    assert (found.shape, found.crop, found.row_shape) == ((6, 5, 3), (6, 5), (12, 10, 3))
    assert choose_augmented(cropped, AugmentSpec(crop=(6, 5))) == cropped
    assert choose_augmented(IMAGES, AugmentSpec(mixup=0.2)).mixed
    assert choose_augmented(cropped, AugmentSpec(mixup=0.2)).shape == (6, 5, 3)


@pytest.mark.parametrize(
    ("recipe", "options", "expected"),
    [
        (IMAGES, {"brightness": 0.1}, (0, 255)),
        (SCALED, {"brightness": 0.1}, (0, 1)),
        (SCALED, {"value_range": (-1, 2)}, (-1, 2)),
        (ARRAY, {"contrast": 0.1, "value_range": [0, 7]}, (0, 7)),
    ],
)
def test_value_ranges(recipe, options, expected):
    assert augmentation.choose_value_range(recipe, AugmentSpec(**options)) == expected


# Without augmentation ----------------------------------------------------------------------------


@pytest.mark.tf
@pytest.mark.parametrize("training", [True, False])
def test_images_become_float32(training):
    x, y = make_rows(), np.arange(24, dtype=np.int32) % 3
    apply = build_device_transform(IMAGES, None, training, 8)
    rows, labels = apply(tensors(x, y))
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, x)
    np.testing.assert_array_equal(labels, y)
    scaled = finished_rows(SCALED, {}, x)
    np.testing.assert_allclose(scaled, x / np.float32(255), rtol=1e-6)
    assert scaled.max() == x.max() / 255 == 1


@pytest.mark.tf
@pytest.mark.parametrize("crop", [(6, 5), (12, 5), (11, 9), (12, 10)])
def test_evaluation_takes_the_centre(crop):
    x, options = make_rows(), {"crop": crop, "flip": "both", "rotation": 0.5, "mixup": 1.0}
    rows = finished_rows(IMAGES, options, x, training=False)
    np.testing.assert_array_equal(rows, runtime.keras().layers.CenterCrop(*crop)(x))
    again = choose_augmented(ARRAY, AugmentSpec(crop=crop))  # as a prediction has it
    apply = build_device_transform(again, None, False, 8)
    np.testing.assert_array_equal(apply(tensors(x.astype(np.float32)))[0], rows)


@pytest.mark.tf
def test_evaluation_of_mixed_classes_has_one_column_each():
    x, y = make_rows(4), np.array([0, 2, 1, 2], np.int32)
    w = np.array([1, 2, 3, 4], np.float32)
    _, labels, weights = finished(IMAGES, {"mixup": 0.2}, (x, y, w), training=False)
    np.testing.assert_array_equal(labels, np.eye(3, dtype=np.float32)[y])
    np.testing.assert_array_equal(weights, w)


# Augmentation ------------------------------------------------------------------------------------

EVERYTHING = {
    "crop": (8, 8),
    "flip": "both",
    "rotation": 0.1,
    "zoom": 0.2,
    "translation": 0.1,
    "brightness": 0.2,
    "contrast": 0.3,
    "mixup": 0.4,
}


@pytest.mark.varies
@pytest.mark.tf
@pytest.mark.parametrize(("name", "value"), EVERYTHING.items())
def test_pictures_follow_from_seed_epoch_and_block(name, value):
    arrays = make_rows(), np.arange(24, dtype=np.int32) % 3

    def draw(seed, key):
        return finished(IMAGES, {name: value, "seed": seed}, arrays, key=key)[0]

    first = draw(1, (3, 0))
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, draw(1, (3, 0)))
    for seed, key in [(2, (3, 0)), (1, (4, 0)), (1, (3, 1))]:
        assert np.abs(first - draw(seed, key)).max() > 0.5
    plain = finished(IMAGES, {**({name: value} if name == "crop" else {})}, arrays, training=False)
    assert np.abs(first - plain[0]).max() > 0.5


@pytest.mark.tf
def test_one_function_gives_each_epoch_its_own_pictures():
    spec = AugmentSpec(rotation=0.2, flip="horizontal")
    apply, arrays = build_device_transform(IMAGES, spec, True, 8), tensors(make_rows())
    first, second, again = (apply(arrays, (epoch, 0))[0].numpy() for epoch in (1, 2, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - second).max() > 1


@pytest.mark.tf
@pytest.mark.parametrize(
    ("flip", "ways"),
    [
        ("none", [(1, 1)]),
        ("horizontal", [(1, 1), (1, -1)]),
        ("vertical", [(1, 1), (-1, 1)]),
        ("both", [(1, 1), (1, -1), (-1, 1), (-1, -1)]),
    ],
)
@pytest.mark.parametrize("crop", [None, (12, 10)])
def test_flips_are_independent_and_equally_frequent(flip, ways, crop):
    x = make_rows(400)
    rows = finished_rows(IMAGES, {"flip": flip, "crop": crop}, x)
    counts = [
        sum((row == image[::up, ::left]).all() for row, image in zip(rows, x, strict=True))
        for up, left in ways
    ]
    assert sum(counts) == 400
    assert min(counts) > 400 / len(ways) * 0.7


@pytest.mark.tf
def test_each_image_is_cropped_at_its_own_place():
    places = np.arange(12 * 10, dtype=np.float32).reshape(12, 10, 1)
    x = np.tile(places, (600, 1, 1, 1))
    rows = finished_rows(ARRAY.with_row_shape((12, 10, 1)), {"crop": (9, 8)}, x)
    assert rows.shape == (600, 9, 8, 1)
    tops, lefts = np.divmod(rows[:, 0, 0, 0].astype(int), 10)
    for row, top, left in zip(rows, tops, lefts, strict=True):
        np.testing.assert_array_equal(row, places[top : top + 9, left : left + 8])
    counts = np.bincount(tops * 3 + lefts, minlength=12)
    assert len(counts) == 12
    assert counts.min() > 25  # 50 expected, standard deviation 7


@pytest.mark.tf
def test_a_crop_is_exact_in_large_images():
    x = np.arange(300 * 400, dtype=np.float32).reshape(1, 300, 400, 1)
    recipe = Recipe(ArrayEncoding((300, 400, 1)))
    for block in range(20):
        row = finished_rows(recipe, {"crop": (224, 224)}, x, key=(1, block))[0]
        top, left = divmod(int(row[0, 0, 0]), 400)
        np.testing.assert_array_equal(row, x[0, top : top + 224, left : left + 224])


@pytest.mark.tf
@pytest.mark.parametrize(
    ("option", "layer", "factors"),
    [
        ("rotation", "RandomRotation", lambda m: [np.arctan2(m[3], m[0]) / (2 * np.pi)]),
        ("zoom", "RandomZoom", lambda m: [m[0] - 1]),
        ("translation", "RandomTranslation", lambda m: [-m[5] / 12, -m[2] / 10]),
    ],
)
def test_moves_are_those_of_keras(option, layer, factors):
    x = make_rows(6).astype(np.float32)
    rows = finished_rows(ARRAY, {option: 0.4}, x)
    moves = augmentation.draw_numbers(AugmentSpec(**{option: 0.4}), ARRAY, 6, 8, (1, 0))["moves"]
    for position in range(6):
        bounds = [(float(factor), float(factor)) for factor in factors(moves[position])]
        theirs = getattr(runtime.keras().layers, layer)(*bounds)
        expected = theirs(x[position : position + 1], training=True)
        np.testing.assert_allclose(rows[position], expected[0], atol=0.01)


@pytest.mark.tf
def test_one_resampling_does_what_several_would():
    x = np.zeros((200, 41, 31, 1), np.float32)
    x[:, 10:20, 8:16] = 1.0  # far enough from the borders, and smooth below
    x = np.cumsum(np.cumsum(x, axis=1), axis=2) / 80
    spec = AugmentSpec(crop=(31, 25), flip="both", rotation=0.02, zoom=0.05, translation=0.03)
    recipe = Recipe(ArrayEncoding((41, 31, 1)))
    rows = finished_rows(recipe, {name: getattr(spec, name) for name in EVERYTHING}, x)
    draws = augmentation.draw_numbers(spec, choose_augmented(recipe, spec), 200, 8, (1, 0))
    a0, a1, a2, b0, b1, b2, c0, c1 = draws["moves"].T
    from_x, from_y = a0 * 12 + a1 * 15 + a2, b0 * 12 + b1 * 15 + b2
    assert not c0.any()
    assert not c1.any()
    left, top = np.floor(from_x).astype(int), np.floor(from_y).astype(int)
    u, v = from_x - left, from_y - top
    n = np.arange(200)
    expected = (1 - v) * ((1 - u) * x[n, top, left, 0] + u * x[n, top, left + 1, 0])
    expected += v * ((1 - u) * x[n, top + 1, left, 0] + u * x[n, top + 1, left + 1, 0])
    np.testing.assert_allclose(rows[:, 15, 12, 0], expected, atol=1e-4)
    assert np.std(from_x) > 1
    assert np.std(from_y) > 1


def test_moves_stay_within_their_bounds():
    spec = AugmentSpec(rotation=0.1)
    draws = augmentation.draw_numbers(spec, IMAGES, 2000, 2000, (1, 0))["moves"]
    turns = np.arctan2(draws[:, 3], draws[:, 0]) / (2 * np.pi)
    assert -0.1 <= turns.min() < -0.09 < 0.09 < turns.max() <= 0.1
    draws = augmentation.draw_numbers(AugmentSpec(zoom=0.3), IMAGES, 2000, 2000, (1, 0))["moves"]
    assert 0.7 <= draws[:, 0].min() < 0.72 < 1.28 < draws[:, 0].max() <= 1.3
    draws = augmentation.draw_numbers(AugmentSpec(translation=0.2), IMAGES, 2000, 2000, (1, 0))[
        "moves"
    ]
    for column, length in ((2, 10), (5, 12)):
        shifts = draws[:, column] / length
        assert -0.201 <= shifts.min() < -0.19 < 0.19 < shifts.max() <= 0.201


@pytest.mark.tf
@pytest.mark.parametrize(("recipe", "high"), [(IMAGES, 255.0), (SCALED, 1.0)])
def test_brightness_and_contrast_go_both_ways_within_the_range(recipe, high):
    x = make_rows(200)
    plain = x / 255.0 * high
    brighter = finished_rows(recipe, {"brightness": 0.2}, x)
    assert brighter.min() >= 0
    assert brighter.max() <= high
    change = (brighter - plain).mean(axis=(1, 2, 3)) / high
    assert change.min() < -0.1 < 0.1 < change.max()
    sharper = finished_rows(recipe, {"contrast": 0.5}, x)
    ratio = sharper.std(axis=(1, 2, 3)) / plain.std(axis=(1, 2, 3))
    assert ratio.min() < 0.7  # Keras' layer alone never weakens
    assert ratio.max() > 1.15
    assert sharper.max() <= high


@pytest.mark.tf
def test_half_precision_of_a_session_does_not_reach_the_pictures():
    keras = runtime.keras()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    try:
        rows = finished_rows(IMAGES, {"flip": "both", "zoom": 0.1}, make_rows())
    finally:
        keras.config.set_dtype_policy(before)
    assert rows.dtype == np.float32
    assert (rows % 1 > 0).any()


@pytest.mark.tf
def test_small_and_tail_blocks_are_taken():
    x, y = make_rows(24), np.arange(24, dtype=np.int32) % 3
    spec = AugmentSpec(**EVERYTHING)
    apply = build_device_transform(choose_augmented(IMAGES, spec), spec, True, 8)
    for rows in (24, 8, 5, 1):
        images, labels = apply(tensors(x[:rows], y[:rows]), (1, 0))
        assert images.shape == (rows, 8, 8, 3)
        assert labels.shape == (rows, 3)


# Mixup -------------------------------------------------------------------------------------------


@pytest.mark.tf
@pytest.mark.parametrize("rows", [24, 5])
def test_mixup_is_what_its_numbers_say(rows):
    x, y = make_rows(rows), np.arange(rows, dtype=np.int32) % 3
    w = np.linspace(1, 2, rows, dtype=np.float32)
    options = {"mixup": 0.4, "seed": 7}
    images, labels, weights = finished(IMAGES, options, (x, y, w), key=(2, 3))
    draws = augmentation.draw_numbers(AugmentSpec(**options), IMAGES, rows, 8, (2, 3))
    share, partner = draws["share"], draws["partner"]
    assert not (partner == np.arange(rows)).all()

    def mixed(values):
        own = share.reshape(-1, *[1] * (values.ndim - 1))
        return own * values + (1 - own) * values[partner]

    np.testing.assert_allclose(images, mixed(x.astype(np.float32)), rtol=1e-6, atol=1e-4)
    np.testing.assert_allclose(labels, mixed(np.eye(3, dtype=np.float32)[y]), atol=1e-6)
    np.testing.assert_allclose(weights, mixed(w), rtol=1e-6)
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(batches=st.integers(1, 6), size=st.integers(1, 9), seed=st.integers(0, 99))
def test_partners_are_rows_of_the_same_batch_each_once(batches, size, seed):
    spec, rows = AugmentSpec(mixup=0.2, seed=seed), batches * size
    partner = augmentation.draw_numbers(spec, IMAGES, rows, size, (1, 1))["partner"]
    assert sorted(partner) == list(range(rows))
    assert (partner // size == np.arange(rows) // size).all()


@pytest.mark.parametrize("alpha", [0.001, 0.2, 1.0, 8.0])
def test_shares_follow_the_beta_distribution(alpha):
    spec = AugmentSpec(mixup=alpha)
    share = augmentation.draw_numbers(spec, IMAGES, 20_000, 20_000, (1, 1))["share"]
    assert np.isfinite(share).all()
    assert abs(share.mean() - 0.5) < 0.02
    assert abs(share.var() - 1 / (4 * (2 * alpha + 1))) < 0.01


@pytest.mark.tf
def test_numbers_and_two_classes_as_numbers_are_mixed_without_columns():
    x, y = make_rows(16), np.arange(16, dtype=np.float32) % 2
    recipe = replace(IMAGES, label=label_rule("binary"))
    _, labels = finished(recipe, {"mixup": 1.0}, (x, y))
    assert labels.shape == (16,)
    assert ((labels > 0.01) & (labels < 0.99)).any()
    rows, labels = finished(TABLE, {"mixup": 1.0}, (np.eye(4, dtype=np.float32), y[:4]))
    np.testing.assert_allclose(rows.sum(axis=1), 1, atol=1e-6)


def test_adding_mixup_does_not_change_the_crops():
    with_mixup = AugmentSpec(crop=(6, 5), mixup=0.2)
    one = augmentation.draw_numbers(AugmentSpec(crop=(6, 5)), IMAGES, 16, 8, (1, 1))
    other = augmentation.draw_numbers(with_mixup, IMAGES, 16, 8, (1, 1))
    assert set(other) - set(one) == {"share", "partner"}
    assert set(one) == {"seeds", "moves"}
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name])
