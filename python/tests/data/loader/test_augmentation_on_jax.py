"""Images are varied on JAX as on TensorFlow, see `jax_tools` and `varied`."""

import numpy as np
import pytest
import varied
from jax_runs import needs_jax, run_part
from nightly import few

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.tf, needs_jax]
DRAWN_HERE = ("crop", "crop and flip", "rotation", "zoom", "translation", "moves", "mixup")


def on_jax(name):
    found = run_part("jax_tools", "augmented" if name in varied.FEW else "augmented_more")
    return np.array(found[name], np.float32)


@pytest.mark.parametrize("name", few(DRAWN_HERE, "crop and flip", "moves", "mixup"))
def test_moved_and_mixed_images_are_those_of_tensorflow(name):
    found, expected = on_jax(name), varied.vary(name)
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() < 1e-3
    assert np.mean(np.abs(found - expected) > 0.1) < 1e-4  # a place that is rounded otherwise


@pytest.mark.parametrize(("name", "ways"), few([("flip", 2), ("flip both", 4)], ("flip both", 4)))
def test_flips_turn_some_images_in_each_way(name, ways):
    seen, plain = set(), varied.rows().astype(np.float32)
    for image, own in zip(on_jax(name), plain, strict=True):
        turned = [own, own[:, ::-1], own[::-1], own[::-1, ::-1]]
        same = [place for place, one in enumerate(turned) if np.array_equal(image, one)]
        assert len(same) == 1
        seen.update(same)
    assert len(seen) == ways


def test_brightness_adds_one_number_to_each_image():
    moved = on_jax("brightness") - varied.rows()
    inside = (on_jax("brightness") > 0) & (on_jax("brightness") < 255)
    shifts = [moved[row][inside[row]] for row in range(24)]
    assert max(np.ptp(shift) for shift in shifts) < 1e-3
    means = np.array([shift.mean() for shift in shifts])
    assert means.min() < 0 < means.max()
    assert np.abs(means).max() <= 0.3 * 255 + 1e-3


def test_contrast_stretches_each_image_about_its_mean():
    found, plain = on_jax("contrast"), varied.rows().astype(np.float32)
    factors = found.std(axis=(1, 2, 3)) / plain.std(axis=(1, 2, 3))
    assert factors.min() < 1 < factors.max()
    assert factors.min() > 0.45
    assert factors.max() < 1.55


def test_engines_train_on_the_same_images():
    found = run_part("jax_tools", "augmented_fit")
    assert found["keras"] == pytest.approx(found["compiled"], rel=1e-5)
